"""The panel, the lines and the status files of another program's folder."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest

from colabkeep.core.events import (
    CheckpointDurability,
    Durability,
    DurabilityTold,
    FolderSeen,
    Noted,
    Restored,
    RunStarted,
    RunStopped,
    SaveCommitted,
    SaveFailing,
)
from colabkeep.core.manifest import Progress
from colabkeep.testing.clock import FakeClock
from colabkeep.ui.panel.displays import Lines, record
from colabkeep.ui.panel.render import line, render
from colabkeep.ui.panel.state import PanelState
from tests.panel.conftest import DRIVE

STARTED = RunStarted(run="r", session="s", storage="/front + drive", promise="Byte for byte.", keeps="/content/runs")


def durability(*, lost: str | None = "12 min (last.pt of 14:03)", seconds: float = 720.0) -> Durability:
    standing = CheckpointDurability(checkpoint="v7", step=7, seconds=100.0, level="confirmed")
    return Durability(
        place=DRIVE,
        lost_seconds=seconds,
        step=7,
        checkpoint="v7",
        level="confirmed",
        standings=(standing,),
        versions=True,
        lost=lost,
    )


def made(number: int, reason: str = "changed") -> SaveCommitted:
    progress = Progress(step=number, seconds=10.0 * number)
    return SaveCommitted(
        checkpoint=f"v{number}", progress=progress, reason=reason, bytes=2**20, written=1024, seconds=0.1, level="local"
    )


@pytest.fixture
def panel() -> PanelState:
    state = PanelState(platform="Google Colab")
    for event in (STARTED, made(7), DurabilityTold(durability=durability())):
        state.take(event, 1_700_000_000.0)
    return state


def test_the_panel_of_a_folder_says_what_would_be_lost(panel: PanelState) -> None:
    panel.take(FolderSeen(changed=2, waits="last.pt (it is being written)", durability=durability()), 1_700_000_060.0)
    html = render(panel)
    assert "Safe: version 7 · would be lost now: 12 min (last.pt of 14:03)" in html
    assert "/content/runs · version 7 · 2 file(s) have changed since, and wait: last.pt (it is being written)" in html
    assert "VERSION SAFE" in html.upper()
    assert "would lose 12 min (last.pt of 14:03)" in line(panel)
    panel.take(FolderSeen(changed=0, waits="", durability=durability(lost="", seconds=0.0)), 1_700_000_120.0)
    assert "nothing has changed since" in render(panel)
    assert "nothing would be lost now" in render(panel)


@pytest.mark.parametrize("reason", ["", "finished", "error", "interrupt", "session_end"])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_folder_has_no_word_of_a_training(
    panel: PanelState, reason: str, language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLABKEEP_LANG", language)
    panel.take(Restored(checkpoint="v6", progress=Progress(step=6), age=5.0), 1.0)
    panel.take(SaveFailing(progress=Progress(step=8), error="the disk is full.", retry_in=5.0), 2.0)
    if reason:
        panel.take(RunStopped(reason=reason, progress=Progress(step=7), checkpoint="v7", error="its status is 1"), 3.0)
    assert (
        re.search(r"\bsteps?\b|loss|epoch|[Tt]raining|TRAINING|[Cc]heckpoint|训练|损失|检查点", render(panel)) is None
    )
    assert "step" not in line(panel)


def test_the_record_for_programs_has_what_a_folder_has(panel: PanelState) -> None:
    told = record(panel)
    assert (told["folder"], told["safe_version"]) == ("/content/runs", 7)
    assert told["would_lose"] == "12 min (last.pt of 14:03)"
    assert told["versions"] == [{"id": "v7", "version": 7, "bytes": 2**20, "level": "confirmed"}]
    assert [name for name in told if name in ("loss", "epoch", "step", "share")] == []


class Told:
    """The lines of a folder, and the clock by which they are told."""

    def __init__(self) -> None:
        self.clock, self._stream = FakeClock(), io.StringIO()
        self.tell = Lines(self.clock, self._stream)
        self.tell(STARTED)

    @property
    def lines(self) -> list[str]:
        return self._stream.getvalue().splitlines()


def test_lines_are_few_through_a_long_night() -> None:
    """A version each minute for ten hours, and an upload that is always a little behind: 70 lines, not 1,200."""
    told = Told()
    for number in range(1, 601):
        told.clock.advance(60)
        told.tell(made(number))
        told.tell(DurabilityTold(durability=durability(lost="20 s (last.pt of 14:03)", seconds=20.0)))
    assert len(told.lines) < 80
    assert re.fullmatch(
        r"\[colabkeep \d\d:\d\d:\d\d\] The folder /content/runs is kept as 'r' in /front \+ drive\.", told.lines[0]
    )
    assert "Version 1 is made: 1.0 MiB, 1.0 KiB of that new." in told.lines[2]
    told.tell(Noted(text="Said."))
    told.tell(RunStopped(reason="error", progress=Progress(step=600), checkpoint="v600", error="its exit status is 1"))
    assert told.lines[-1].endswith(
        "Stopped: the program failed (its exit status is 1). Newest version: 600. Run the same again to resume."
    )
    told.tell(DurabilityTold(durability=durability()))
    assert "you would lose 12 min (last.pt of 14:03); version 7 would come back (confirmed by" in told.lines[-1]


def test_a_folder_that_is_never_at_rest_is_told_of_once() -> None:
    told = Told()
    for _ in range(10):
        told.tell(FolderSeen(changed=1, waits="last.pt (it is being written)", durability=durability()))
        told.clock.advance(20)
    (line,) = told.lines[2:]
    assert line.endswith("No version could be made in this session yet: last.pt (it is being written).")


def test_much_that_would_be_lost_is_said_again_and_again() -> None:
    told = Told()
    for minutes in range(1, 100):
        told.tell(DurabilityTold(durability=durability(lost=f"{minutes} min", seconds=60.0 * minutes)))
    lost = [text.partition("lose ")[2].partition(";")[0] for text in told.lines[2:]]
    assert lost == ["1 min", "10 min", "20 min", "40 min", "80 min"]


def test_nothing_is_said_twice_in_chinese_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLABKEEP_LANG", "zh")
    told = Told()
    told.tell(made(1))
    assert "已生成版本 1" in told.lines[-1]
    told.tell(RunStopped(reason="finished", progress=Progress(step=1), checkpoint="v1"))
    assert told.lines[-1].endswith("程序已结束。最新的版本：1。")  # noqa: RUF001


def test_a_place_that_vanishes_is_told_as_it_is() -> None:
    gone = replace(durability(), place=replace(DRIVE, persists=False), level=None)
    assert "you would lose the whole folder and its versions" in gone.sentence
    empty = replace(durability(), level=None, lost="")
    assert "The folder is empty" in empty.sentence
    nowhere = replace(durability(), level=None, lost=None)
    assert "no version of it is known to be safe" in nowhere.sentence
