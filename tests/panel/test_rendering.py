"""What the panel looks like in each of its states."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from colabkeep.core.events import EpochDone, MachineChecked, MachineGiven, MetricsLogged, StepDone
from colabkeep.core.policies import Measures, choose
from colabkeep.ui import drawing
from colabkeep.ui.drawing import Colour
from colabkeep.ui.panel.displays import record
from colabkeep.ui.panel.gauges import Card, Usage
from colabkeep.ui.panel.render import STATES, line, moving_line, render
from colabkeep.ui.panel.state import FINAL, PanelState, Saved, TimedMessage

from .conftest import PHASES, RunHistory, at, in_full, in_phase, picture_of, text_of

GOLDEN = Path(__file__).parent / "golden"
FORBIDDEN = ("<svg", "<style", "<script", "var(", "http", "javascript")
EVIL = "</div><script>alert(1)</script><img src=x onerror=alert(1)> \" ' & \x1b[2J \u202e 保存" * 40
LINE = re.compile(
    r"\[colabkeep (\d\d:\d\d:\d\d)\] ([A-Z]+) (?:epoch \d+/\d+ )?step (\d+)(?:/(\d+))?(?: (\d+)%)?"
    r"(?: loss (\S+)(?: \S+ [\d.e+-]+)*)?"
    r"(?: [\d.,e+]+ steps/s)?(?: [^()|]+ to go)? "
    r"(?:safe|saved) (\d+|none|unknown) unsaved (\d+) steps \(([^)]*)\)(?: left ([^(]+) \(estimate\))? \| (.+)"
)


def worst(state: PanelState) -> PanelState:
    """Everything that people or machines write is long and hostile, and there is as much as there can be."""
    started = replace(
        state.started,
        run=EVIL,
        storage=EVIL,
        ends_source=EVIL,
        promise=EVIL,
        reasons=(EVIL,) * 6,
        unseen=EVIL,
        precision=EVIL,
    )
    return replace(
        state,
        platform=EVIL,
        started=started,
        machine=MachineGiven(platform=EVIL, kind=EVIL, accelerators=(EVIL, "b" * 500)),
        check=MachineChecked(verdict="reconnect", lines=(EVIL, EVIL)),
        degraded=EVIL,
        inexact=EVIL,
        broken=None if state.broken is None else replace(state.broken, checkpoint=EVIL),
        stopped=None if state.stopped is None else replace(state.stopped, error=EVIL),
        cadence=choose(Measures(cost=1e3, session=1e6, carried=1e6)),
        place=None if state.place is None else replace(state.place, url=EVIL),
        happened=tuple(TimedMessage(1e9, EVIL) for _ in range(12)),
        points=tuple((step, (step * 7919 % 1000) / 3) for step in range(0, 5120, 10)),
        resumed_at=tuple(range(0, 5120, 40)),
        saves=tuple(
            Saved(
                checkpoint=f"{step:012d}-s",
                step=step,
                level="confirmed" if step % 40 else "local",
                bytes=10**12,
                own=True,
                copy=EVIL,
            )
            for step in range(5000, 0, -104)
        ),
    )


@pytest.mark.parametrize("phase", PHASES)
def test_the_panel_reads_as_it_did(phase: str) -> None:
    """Word for word what a reader sees, in a file of its own for each state.

    To renew one that was changed on purpose: delete it, run this once, and read what was written.
    """
    html = render(in_phase(phase).state)
    seen = "\n".join(
        (text_of(html), *re.findall(r'alt="([^"]*)"', html), *re.findall(r"<text[^>]*>([^<]*)", picture_of(html)))
    )
    file = GOLDEN / f"{phase}.txt"
    if not file.exists():
        GOLDEN.mkdir(exist_ok=True)
        file.write_text(seen + "\n")
        pytest.fail(f"{file.name} was not there and has been written: read it")
    assert seen + "\n" == file.read_text()


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("phase", PHASES)
def test_nothing_that_a_notebook_strips_is_in_it(phase: str, language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below 20 kB in every state, also when everything in it is long and hostile."""
    monkeypatch.setenv("COLABKEEP_LANG", language)
    state = in_phase(phase).state
    for shown in (state, worst(state)):
        html = render(shown)
        assert len(html.encode()) < 20_000
        bare = re.sub(r'base64,[^"]+', "", html)
        assert not [word for word in FORBIDDEN if word in bare]
    assert text_of(render(worst(state))).count("alert(1)") >= 1, "it is shown, as text"


@pytest.mark.parametrize("phase", PHASES)
def test_the_chip_says_the_state_in_a_word_a_sign_and_a_colour(phase: str) -> None:
    """The word alone is enough; the colour is that of the frame, too."""
    html = render(in_phase(phase).state)
    symbol, colour, words = STATES[phase]
    assert f"color:{colour.ink};background:{colour.paper}" in html
    assert f"border-left:5px solid {colour.ink}" in html
    assert f"{symbol} {words.format('NaN')}" in text_of(html)


def test_every_colour_of_a_state_is_one_whose_contrast_is_tested() -> None:
    """None is mixed by hand, and there is one for each state."""
    assert set(STATES) == {*PHASES, "unsaved"}
    known = [value for value in vars(drawing).values() if isinstance(value, Colour)]
    assert all(colour in known for _, colour, _ in STATES.values())
    used = {c for phase in PHASES for c in re.findall(r"#[0-9a-f]{6}", render(in_phase(phase).state))}
    assert used <= {part for colour in known for part in (colour.ink, colour.paper)}


@pytest.mark.parametrize("phase", PHASES)
def test_no_text_is_cut_and_no_gap_is_left_for_it(phase: str) -> None:
    """Only the picture has a height of its own, and it is always there; what is wide scrolls by itself."""
    html = re.sub(r'alt="[^"]*"', "", render(in_phase(phase).state))
    assert re.findall(r"[^-]height:[^;\"]+", html) == [";height:12px", ";height:auto"]
    assert [re.findall(r'(\w+)="(\d+)"', image) for image in re.findall(r"<img[^>]*>", html)] == [
        [("width", "480"), ("height", "176")]
    ]
    assert len(re.findall(r'<div style="overflow-x:auto"><table', html)) == html.count("<table")


def measured(history: RunHistory, epochs: int) -> RunHistory:
    """Goes on for so many epochs, each with a validation that is best in the third."""
    history.start()
    for epoch in range(epochs):
        first = epoch * 100
        history.train(first + 1, first + 100)
        logged = {"train_loss": 3.0 / (1 + epoch), "val_loss": 1.0 + (epoch - 2) ** 2 / 8, "val_accuracy": 0.5}
        at_end = at(first + 100)._replace(epoch=epoch)
        history.tell(MetricsLogged(progress=at_end, metrics=logged))
        history.tell(EpochDone(epoch=epoch, progress=at(first + 100), metrics=logged))
    return history


def cells(html: str, caption: str) -> list[list[str]]:
    """The rows of the table with that caption, as texts."""
    found = re.search(rf"<caption[^>]*>{caption}.*?</table>", html)
    assert found
    rows = re.findall(r"<tr.*?</tr>", found[0])
    return [[text_of(cell) for cell in re.findall(r"<t[hd].*?</t[hd]>", row)] for row in rows]


def test_the_epochs_are_a_table_with_the_best_one_marked() -> None:
    """Each metric beside the others, as it was logged; the last ones, and before them the best if it is older."""
    html = render(measured(RunHistory(), 10).state)
    assert cells(html, "Epochs · ★ best val_loss: 1, epoch 3") == [
        ["epoch", "train_loss", "val_loss", "val_accuracy", "time"],
        ["★ 3", "1", "1", "0.5", "33 s"],
        *([f"{n}", f"{3.0 / n:.4g}", f"{1 + (n - 3) ** 2 / 8:.4g}", "0.5", "33 s"] for n in range(5, 11)),
    ]
    young = render(measured(RunHistory(), 3).state)
    assert [row[0] for row in cells(young, "Epochs")] == ["epoch", "1", "2", "★ 3"]


def test_what_is_measured_now_is_said_in_one_line() -> None:
    """The loss, smooth and as it came last; the learning rate; the newest of each metric; how fast."""
    history = measured(RunHistory(), 4)
    history.tell(StepDone(progress=at(401), epoch_batches=100, loss=0.25, learning_rate=0.0003))
    text = text_of(render(history.state))
    assert "(last 0.25) · learning rate 0.0003 · val_loss 1.125 · val_accuracy 0.5 " in text
    assert "epoch 5 of 10 · step 401 of 1000 · 3 steps/s · 96 samples/s · trained for 2 min" in text
    assert "loss 0.25 " in line(history.state)
    assert " 3 steps/s 3 min to go safe none " in line(history.state)


def test_how_busy_the_machine_is_and_what_the_gpu_waits_for_are_told() -> None:
    """Gradient norm and tokens as the loop tells them; cards and memory; the batches, where a GPU waits for them and no
    card is busy, and not in a final panel."""
    history = RunHistory().start()
    for step in range(1, 31):
        told = {"grad_norm": 1.25, "tokens": 4096 * step, "waited": 0.2 * step}
        history.tell(StepDone(progress=at(step), epoch_batches=100, loss=1.0, **told))
    cards = (Card(busy=0.35, used=9 * 2**30, total=15 * 2**30),)
    state = replace(history.state, usage=Usage(cards=cards, memory=(5 * 2**30, 12 * 2**30)))
    text = text_of(render(state))
    assert " · 96 samples/s · 12,288 tokens/s · " in text
    assert "loss 1 · gradient norm 1.25 " in text or "(last 1) · gradient norm 1.25 " in text
    assert "GPU: 35 % busy, 9.0 GiB of 15.0 GiB · RAM: 5.0 GiB of 12.0 GiB. The GPU waits: 60 % of the time" in text
    told = record(state)
    assert (told["gradient_norm"], told["tokens_per_second"], told["reading_share"]) == (1.25, 12288.0, 0.6)
    assert told["memory"] == {"used": 5 * 2**30, "total": 12 * 2**30}

    busy = replace(state, usage=Usage(cards=(replace(cards[0], busy=0.9),)))
    idle = replace(state, usage=Usage(cards=(replace(cards[0], busy=None), replace(cards[0], busy=0.1))))
    no_card = replace(state, machine=replace(state.machine, accelerators=()))
    assert "GPU 0: 9.0 GiB of 15.0 GiB · GPU 1: 10 % busy, " in text_of(render(idle))
    assert "The GPU waits" in text_of(render(idle))
    ended = history.stop("interrupt").state
    for other in (busy, no_card, replace(ended, usage=state.usage)):
        assert "The GPU waits" not in text_of(render(other))


def test_a_terminals_line_tells_the_training_first() -> None:
    """The epoch with its bar, loss, metrics, speed and time left; then what is safe. A state that matters leads it, and
    a final one is told as in a log."""
    history = measured(RunHistory(), 4)
    history.tell(StepDone(progress=at(401), epoch_batches=100, loss=0.25))
    assert moving_line(history.state) == (
        "epoch 5/10 ━━━━━━━━──────────── 40% · loss 0.25 · val_loss 1.125 · val_accuracy 0.5 · 3 steps/s · "
        "3 min to go · step 401/1000 · safe none, unsaved 401 steps (2 min)"
    )
    assert moving_line(in_phase("nan").state).startswith("NAN · epoch 3/10 ━━━━")
    ended = in_phase("failed").state
    assert moving_line(ended) == line(ended)


def test_metrics_without_an_end_leave_a_small_panel() -> None:
    """A thousand epochs of forty metrics with hostile names: the best one stays, and the page is as light as ever."""
    history = RunHistory().start()
    for epoch in range(1000):
        logged = {f"{EVIL[:200]}{number}": float(epoch) for number in range(40)}
        progress = at(epoch + 1)._replace(epoch=epoch)
        history.tell(MetricsLogged(progress=progress, metrics={"val_loss": abs(epoch - 7) + 1.0, **logged}))
    state = history.state
    html = render(state)
    assert len(html.encode()) < 30_000
    assert "<script" not in html
    assert cells(html, "Epochs")[1][0] == "★ 8"
    assert len(state.epochs) <= 400
    assert state.epochs[-1].epoch == 999


@pytest.mark.parametrize("phase", PHASES)
def test_only_a_live_panel_says_when_it_is_no_longer_live(phase: str) -> None:
    """A final one is as true tomorrow."""
    assert ("not live" in picture_of(render(in_phase(phase).state))) == (phase not in FINAL)
    assert 'begin="2s"' not in picture_of(render(in_phase("finished").state, stale_after=2))
    assert 'begin="2s"' in picture_of(render(in_phase("durable").state, stale_after=2))


@pytest.mark.parametrize("phase", FINAL)
def test_a_final_panel_promises_no_time(phase: str) -> None:
    """No speed, no time to go, no end of a session that is over."""
    text = text_of(render(in_phase(phase).state))
    assert not [word for word in ("about", "steps/s", "Session time left") if word in text]
    assert "about" in text_of(render(in_phase("durable").state))


def test_a_bad_card_is_told_with_the_next_click() -> None:
    """Beside the card, and in words of the check; a good one says so in one."""
    state = in_phase("durable").state
    assert "Tesla T4" in text_of(render(state))
    bad = replace(
        state,
        check=MachineChecked(verdict="reconnect", lines=("→ Click delete.",)),
        machine=replace(state.machine, accelerators=("Tesla K80", "Tesla K80")),
    )
    text = text_of(render(bad))
    assert "Tesla K80 x2: reconnect for a better one" in text
    assert "→ Click delete." in text


@pytest.mark.parametrize("phase", PHASES)
def test_the_line_can_be_taken_apart_again(phase: str) -> None:
    """By a program that reads a log; every figure of the panel is in it, and the time is UTC."""
    state = in_phase(phase).state
    found = LINE.fullmatch(line(state))
    assert found, line(state)
    names = {"fresh": "TRAINING", "saved": "TRAINING", "durable": "TRAINING", "interrupted": "STOPPED"}
    assert found[2] == names.get(phase, phase.upper())
    assert int(found[3]) == state.progress.step
    assert int(found[8]) == state.lost_steps
    assert (found[10] is None) == (phase in FINAL or phase == "starting")
    assert found[11]


def test_a_hostile_line_stays_one_line() -> None:
    """Whatever an exception says."""
    text = line(worst(in_phase("failed").state))
    assert text.isprintable()
    assert LINE.fullmatch(text)


def test_what_a_resume_could_not_restore_exactly_is_said() -> None:
    """In the sentence, not only in the list of events."""
    state = in_phase("resumed").state
    assert "position in the data are as they were" in text_of(render(state))
    assert "Not bit for bit: torch was 2.9." in text_of(render(replace(state, inexact="torch was 2.9")))


def test_a_resumed_run_is_not_called_unsafe_before_the_storage_was_asked() -> None:
    """Neither safe nor lost: it is being checked."""
    state = in_phase("resumed").state
    assert "Checking which checkpoint the storage has" in text_of(render(state))
    assert " safe unknown " in line(state)


def test_what_nobody_knows_to_survive_the_machine_is_not_called_safe() -> None:
    """Neither in the line, nor while the next save is under way."""
    unknown, known = in_phase("saved").save(112, level=None).state, in_phase("saving").state
    assert (unknown.phase, known.phase) == ("saving", "saving")
    assert " saved 100 unsaved " in line(unknown)
    assert "resume from step 100, if /content/runs survives." in line(unknown)
    assert "safe" not in line(unknown)
    assert " safe 100 unsaved " in line(known)
    assert "resume from step 100." in line(known)


def test_a_panel_is_shown_in_chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same figures, in each of its places; and no sentence of it is left in English."""
    monkeypatch.setenv("COLABKEEP_LANG", "zh")
    text = text_of(render(in_phase("durable").state))
    assert "检查点已保存" in text
    assert "第 3 / 10 轮" in text
    for phase in PHASES:
        for state in (in_phase(phase).state, in_full(phase)):
            shown = text_of(render(state)).replace("colabkeep.report", "").replace("Google Colab (hosted)", "")
            left = re.findall(r"[A-Za-z]{2,} [a-z]{2,} [a-z]{2,}", shown)
            assert set(left) <= {"GPU and driver", "memory is short", "The drive is"}, "these are made up here"
