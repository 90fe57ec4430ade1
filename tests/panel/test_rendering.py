"""What the panel looks like in each of its states."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from string import Formatter

import pytest

from colabkeep.core.policies import Measures, choose
from colabkeep.core.system import Environment
from colabkeep.ui import drawing
from colabkeep.ui.drawing import Colour
from colabkeep.ui.panel.messages import EN, SYMBOLS, ZH, language
from colabkeep.ui.panel.render import COLOURS, line, render
from colabkeep.ui.panel.state import FINAL, Happened, PanelState, Saved

from .conftest import PHASES, in_phase, picture_of, text_of

GOLDEN = Path(__file__).parent / "golden"
FORBIDDEN = ("<svg", "<style", "<script", "var(", "http", "javascript")
EVIL = "</div><script>alert(1)</script><img src=x onerror=alert(1)> \" ' & \x1b[2J \u202e 保存" * 40
LINE = re.compile(
    r"\[colabkeep (\d\d:\d\d:\d\d)\] ([A-Z]+) step (\d+)(?:/(\d+))?(?: (\d+)%)?(?: loss (\S+))? "
    r"(?:safe|saved) (\d+|none|unknown) at-risk (\d+) steps \(([^)]*)\)(?: left ([^(]+) \(estimate\))? \| (.+)"
)


def worst(state: PanelState) -> PanelState:
    """Everything that people or machines write is long and hostile, and there is as much as there can be."""
    return replace(
        state,
        run=EVIL,
        storage=EVIL,
        platform=EVIL,
        kind=EVIL,
        accelerators=(EVIL, "b" * 500),
        verdict="reconnect",
        advice=(EVIL, EVIL),
        error=EVIL,
        degraded=EVIL,
        inexact=EVIL,
        promise=EVIL,
        reasons=(EVIL,) * 6,
        unseen=EVIL,
        precision=EVIL,
        good=EVIL,
        cadence=choose(Measures(cost=1e3, session=1e6, carried=1e6)),
        ends_source=EVIL,
        place=None if state.place is None else replace(state.place, url=EVIL),
        happened=tuple(Happened(1e9, EVIL) for _ in range(12)),
        points=tuple((step, (step * 7919 % 1000) / 3) for step in range(0, 5120, 10)),
        resumed_at=tuple(range(0, 5120, 40)),
        saves=tuple(
            Saved(
                checkpoint=f"{step:012d}-s",
                step=step,
                rung="confirmed" if step % 40 else "local",
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
def test_nothing_that_a_notebook_strips_is_in_it(phase: str, language: str) -> None:
    """Below 10 kB in every state, also when everything in it is long and hostile."""
    state = in_phase(phase, language=language).state
    for shown in (state, worst(state)):
        html = render(shown)
        assert len(html.encode()) < 10_000
        bare = re.sub(r'base64,[^"]+', "", html)
        assert not [word for word in FORBIDDEN if word in bare]
    assert text_of(render(worst(state))).count("alert(1)") >= 1, "it is shown, as text"


@pytest.mark.parametrize("phase", PHASES)
def test_the_chip_says_the_state_in_a_word_a_sign_and_a_colour(phase: str) -> None:
    """The word alone is enough; the colour is that of the frame, too."""
    html = render(in_phase(phase).state)
    colour = COLOURS[phase]
    assert f"color:{colour.ink};background:{colour.paper}" in html
    assert f"border-left:5px solid {colour.ink}" in html
    word = EN[f"chip.{phase}"].format(word="NaN", step=205)
    assert f"{SYMBOLS[phase]} {word}" in text_of(html)


def test_every_colour_of_a_state_is_one_whose_contrast_is_tested() -> None:
    """None is mixed by hand, and there is one for each state."""
    assert set(COLOURS) == set(PHASES)
    known = [value for value in vars(drawing).values() if isinstance(value, Colour)]
    assert all(colour in known for colour in COLOURS.values())
    used = {c for phase in PHASES for c in re.findall(r"#[0-9a-f]{6}", render(in_phase(phase).state))}
    assert used <= {part for colour in known for part in (colour.ink, colour.paper)}


def heights(html: str) -> list[str]:
    """What takes room, one after the other."""
    outside = re.sub(r"<details.*?</details>", "<details>", html)
    return re.findall(
        r"height:[0-9.]+em|<img[^>]*height=\"\d+\"|<tr|<details|<caption", re.sub(r'alt="[^"]*"', "", outside)
    )


def test_the_panel_is_as_high_in_each_state() -> None:
    """The page below it does not jump when a state changes."""
    shapes = {tuple(heights(render(in_phase(phase).state))) for phase in PHASES}
    assert len(shapes) == 1
    assert next(iter(shapes)).count("<tr") == 5, "the head and four rows"


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
    assert not [word for word in ("about", "steps/s", "Session left") if word in text]
    assert "about" in text_of(render(in_phase("durable").state))


def test_a_bad_card_is_told_with_the_next_click() -> None:
    """Beside the card, and in words of the check; a good one says so in one."""
    state = in_phase("durable").state
    assert "Tesla T4: keep" in text_of(render(state))
    bad = replace(state, verdict="reconnect", accelerators=("Tesla K80", "Tesla K80"), advice=("→ Click delete.",))
    text = text_of(render(bad))
    assert "Tesla K80 x2: reconnect" in text
    assert "→ Click delete." in text


@pytest.mark.parametrize("phase", PHASES)
def test_the_line_can_be_taken_apart_again(phase: str) -> None:
    """By a program that reads a log; every figure of the panel is in it, and the time is UTC."""
    state = in_phase(phase).state
    found = LINE.fullmatch(line(state))
    assert found, line(state)
    assert found[2] == phase.upper()
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
    """Neither safe nor lost: it is being asked."""
    state = in_phase("resumed").state
    assert "being asked" in text_of(render(state))
    assert " safe unknown " in line(state)


def test_what_nobody_knows_to_survive_the_machine_is_not_called_safe() -> None:
    """Neither in the line, nor while the next save is under way."""
    unknown, known = in_phase("saved").save(112, rung=None).state, in_phase("saving").state
    assert (unknown.phase, known.phase) == ("saving", "saving")
    assert " saved 100 at-risk " in line(unknown)
    assert "go on from step 100, if /content/runs survives it." in line(unknown)
    assert "safe" not in line(unknown)
    assert " safe 100 at-risk " in line(known)
    assert "go on from step 100." in line(known)


def test_both_languages_say_all_of_it() -> None:
    """The same keys, and the same places to fill in."""
    assert set(EN) == set(ZH)

    def places(text: str) -> list[str]:
        return sorted(name for _, name, _, _ in Formatter().parse(text) if name is not None)

    assert [key for key in EN if places(EN[key]) != places(ZH[key])] == []
    assert "已持久保存" in text_of(render(in_phase("durable", language="zh").state))


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C.UTF-8"}, "en"),
        ({"LANG": "zh_CN.UTF-8", "COLABKEEP_LANGUAGE": "en"}, "en"),
        ({"COLABKEEP_LANGUAGE": "zh"}, "zh"),
        ({"COLABKEEP_LANGUAGE": "klingon"}, "en"),
    ],
)
def test_the_language_is_that_of_the_system_or_the_one_asked_for(
    variables: dict[str, str], expected: str, tmp_path: Path
) -> None:
    """One variable overrides the system's own."""
    assert language(Environment(environ=variables, root=tmp_path, folder=tmp_path)) == expected
