"""Where the output goes: what each front end gets, and what happens where one fails."""

from __future__ import annotations

import fcntl
import io
import math
import os
import re
import struct
import sys
import termios
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO

import pytest

import colabkeep
from colabkeep.core.errors import UsageError
from colabkeep.core.events import EpochDone, Event, LengthTold, Noted, RunStarted, SaveStarted, StepDone
from colabkeep.core.system import Environment
from colabkeep.testing.clock import FakeClock
from colabkeep.ui.panel.displays import Fallbacks, Lines, displays
from colabkeep.ui.panel.state import Paced, PanelState

from .conftest import at, in_phase
from .test_rendering import LINE

KERNEL = "<ipykernel.zmqshell.ZMQInteractiveShell object at 0x7f>"
COLAB = "<google.colab._shell.Shell object at 0x7f>"
TERMINAL = "<IPython.terminal.interactiveshell.TerminalInteractiveShell object at 0x7f>"


def here(folder: Path, shell: str = "", **environ: str) -> Environment:
    return Environment(environ=environ, root=folder, folder=folder, shell=shell)


def kinds(shown: tuple[Any, ...]) -> list[str]:
    """The displays by their names; fallbacks in their order."""
    names = []
    for each in shown:
        if isinstance(each, Fallbacks):
            names.append(" > ".join([each._name, *(name for name, _ in each._left)]))
        else:
            names.append(type(each).__name__)
    return names


@pytest.mark.parametrize(
    ("progress", "shell", "environ", "expected"),
    [
        (True, "", {}, ["Lines", "StatusFiles"]),
        ("auto", TERMINAL, {}, ["Lines", "StatusFiles"]),
        (True, KERNEL, {}, ["the panel > lines of text", "StatusFiles"]),
        (True, COLAB, {"COLABKEEP_PLATFORM": "colab"}, ["the panel > lines of text", "StatusFiles"]),
        (True, KERNEL, {"KAGGLE_KERNEL_RUN_TYPE": "Interactive"}, ["the panel > lines of text", "StatusFiles"]),
        (True, KERNEL, {"KAGGLE_KERNEL_RUN_TYPE": "Batch"}, ["NotebookPanel", "Lines", "StatusFiles"]),
        ("html", KERNEL, {"KAGGLE_KERNEL_RUN_TYPE": "Batch"}, ["the panel > lines of text", "StatusFiles"]),
        (True, "", {"KAGGLE_KERNEL_RUN_TYPE": "Batch"}, ["Lines", "StatusFiles"]),
        ("text", KERNEL, {}, ["Lines", "StatusFiles"]),
        ("html", "", {}, ["the panel > lines of text", "StatusFiles"]),
        ("widgets", KERNEL, {}, ["widgets > the panel > lines of text", "StatusFiles"]),
        (False, KERNEL, {}, []),
        ("off", "", {}, []),
    ],
)
def test_each_front_end_gets_what_it_can_show(
    tmp_path: Path, progress: Any, shell: str, environ: dict[str, str], expected: list[str]
) -> None:
    """And the user's word goes before all that."""
    assert kinds(displays(progress, FakeClock(), here(tmp_path, shell, **environ))) == expected


@pytest.mark.parametrize("progress", ["bar", None, 1, 0.5, ["html"]])
def test_another_word_is_refused_before_anything_starts(tmp_path: Path, progress: Any) -> None:
    """With the words there are; nothing is written."""
    with pytest.raises(UsageError, match=re.escape(repr(progress))) as caught:
        colabkeep.Run("r", model=Number(), storage=tmp_path / "runs", progress=progress)
    assert '"widgets"' in caught.value.remedy
    assert not (tmp_path / "runs").exists()


class Number:
    """The smallest model: one number."""

    def __init__(self) -> None:
        self.value = 0

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = state["value"]


def train(folder: Path, steps: int = 12, **words: Any) -> int:
    """A training; what came of it."""
    model = Number()
    with colabkeep.Run("r", model=model, storage=folder, save_every=None, **words) as run:
        for _ in run.epochs(1):
            for batch in run.batches(list(range(steps))):
                model.value += batch
                run.step(loss=1.0)
    return model.value


# -- how often ------------------------------------------------------------------------------------------


def shown_at(events: list[tuple[float, Event]], pause: float = 1.0) -> list[float]:
    """When a panel would be shown, of events at these seconds."""
    clock, times = FakeClock(), []
    paced = Paced(clock, PanelState(), pause)
    for moment, event in events:
        clock.advance(moment - clock.monotonic())
        if paced.due(event):
            times.append(moment)
    return times


START = RunStarted(run="r", session="s", storage="runs", promise="")


def test_a_panel_is_renewed_once_a_second() -> None:
    """However many steps and sentences there are."""
    events: list[tuple[float, Event]] = [(0.0, START)]
    events += [(n / 100, StepDone(progress=at(n), epoch_batches=None)) for n in range(1, 1000)]
    events += [(9.99 + n / 1000, Noted(text=str(n))) for n in range(1, 400)]
    times = shown_at(events)
    assert 10 <= len(times) <= 12
    assert min(b - a for a, b in pairwise(times)) >= 0.99


def test_another_state_is_shown_at_once() -> None:
    """A save that begins is seen when it begins, not a second later."""
    saving = SaveStarted(progress=at(5), reason="epoch", blocked=0.1)
    assert shown_at([(0.0, START), (0.3, saving), (0.4, Noted(text="x"))]) == [0.0, 0.3]


def test_saves_that_come_every_moment_do_not_keep_the_steps_away() -> None:
    """The curve and the speed go on being told, however often the panel is shown for a save."""
    run_history = in_phase("durable")
    pair = [event for event in run_history.events if type(event).__name__ in ("SaveStarted", "SaveCommitted")][:2]
    clock, heard = FakeClock(), 0
    paced = Paced(clock, PanelState(), 1.0)
    paced.due(START)
    for step in range(1, 501):
        clock.advance(0.01)
        if clock.monotonic() >= paced.steps_from:
            heard += 1
            paced.due(StepDone(progress=at(step), epoch_batches=None, loss=1.0))
        if step % 30 == 0:
            paced.due(pair[step // 30 % 2])
    assert 4 <= heard <= 6
    assert len(paced.state.points) == heard


def test_states_that_alternate_quickly_do_not_flood_the_page() -> None:
    """A save at each step of a fast loop is four updates a second, no more."""
    run_history = in_phase("durable")
    pair = [event for event in run_history.events if type(event).__name__ in ("SaveStarted", "SaveCommitted")][:2]
    events: list[tuple[float, Event]] = [(0.0, START)]
    events += [(1 + n / 100, pair[n % 2]) for n in range(500)]
    assert len(shown_at(events)) <= 2 + 4 * 5


def test_the_end_is_always_shown() -> None:
    """Also within the same second, and what is told after it: how the last save has arrived."""
    (stopped,) = [event for event in in_phase("finished").events if type(event).__name__ == "RunStopped"]
    assert shown_at([(0.0, START), (0.01, stopped), (0.02, Noted(text="arrived"))]) == [0.0, 0.01, 0.02]


# -- displays that fail ---------------------------------------------------------------------------------


def test_a_front_end_without_a_kernel_gets_lines(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """`progress="html"` in a script: one line says why, and the rest is as in any script."""
    assert train(tmp_path, progress="html") == 66
    out, err = capfd.readouterr()
    assert out.splitlines()[0].startswith("[colabkeep] the panel cannot be shown here (NoFrontEnd: ")
    assert "finished at step 12" in out
    assert err == ""


def test_a_process_without_ipython_gets_lines(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but text is needed to train."""
    for name in [name for name in sys.modules if name.split(".")[0] == "IPython"] + ["IPython"]:
        monkeypatch.setitem(sys.modules, name, None)
    assert train(tmp_path, progress="html") == 66
    assert "the panel cannot be shown here (ModuleNotFoundError: " in capfd.readouterr().out


class Fails:
    """A display that works for a while."""

    def __init__(self, after: int, heard: list[Event]) -> None:
        self.left, self.heard, self.steps_from = after, heard, 7.0

    def __call__(self, event: Event) -> None:
        if not self.left:
            raise RuntimeError("gone\nwith a second line")
        self.left -= 1
        self.heard.append(event)


def test_the_next_display_begins_with_the_beginning() -> None:
    """It hears why it is there, what run this is, and the event that the other one could not show."""
    first: list[Event] = []
    second: list[Event] = []
    fallbacks = Fallbacks([("one", lambda: Fails(2, first)), ("two", lambda: Fails(99, second))])
    events: list[Event] = [START, Noted(text="a"), Noted(text="b"), Noted(text="c")]
    for event in events:
        fallbacks(event)
    assert first == events[:2]
    assert second == [Noted(text="one cannot be shown here (RuntimeError: gone); two instead."), START, *events[2:]]
    assert fallbacks.steps_from == 7.0


def test_fallbacks_whose_last_one_breaks_says_so_to_its_caller() -> None:
    """The run tells of it once and goes on without; it is not called a success."""
    fallbacks = Fallbacks([("one", lambda: Fails(0, [])), ("two", lambda: Fails(0, []))])
    with pytest.raises(RuntimeError, match="gone"):
        fallbacks(START)


def test_no_display_can_end_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A panel with an error in its drawing, a closed output: the weights are the same."""
    quiet = train(tmp_path / "quiet", progress=False)

    class Broken:
        closed = False

        def isatty(self) -> bool:
            return False

        def write(self, text: str) -> int:
            raise BrokenPipeError("nobody reads")

    told: list[Event] = []
    monkeypatch.setattr(sys, "stdout", Broken())
    assert train(tmp_path / "broken", callbacks=[told.append]) == quiet
    notes = [event.text for event in told if isinstance(event, Noted)]
    assert [note for note in notes if "nobody reads" in note and "everything else continues" in note]


def test_where_the_output_is_closed_the_other_one_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither a closed stdout nor a missing one is an error; without both, training is silent."""
    closed = open(os.devnull, "w")  # noqa: PTH123, SIM115  # closed on the next line
    closed.close()
    for stdout in (closed, None):
        monkeypatch.setattr(sys, "stdout", stdout)
        assert train(tmp_path / str(stdout is None)) == 66
    assert capfd.readouterr().err.count("finished at step 12") == 2
    monkeypatch.setattr(sys, "stderr", None)
    assert train(tmp_path / "silent") == 66
    silent = displays(True, FakeClock(), here(tmp_path))[0]
    assert isinstance(silent, Lines)
    assert silent.steps_from == math.inf


# -- terminals and files --------------------------------------------------------------------------------


class Terminal:
    """A pseudo-terminal of so many columns: what was written to it."""

    def __init__(self, columns: int) -> None:
        self.master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.stream: TextIO = os.fdopen(slave, "w", encoding="utf-8")

    def read(self) -> str:
        os.set_blocking(self.master, False)
        pieces = []
        try:
            while piece := os.read(self.master, 4096):
                pieces.append(piece)
        except BlockingIOError:
            pass
        return b"".join(pieces).decode()

    def close(self) -> None:
        self.stream.close()
        os.close(self.master)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal(60)
    yield made
    made.close()


def lines_of(lines: Lines, clock: FakeClock, *, seconds: int) -> None:
    """A training of twenty steps a second, as far as they are asked for, with an event in the middle."""
    lines(START)
    lines(LengthTold(max_steps=10_000))
    for step in range(1, seconds * 20 + 1):
        clock.advance(0.05)
        if clock.monotonic() >= lines.steps_from:
            lines(StepDone(progress=at(step), epoch_batches=None, loss=0.5))
        if step == seconds * 10:
            lines(Noted(text="half of it"))


def test_a_terminal_has_one_line_that_moves(terminal: Terminal) -> None:
    """At most four times a second, never longer than the terminal is wide, without a colour or a jump."""
    clock = FakeClock()
    lines_of(Lines(clock, terminal.stream), clock, seconds=10)
    text = terminal.read()
    assert "\x1b" not in text
    moves = re.findall(r"\r([━─]+ \d+%[^\r\n]*)", text)
    assert 15 <= len(moves) <= 40
    assert all(len(move) < 60 for move in moves)
    events = [line for line in text.replace("\r\n", "\n").split("\n") if "half of it" in line]
    assert len(events) == 1
    assert events[0].split("\r")[-1] == "[colabkeep] half of it", "the moving line was wiped out before"


def test_a_dumb_terminal_gets_lines_that_stay(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TERM=dumb cannot go back to the beginning of a line."""
    monkeypatch.setattr(sys, "stdout", terminal.stream)
    clock = FakeClock()
    for term, moves in (("dumb", False), ("xterm", True)):
        lines = displays("text", clock, here(tmp_path, TERM=term))[0]
        assert isinstance(lines, Lines)
        lines_of(lines, clock, seconds=8)
        assert bool(re.search(r"\r(?!\n)", terminal.read())) is moves, term


def test_a_pipe_gets_whole_lines_now_and_then() -> None:
    """The first after five seconds, one each minute; each of them stands for itself."""
    reading, writing = os.pipe()
    clock = FakeClock()
    with os.fdopen(writing, "w", encoding="utf-8") as stream:
        lines_of(Lines(clock, stream), clock, seconds=100)
    with os.fdopen(reading, encoding="utf-8", newline="") as pipe:
        text = pipe.read()
    assert "\r" not in text
    found = [LINE.fullmatch(line) for line in text.splitlines() if re.match(r"\[colabkeep \d", line)]
    assert all(found)
    assert [int(match[3]) for match in found if match] == pytest.approx([100, 1300], abs=5)


@pytest.mark.parametrize(
    ("seconds", "told"), [(0.125, [*range(1, 11), 50, 90, 130, 170, 200]), (10.0, list(range(1, 201)))]
)
def test_short_epochs_are_told_now_and_then(seconds: float, told: list[int]) -> None:
    """The first ten, one each five seconds, and the last; epochs that take longer are told each."""
    clock, stream = FakeClock(), io.StringIO()
    lines = Lines(clock, stream)
    lines(START)
    lines(LengthTold(max_epochs=200))
    for epoch in range(200):
        clock.advance(seconds)
        lines(EpochDone(epoch=epoch, progress=at(epoch + 1), metrics={"loss": 1.0}))
    assert [int(number) for number in re.findall(r"epoch (\d+) done", stream.getvalue())] == told
    assert "epoch 2 done, step 2, loss 1 · 3 steps/s · 96 samples/s\n" in stream.getvalue()


def test_a_locale_without_our_letters_gets_question_marks() -> None:
    """A name in another script ends neither the display nor the training."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    lines = Lines(FakeClock(), stream)
    lines(Noted(text="the run 训练 in /tmp/\udce8: ready"))
    assert stream.buffer.getvalue() == b"[colabkeep] the run ?? in /tmp/?: ready\n"
