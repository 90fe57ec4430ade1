"""A disk that is full, breaks or is interrupted at any system call of a save, with only one checkpoint kept.

Half of the calls that change the disk meet one of these, and so does one in six of those that only look: a look at a
folder is eight of them. `pytest tests/crash/test_failing_disk.py --every-fault` lets each call meet all of them. That
what is stored withstands a fault at each call, tests/checkpoint/test_faults.py shows.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import colabkeep
from colabkeep.checkpoint.repository import Repository
from colabkeep.checkpoint.restore import load_newest
from colabkeep.core.events import Event, Noted, Pruned, SaveCommitted, SaveFailing
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.shared.files import OS_FILES, Files
from colabkeep.testing.faults import FaultyFiles, raising
from tests.trainings import HardTraining, final_state, open_training

FAULTS: dict[str, BaseException] = {
    "full": OSError(errno.ENOSPC, "No space left on device"),
    "broken": OSError(errno.EIO, "Input/output error"),
    "interrupted": KeyboardInterrupt(),
}
ATTEMPTS = 5  # on a slow machine the idle writer looks about once more before call n, which is another one then
CHANGES = {"write", "fsync", "mkdir", "link", "unlink", "ftruncate"}


pytestmark = pytest.mark.torch  # what a disk does to a save is the same with each framework


@pytest.fixture(scope="module", autouse=True)
def training() -> HardTraining:
    """On one thread, so that its system calls come in one order."""
    training = open_training("torch")
    training.one_thread()
    return training


class Cell:
    """A user's own loop over one epoch of eleven steps, which asks for a save at steps 4 and 8 and waits for it."""

    def __init__(self, training: HardTraining, folder: Path, files: Files = OS_FILES) -> None:
        self.training = training
        self.folder = folder
        self.files = files
        self.events: list[Event] = []
        self.saves: list[tuple[int, int]] = []  # (first, one after the last) number of a save's system calls

    def run(self, count: Callable[[], int] = lambda: 0) -> colabkeep.Run:
        words = self.training.hard_training(epochs=1)
        parts = {name: words[name] for name in ("model", "optimizer", "scheduler", "ema")}
        store = DirectoryStore(self.folder, files=self.files)
        options: dict[str, Any] = {"save_every": None, "keep_last": 1, "progress": False}
        with colabkeep.Run("r", **parts, storage=store, callbacks=[self.events.append], **options) as run:
            for _ in run.epochs(1):
                for features, target in run.batches(words["train_loader"]):
                    self.training.step_by_hand(words, features, target)
                    run.step()
                    if run.progress.step % 4 == 0:
                        began = count()
                        run.save(wait=True)
                        self.saves.append((began, count()))
        return run

    def did_all(self) -> bool:
        """Were all three saves committed, and the first two deleted in their turn?"""
        saved = [event.progress.step for event in self.told(SaveCommitted)]
        return (saved, len(self.told(Pruned))) == ([4, 8, 11], 2)

    def told(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if type(event) is kind]


Share: TypeAlias = Callable[[list[str], list[int], str], list[int]]
Whole: TypeAlias = tuple[dict[str, str], list[str], tuple[int, int]]


@pytest.fixture(scope="module")
def whole(training: HardTraining, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """What a run without faults ends with; its system calls; those of its second save, which deletes the first."""
    files = FaultyFiles()
    cell = Cell(training, tmp_path_factory.mktemp("whole") / "run", files.files)
    cell.run(lambda: len(files.calls))
    return final_state(cell.folder, "r"), files.calls, cell.saves[1]


def places(calls: list[str], first: int, end: int) -> list[int]:
    """The numbers from `first` up to `end`; of many writes in a row the first two and the last."""
    alike = [n for n in range(first, end) if calls[n - 2 : n + 2] == ["write"] * 4]
    return [n for n in range(first, end) if n not in alike]


@pytest.fixture
def share(request: pytest.FixtureRequest) -> Share:
    """The numbers of calls at which a kind of fault is tried: all of them, or a sixth, for each kind others."""

    def of(calls: list[str], numbers: list[int], kind: str) -> list[int]:
        if request.config.getoption("--every-fault") or kind not in FAULTS:
            return numbers
        changes = [n for n in numbers if calls[n] in CHANGES]
        looks = [n for n in numbers if calls[n] not in CHANGES][:: len(FAULTS)]
        return sorted(each for part in (changes, looks) for each in part[list(FAULTS).index(kind) :: 2 * len(FAULTS)])

    return of


def from_call(n: int, error: BaseException) -> FaultyFiles:
    """From the n-th call on, nothing can be changed any more; reading goes on."""

    def fault() -> None:
        if faulty.calls[-1] in CHANGES:
            raise error

    faulty = FaultyFiles(at=n, fault=fault, lasting=True)
    return faulty


def newest_step(folder: Path) -> int:
    """The step of the newest checkpoint, which is whole; nothing newer was skipped."""
    passed: list[str] = []
    loaded = load_newest(Repository(DirectoryStore(folder), "r"), lambda id, why: passed.append(f"{id}: {why}"))
    assert passed == []
    assert loaded is not None
    return loaded.manifest.progress.step


@pytest.mark.parametrize("kind", [*FAULTS, "done, but not said"])
def test_a_save_that_fails_at_any_call_costs_nothing(
    training: HardTraining, tmp_path: Path, kind: str, whole: Whole, share: Share
) -> None:
    """Training goes on, the user is told, the next save succeeds, and the end is that of a run without faults."""
    state, calls, (first, end) = whole
    numbers = places(calls, first, end)
    if kind == "done, but not said":
        numbers = [n for n in numbers if calls[n] in CHANGES]
    for n in share(calls, numbers, kind):
        when: Any = "after" if kind not in FAULTS else "before"
        where = f"call {n}, {calls[n]}"
        for attempt in range(ATTEMPTS):
            faulty = FaultyFiles(at=n, fault=raising(FAULTS.get(kind, FAULTS["broken"])), when=when)
            cell = Cell(training, tmp_path / f"{n}-{attempt}", faulty.files)
            assert cell.run().finished, where
            told = cell.told(SaveFailing) + cell.told(Noted)
            assert told or cell.did_all(), where
            assert final_state(cell.folder, "r") == state, where
            if faulty.calls[n] == calls[n]:
                break
        else:
            pytest.fail(f"{where}: the calls came in another order")


@pytest.mark.parametrize("kind", FAULTS)
def test_a_disk_that_never_comes_back_leaves_a_checkpoint_that_loads(
    training: HardTraining, tmp_path: Path, kind: str, whole: Whole, share: Share
) -> None:
    """From any call of the second save on nothing can be changed: what was saved loads, and a new session finishes."""
    state, calls, (first, end) = whole
    for n in share(calls, [n for n in places(calls, first, end) if calls[n] in CHANGES], kind):
        faulty = from_call(n, FAULTS[kind])
        cell = Cell(training, tmp_path / str(n), faulty.files)
        with suppress(KeyboardInterrupt):  # it comes again when the lock is released
            cell.run()
        assert newest_step(cell.folder) >= max(event.progress.step for event in cell.told(SaveCommitted)) >= 4
        assert Cell(training, cell.folder).run().finished
        assert final_state(cell.folder, "r") == state, f"call {n}, {calls[n]}"


@pytest.mark.parametrize("kind", FAULTS)
def test_a_session_that_cannot_begin_hurts_nothing(
    training: HardTraining, tmp_path: Path, kind: str, whole: Whole, share: Share
) -> None:
    """Before the first save a failure is an error of ours, and the next session starts as if nothing had been."""
    state, calls, _ = whole
    opening = calls.index("link", calls.index("link") + 1)  # by then run.json is written, and nearly the lease
    expected = KeyboardInterrupt if kind == "interrupted" else colabkeep.ColabKeepError
    failures, numbers = 0, share(calls, places(calls, 0, opening), kind)
    for n in numbers:
        cell = Cell(training, tmp_path / str(n), FaultyFiles(at=n, fault=raising(FAULTS[kind])).files)
        try:
            cell.run()
        except expected:
            failures += 1
        assert Cell(training, cell.folder).run().finished
        assert final_state(cell.folder, "r") == state, f"call {n}, {calls[n]}"
    assert failures > len(numbers) / 3


def test_training_goes_on_while_the_disk_is_full_and_is_saved_when_it_is_not(
    training: HardTraining, tmp_path: Path
) -> None:
    """`resumable_fit` on a disk that is full for two epochs: told each time, finished, and saved again afterwards."""
    full = False
    events: list[Event] = []

    def fault() -> None:
        if full and disk.calls[-1] in CHANGES - {"unlink"}:
            raise FAULTS["full"]

    def fill(event: Event) -> None:
        nonlocal full
        events.append(event)
        if type(event).__name__ == "EpochDone":
            full = event.epoch in (1, 2)

    disk = FaultyFiles(at=0, fault=fault, lasting=True)
    words = training.hard_training(epochs=6)
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
    assert any(22 <= event.progress.step <= 33 for event in failed)
    last = [event for event in events if isinstance(event, SaveCommitted)][-1]
    assert (result.stopped, result.steps, last.progress.step) == ("finished", 66, 66)
    colabkeep.resumable_fit(**training.hard_training(epochs=6), run_name="r", storage=tmp_path / "whole", save_every=1)
    assert final_state(tmp_path / "full", "r") == final_state(tmp_path / "whole", "r")


def test_training_stops_when_nothing_could_ever_be_saved(training: HardTraining, tmp_path: Path) -> None:
    """Without a single checkpoint an hour of training would be lost: the second save says so and ends it."""
    full = False

    def fault() -> None:
        if full and disk.calls[-1] == "write":
            raise FAULTS["full"]

    def fill(event: Event) -> None:
        nonlocal full
        full = True

    disk = FaultyFiles(at=0, fault=fault, lasting=True)
    words = training.hard_training(epochs=6)
    words["callbacks"] = (fill,)
    with pytest.raises(colabkeep.ColabKeepError, match="nothing of this training is safe") as caught:
        colabkeep.resumable_fit(**words, run_name="r", storage=DirectoryStore(tmp_path, files=disk.files))
    assert type(caught.value).__name__ == "SaveFailed"


def test_the_last_save_of_a_session_is_tried_again(training: HardTraining, tmp_path: Path) -> None:
    """No later step comes to save the end with: a disk that fails for a moment there costs nothing."""
    ended = False

    def fault() -> None:
        nonlocal ended
        if ended and disk.calls[-1] == "write":
            ended = False  # once
            raise FAULTS["broken"]

    def note(event: Event) -> None:
        nonlocal ended
        ended = ended or (type(event).__name__ == "StepDone" and event.progress.step == 22)

    disk = FaultyFiles(at=0, fault=fault, lasting=True)
    words = training.hard_training(epochs=2)
    words["callbacks"] = (*words["callbacks"], note)
    store = DirectoryStore(tmp_path, files=disk.files)
    colabkeep.resumable_fit(**words, run_name="r", storage=store, save_every="21 steps")
    assert newest_step(tmp_path) == 22
    assert not ended
