"""A disk that is full, breaks or is interrupted at any system call of a save, with only one checkpoint kept."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import colabkeep
from colabkeep._engine.repository import Repository
from colabkeep._engine.restore import load_newest
from colabkeep.stores._posix import OS_FILES, Files
from colabkeep.stores.directory import DirectoryStore
from colabkeep.testing.faults import FaultyFiles, raising
from colabkeep.testing.training import final_state, hard_training
from colabkeep.vocabulary.events import Event, Noted, SaveCommitted, SaveFailing

FAULTS: dict[str, dict[str, Any]] = {
    "full": {"fault": raising(OSError(errno.ENOSPC, "No space left on device")), "when": "before"},
    "broken": {"fault": raising(OSError(errno.EIO, "Input/output error")), "when": "after"},
    "interrupted": {"fault": raising(KeyboardInterrupt()), "when": "before"},
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Cell:
    """A user's own loop over one epoch of eleven steps, which asks for a save at steps 4 and 8 and waits for it."""

    def __init__(self, folder: Path, files: Files = OS_FILES) -> None:
        self.folder = folder
        self.files = files
        self.events: list[Event] = []
        self.saves: list[tuple[int, int]] = []  # (first, one after the last) number of a save's system calls

    def run(self, count: Callable[[], int] = lambda: 0) -> colabkeep.Run:
        words = hard_training(epochs=1)
        model, optimizer, scheduler, ema = (words[name] for name in ("model", "optimizer", "scheduler", "ema"))
        parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "ema": ema}
        store = DirectoryStore(self.folder, files=self.files)
        options: dict[str, Any] = {"save_every": None, "keep_last": 1, "progress": False}
        with colabkeep.Run("r", **parts, storage=store, callbacks=[self.events.append], **options) as run:
            for _ in run.epochs(1):
                for features, target in run.batches(words["train_loader"]):
                    words["loss_fn"](model(features), target).backward()
                    optimizer.step()
                    scheduler.step()
                    ema.update_parameters(model)
                    optimizer.zero_grad()
                    run.step()
                    if run.progress.step % 4 == 0:
                        began = count()
                        run.save(wait=True)
                        self.saves.append((began, count()))
        return run

    def told(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if type(event) is kind]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], list[str], tuple[int, int]]:
    """What a run without faults ends with; its system calls; those of its second save, which deletes the first."""
    torch.set_num_threads(1)
    files = FaultyFiles()
    cell = Cell(tmp_path_factory.mktemp("whole"), files.files)
    cell.run(lambda: len(files.calls))
    return final_state(cell.folder, "r"), files.calls, cell.saves[1]


def places(calls: list[str], first: int, end: int) -> list[int]:
    """The numbers from `first` up to `end`; of many writes in a row the first two and the last."""
    alike = [n for n in range(first, end) if calls[n - 2 : n + 2] == ["write"] * 4]
    return [n for n in range(first, end) if n not in alike]


def newest_step(folder: Path) -> int:
    """The step of the newest checkpoint, which is whole; nothing newer was walked past."""
    passed: list[str] = []
    loaded = load_newest(Repository(DirectoryStore(folder), "r"), lambda id, why: passed.append(f"{id}: {why}"))
    assert passed == []
    assert loaded is not None
    return loaded.manifest.progress.step


@pytest.mark.parametrize("kind", FAULTS)
def test_a_save_that_fails_at_any_call_costs_nothing(
    tmp_path: Path, kind: str, whole: tuple[dict[str, str], list[str], tuple[int, int]]
) -> None:
    """Training goes on, the user is told, the next save succeeds, and the end is that of a run without faults."""
    state, calls, (first, end) = whole
    numbers = places(calls, first, end)
    assert {"open", "write", "fsync", "link", "unlink", "close", "scandir"} <= {calls[n] for n in numbers}
    for n in numbers:
        faulty = FaultyFiles(at=n, **FAULTS[kind])
        cell = Cell(tmp_path / str(n), faulty.files)
        assert cell.run().finished, f"call {n}, {calls[n]}"
        told = [event.error for event in cell.told(SaveFailing)] + [event.text for event in cell.told(Noted)]
        harmless = calls[n] in ("statvfs", "unlink", "close")  # a temporary name is swept later; nothing hangs on it
        assert told or harmless, f"call {n}, {calls[n]}: {cell.events}"
        assert final_state(cell.folder, "r") == state, f"call {n}, {calls[n]}"


@pytest.mark.parametrize("kind", FAULTS)
def test_a_disk_that_never_comes_back_leaves_a_checkpoint_that_loads(
    tmp_path: Path, kind: str, whole: tuple[dict[str, str], list[str], tuple[int, int]]
) -> None:
    """From any call of the second save on nothing works: a verified checkpoint is there, and a new session finishes."""
    state, calls, (first, end) = whole
    for n in places(calls, first, end)[::4]:
        cell = Cell(tmp_path / str(n), FaultyFiles(at=n, lasting=True, **FAULTS[kind]).files)
        try:
            cell.run()
        except KeyboardInterrupt:
            assert kind == "interrupted"
        committed = max(event.progress.step for event in cell.told(SaveCommitted))
        assert newest_step(cell.folder) >= committed >= 4
        again = Cell(cell.folder)
        assert again.run().finished
        assert final_state(cell.folder, "r") == state, f"call {n}, {calls[n]}"


@pytest.mark.parametrize("kind", FAULTS)
def test_a_session_that_cannot_begin_hurts_nothing(
    tmp_path: Path, kind: str, whole: tuple[dict[str, str], list[str], tuple[int, int]]
) -> None:
    """Before the first save any failure is an error of its own kind, and the next session starts as if nothing was."""
    state, calls, _ = whole
    opening = calls.index("link", calls.index("link") + 1)  # run.json and the lease are written by then
    for n in places(calls, 0, opening)[:: 1 if kind == "full" else 5]:
        cell = Cell(tmp_path / str(n), FaultyFiles(at=n, **FAULTS[kind]).files)
        try:
            cell.run()
        except (OSError, KeyboardInterrupt) as error:
            assert isinstance(error, KeyboardInterrupt) == (kind == "interrupted")
            assert isinstance(error, KeyboardInterrupt | colabkeep.ColabKeepError), f"call {n}, {calls[n]}"
        again = Cell(cell.folder)
        assert again.run().finished
        assert final_state(cell.folder, "r") == state, f"call {n}, {calls[n]}"


def test_training_goes_on_while_the_disk_is_full_and_is_saved_when_it_is_not(tmp_path: Path) -> None:
    """`resumable_fit` on a disk that is full for two epochs: told each time, finished, and saved again afterwards."""
    full = False
    events: list[Event] = []

    def fault() -> None:
        if full and disk.calls[-1] in ("write", "fsync", "mkdir", "link", "ftruncate"):
            raise OSError(errno.ENOSPC, "No space left on device")

    def fill(event: Event) -> None:
        nonlocal full
        events.append(event)
        if type(event).__name__ == "EpochDone":
            full = event.epoch in (1, 2)

    disk = FaultyFiles(at=0, fault=fault, lasting=True)
    words = hard_training(epochs=6)
    words["callbacks"] = (*words["callbacks"], fill)
    result = colabkeep.resumable_fit(
        **words,
        run_name="r",
        storage=DirectoryStore(tmp_path / "full", files=disk.files),
        keep_last=1,
        save_every=[1, "4 steps"],
    )
    failed = [event for event in events if isinstance(event, SaveFailing)]
    assert failed
    assert all("No space is left" in event.error for event in failed)
    assert all(22 <= event.progress.step < 44 for event in failed)
    last = [event for event in events if isinstance(event, SaveCommitted)][-1]
    assert (result.stopped, result.steps, last.progress.step) == ("finished", 66, 66)
    colabkeep.resumable_fit(**hard_training(epochs=6), run_name="r", storage=tmp_path / "whole", save_every=1)
    assert final_state(tmp_path / "full", "r") == final_state(tmp_path / "whole", "r")


def test_training_stops_when_nothing_could_ever_be_saved(tmp_path: Path) -> None:
    """Without a single checkpoint an hour of training would be lost: the second save says so and ends it."""
    full = False

    def fault() -> None:
        if full and disk.calls[-1] == "write":
            raise OSError(errno.ENOSPC, "No space left on device")

    def fill(event: Event) -> None:
        nonlocal full
        full = True

    disk = FaultyFiles(at=0, fault=fault, lasting=True)
    words = hard_training(epochs=6)
    words["callbacks"] = (fill,)
    with pytest.raises(colabkeep.ColabKeepError, match="nothing of this training is safe") as caught:
        colabkeep.resumable_fit(**words, run_name="r", storage=DirectoryStore(tmp_path, files=disk.files))
    assert type(caught.value).__name__ == "SaveFailed"
