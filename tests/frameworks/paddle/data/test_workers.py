"""Loader workers: the same samples with any number of them; none outlives the trainer, nor does its memory."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from paddle.io import DataLoader, Dataset

import colabkeep
from colabkeep.frameworks.paddle import data as paddle_data
from colabkeep.frameworks.paddle.data import PaddleData
from colabkeep.frameworks.paddle.reading import free_segments
from tests.frameworks.data.reading import alive

SHARED_MEMORY = Path("/dev/shm")


class Whoami(Dataset):
    """Each sample tells which process loaded it, and which epoch it was told."""

    epoch = -1
    pause = 0.0

    def __len__(self) -> int:
        return 12

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> np.ndarray:
        time.sleep(self.pause)
        return np.array([index, np.random.random(), os.getpid(), self.epoch])


def test_persistent_workers_that_died_between_two_epochs_are_replaced(kit: SimpleNamespace) -> None:
    """Killed for their memory, say: Paddle would wait for their answer for ever."""
    data = PaddleData()
    loader = DataLoader(Whoami(), batch_size=3, num_workers=1, persistent_workers=True)
    (worker,) = {int(pid) for pid in kit.read(loader, data=data).rows[:, 2]}
    with pytest.raises(SystemError, match="killed by signal"):  # Paddle reports it wherever the trainer is
        until(lambda: os.kill(worker, signal.SIGKILL))
    assert kit.read(loader, data=data).indices == list(range(12))
    data.close()


@pytest.mark.parametrize("shared", [True, False])
def test_an_epoch_left_in_the_middle_leaves_no_worker_and_no_memory(kit: SimpleNamespace, shared: bool) -> None:
    """Breaking out of the loop ends the workers, even one in an hour-long sample, and frees what they had made."""
    dataset = Whoami()
    loader = DataLoader(dataset, batch_size=3, num_workers=2, use_shared_memory=shared, collate_fn=large)
    opened = PaddleData().open(loader, seed=1, epoch=0, batches=0, samples=0, state=None)
    batches = iter(opened)
    workers = {int(next(batches).value[0, 2]) for _ in range(2)}
    assert all(alive(pid) for pid in workers)
    opened.close()
    assert not any(alive(pid) for pid in workers)
    assert segments_of(workers) == []


def large(items: list[np.ndarray]) -> np.ndarray:
    """A batch larger than a pipe holds, so that its worker is still writing it."""
    return np.repeat(np.stack(items), 30_000, axis=0)


def test_leaving_a_very_slow_sample_does_not_wait_for_it(kit: SimpleNamespace) -> None:
    """The second worker sleeps for an hour: nobody waits for it."""

    class Slow(Whoami):
        def __getitem__(self, index: int) -> np.ndarray:
            time.sleep(3600 if index >= 3 else 0)
            return super().__getitem__(index)

    loader = DataLoader(Slow(), batch_size=3, num_workers=2)
    opened = PaddleData().open(loader, seed=1, epoch=0, batches=0, samples=0, state=None)
    batches = iter(opened)
    worker = int(next(batches).value[0, 2])
    start = time.monotonic()
    opened.close()
    assert time.monotonic() - start < 60
    assert not alive(worker)


class OfTheUser(Exception):
    """An exception that cannot be unpickled as it is."""

    def __init__(self, *, reason: str) -> None:
        super().__init__(reason)


class Broken(Whoami):
    def __init__(self, error: Exception) -> None:
        self.error = error

    def __getitem__(self, index: int) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("error", "kind"), [(KeyError("broken sample"), KeyError), (OfTheUser(reason="broken sample"), RuntimeError)]
)
def test_an_error_in_a_worker_arrives_with_its_trace(kit: SimpleNamespace, error: Exception, kind: Any) -> None:
    """The user's exception and the place in the user's code come through, where Paddle raises a SystemError."""
    with pytest.raises(kind, match="broken sample") as caught:
        kit.read(DataLoader(Broken(error), batch_size=2, num_workers=1))
    assert "raise self.error" in str(caught.value.__cause__)


def segments_of(pids: Any) -> list[str]:
    return [path.name for pid in pids for path in SHARED_MEMORY.glob(f"paddle_{pid}_*")]


TRAINER = """
import os, sys, time
import numpy as np
from paddle.io import DataLoader, Dataset
from colabkeep.frameworks.paddle.data import PaddleData

class Cell(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        time.sleep(3600 if index >= 20 else 0)
        return np.random.random((200, 100))

def init(worker):
    os.write(1, b"%d\\n" % os.getpid())  # in one piece: two of them may write at once

if __name__ == "__main__":
    loader = DataLoader(Cell(), batch_size=2, num_workers=2, prefetch_factor=5, worker_init_fn=init)
    opened = PaddleData().open(loader, seed=1, epoch=0, batches=0, samples=0, state=None)
    batches = iter(opened)
    next(batches)
    os.write(1, b"read\\n")
    {then}
"""

# A script in another folder finds the same colabkeep as this test does, installed or not.
ENVIRON = {**os.environ, "PYTHONPATH": str(Path(colabkeep.__file__).parents[1])}


def trainer(folder: Path, then: str) -> subprocess.Popen[str]:
    path = folder / "cell.py"
    path.write_text(textwrap.dedent(TRAINER).format(then=then))
    command = [sys.executable, "-W", "ignore", str(path)]
    return subprocess.Popen(command, env=ENVIRON, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    lines = [process.stdout.readline().strip() for _ in range(3)]
    return [int(line) for line in lines if line.isdigit()]  # a trainer that ends at once may have one that never began


def until(done: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(0.02)


Killed = tuple[list[int], Path]


@pytest.fixture
def killed(tmp_path: Path) -> Killed:
    """The workers of a trainer that was killed while they were in slow samples, and the memory they had in their hands.

    It is taken aside: another test, in another process, may open a loader at any moment and free it. How much is left
    is a matter of chance; a piece of their name is put there, so that there always is some.
    """
    aside = tmp_path / "shm"
    aside.mkdir()
    with trainer(tmp_path, "time.sleep(3600)") as process:
        workers = workers_of(process)
        assert len(workers) == 2
        assert all(map(alive, workers))
        until(lambda: len(segments_of(workers)) > 3, seconds=5)
        process.kill()
    for name in segments_of(workers):
        with contextlib.suppress(FileNotFoundError):
            shutil.move(SHARED_MEMORY / name, aside)
    (aside / f"paddle_{workers[0]}_7").write_bytes(bytes(40_000))
    return workers, aside


def test_workers_and_their_memory_are_gone_when_the_trainer_was_killed(
    killed: Killed, kit: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After SIGKILL of the trainer no worker is left, and the next session frees the shared memory and says so once."""
    workers, memory = killed
    until(lambda: not any(map(alive, workers)))
    assert not any(map(alive, workers))
    monkeypatch.setattr(paddle_data, "free_segments", lambda: free_segments(memory))
    data = PaddleData()
    notes = []
    for _ in range(2):
        opened = data.open(DataLoader(kit.Noisy()), seed=1, epoch=0, batches=0, samples=0, state=None)
        notes.append([note for note in opened.notes if note.startswith("Freed")])
    assert list(memory.iterdir()) == []
    assert "shared memory" in notes[0][0]
    assert notes[1] == []


@pytest.mark.parametrize(
    "then",
    ["sys.exit(0)", "batches.close(); opened.close(); sys.exit(0)", "del loader; raise RuntimeError('the cell')"],
)
def test_nothing_hangs_and_nothing_is_left_when_the_program_ends(tmp_path: Path, then: str) -> None:
    """However it ends, in the middle of an epoch and of hour-long samples: no wait, no worker, no shared memory."""
    with trainer(tmp_path, then) as process:
        workers = workers_of(process)
        try:
            process.wait(timeout=120)
        finally:
            process.kill()
    until(lambda: not any(map(alive, workers)) and not segments_of(workers))
    assert not any(map(alive, workers))
    assert segments_of(workers) == []
