"""The page and the record beside the checkpoints."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

import colabkeep
from colabkeep.core.errors import StoreError, UsageError
from colabkeep.core.events import Event, Noted, RunStarted, RunStopped, StepDone
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.memory import MemoryStore
from colabkeep.stores.shared.files import write_note
from colabkeep.stores.tiered import TieredStore
from colabkeep.testing.clock import FakeClock
from colabkeep.ui.cli import main
from colabkeep.ui.panel.displays import StatusFiles, record
from colabkeep.ui.panel.state import PanelState

from .conftest import PHASES, at, in_phase, text_of
from .test_displays import train
from .test_rendering import worst


def pages(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir() if file.is_file()}


def test_a_run_leaves_a_page_and_a_record_beside_its_checkpoints(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As of its end, and nothing else; the run's own folder holds nothing that is not the run's."""
    train(tmp_path, progress="text")
    found = pages(tmp_path)
    assert set(found) == {"r.status.html", "r.status.json"}
    assert "✔ FINISHED" in text_of(found["r.status.html"])
    told = json.loads(found["r.status.json"])
    assert (told["state"], told["step"], told["share"], told["run"]) == ("finished", 12, 1.0, "r")
    assert told["checkpoints"][0]["step"] == told["safe_step"] == 12
    assert {path.name for path in (tmp_path / "r").iterdir()} == {
        "run.json",
        "committed.json",
        "blobs",
        "checkpoints",
        "journal",
        "lease",
    }


@pytest.mark.torch
def test_a_training_that_is_over_before_a_display_asks_again_ends_with_its_last_loss(tmp_path: Path) -> None:
    """Displays hear of a step now and then; a short training would be remembered by its first one."""
    import torch

    events: list[float] = []
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with colabkeep.Run("r", model=model, optimizer=optimizer, storage=tmp_path, progress="text") as run:
        for step in run.steps(50):
            events.append(1.0 / (step + 1))
            run.step(loss=events[-1])
    told = json.loads((tmp_path / "r.status.json").read_text())
    assert (told["step"], told["loss"]) == (50, pytest.approx(events[-1], rel=1e-3))


def test_they_are_no_part_of_a_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing is damaged or foreign, no run of that name is listed, and the next session goes on."""
    train(tmp_path, progress="text")
    capfd.readouterr()
    assert main(["verify", "r", "--storage", str(tmp_path), "--json"]) == 0
    assert "foreign" not in capfd.readouterr().out
    assert main(["list", "--storage", str(tmp_path), "--json"]) == 0
    assert [run["run"] for run in listed(capfd.readouterr().out)] == ["r"]
    assert train(tmp_path, progress="text") == 66


def listed(text: str) -> list[Any]:
    told = json.loads(text)
    runs = told["runs"] if isinstance(told, dict) else told
    return [run if "run" in run else {**run, "run": run["name"]} for run in runs]


def test_they_lie_in_front_and_are_not_copied_behind(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What cannot be replaced everywhere is written on this machine's own disk only, also by the next session."""
    for _ in range(2):
        store = TieredStore(DirectoryStore(tmp_path / "front"), DirectoryStore(tmp_path / "behind"))
        train(store, progress="text")  # type: ignore[arg-type]
        store.close()
    assert set(pages(tmp_path / "front")) == {"r.status.html", "r.status.json"}
    assert pages(tmp_path / "behind") == {}
    assert not list((tmp_path / "behind").rglob("*status*"))


def test_where_there_is_no_folder_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A remote cannot replace a file; and `progress=False` leaves nothing at all."""
    monkeypatch.chdir(tmp_path)
    told: list[Event] = []
    train(MemoryStore(), progress="text", callbacks=[told.append])  # type: ignore[arg-type]
    assert not [event for event in told if isinstance(event, Noted)], "and that is no failure"
    assert list(tmp_path.iterdir()) == []
    train(tmp_path / "quiet", progress=False)
    assert pages(tmp_path / "quiet") == {}


def test_a_folder_that_cannot_be_written_is_told_of_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Training and saving go on."""
    (tmp_path / ".r.status.json.new").mkdir()
    told: list[Event] = []
    assert train(tmp_path, progress="text", callbacks=[told.append]) == 66
    notes = [event.text for event in told if isinstance(event, Noted)]
    assert len([note for note in notes if "r.status.json" in note]) == 1
    assert capfd.readouterr().out.count("r.status.json") == 1


def test_they_are_written_each_half_minute_and_at_what_matters(tmp_path: Path) -> None:
    """Not with every step; at another state at once; at the end always."""
    clock = FakeClock()
    status = StatusFiles(clock, PanelState())
    file = tmp_path / "r.status.json"

    def step_told() -> int:
        return int(json.loads(file.read_text())["step"])

    status(RunStarted(run="r", session="s", storage="x", promise="", folder=str(tmp_path)))
    seen = set()
    for step in range(1, 100):
        clock.advance(1.0)
        status(StepDone(progress=at(step), epoch_batches=None, loss=1.0))
        seen.add(step_told())
    assert seen == {0, 30, 60, 90}
    status(RunStopped(reason="error", progress=at(99), checkpoint=None, error="ValueError: x"))
    assert (json.loads(file.read_text())["state"], step_told()) == ("failed", 99)


@pytest.mark.parametrize("phase", PHASES)
def test_the_record_is_strict_json_in_words_that_stay(phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every language, and where figures are not finite."""
    monkeypatch.setenv("COLABKEEP_LANG", "zh")
    state = in_phase(phase).state
    told = json.loads(json.dumps(record(state), allow_nan=False))
    assert told["state"] == phase
    for shown in (worst(state), PanelState(loss=float("nan"))):
        json.dumps(record(shown), allow_nan=False)


def test_a_page_shows_a_hostile_name_as_text() -> None:
    """It is opened in a browser."""
    from colabkeep.ui.panel.displays import _page

    page = _page(worst(in_phase("failed").state))
    assert "<script" not in page
    assert "<img src=x" not in page


# -- the small files ------------------------------------------------------------------------------------


def test_a_note_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """Who has the old one open reads the old one to its end; no draft is left."""
    write_note(str(tmp_path), "a.json", b"old" * 1000)
    with (tmp_path / "a.json").open("rb") as reader:
        write_note(str(tmp_path), "a.json", b"new")
        assert reader.read() == b"old" * 1000
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"a.json": b"new"}


def test_a_note_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    """And nothing else."""
    write_note(str(tmp_path), "a.json", b"old")
    (tmp_path / "target").write_text("untouched")
    (tmp_path / ".a.json.new").symlink_to(tmp_path / "target")
    with pytest.raises(StoreError):
        write_note(str(tmp_path), "a.json", b"new")
    assert (tmp_path / "target").read_text() == "untouched", "no link is followed"
    assert (tmp_path / "a.json").read_bytes() == b"old"
    with pytest.raises(StoreError):
        write_note(str(tmp_path / "gone"), "a.json", b"new")
    assert not (tmp_path / "gone").exists()


def test_what_a_killed_writer_left_is_used_up(tmp_path: Path) -> None:
    """One draft at most lies about, and the next note takes it."""
    (tmp_path / ".a.json.new").write_bytes(b"half a draft, longer than the note")
    write_note(str(tmp_path), "a.json", b"new")
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"a.json": b"new"}
    assert not stat.S_IMODE((tmp_path / "a.json").stat().st_mode) & 0o111


@pytest.mark.parametrize("name", ["../a", "/a", "", ".a", "a b"])
def test_a_note_cannot_leave_its_folder(tmp_path: Path, name: str) -> None:
    """Whatever the run is called."""
    with pytest.raises(UsageError):
        write_note(str(tmp_path), name, b"")
    assert list(tmp_path.iterdir()) == []
