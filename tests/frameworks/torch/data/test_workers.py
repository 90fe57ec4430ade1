"""Loader workers: the same samples with any number of them, from any start method; none outlives the trainer."""

from __future__ import annotations

import os
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
import torch
from torch.utils.data import DataLoader, Sampler, TensorDataset, get_worker_info

import colabkeep
from colabkeep.frameworks.torch.data import TorchData

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def noisy_collate(items: list[torch.Tensor]) -> torch.Tensor:
    stacked = torch.stack(items)
    stacked[:, 1] += float(torch.rand(())) + np.random.random()
    return stacked


class Endless(Sampler):
    def __iter__(self):
        while True:
            yield from torch.randperm(13).tolist()


def test_any_number_of_workers_gives_the_same_samples(kit: SimpleNamespace) -> None:
    """0, 1 and 2 workers, changing between two sessions of one epoch: order and augmentation are the same bytes."""

    def loader(workers: int) -> DataLoader:
        return DataLoader(kit.Noisy(), 3, shuffle=True, num_workers=workers, collate_fn=noisy_collate)

    before = kit.fingerprint()
    whole = kit.read(loader(0))
    for first, stop, second in [(2, 2, 1), (1, 3, 0), (0, 1, 2)]:
        stopped = kit.read(loader(first), stop=stop)
        resumed = kit.read(loader(second), after=stopped)
        assert torch.equal(resumed.rows, whole.rows)
        assert resumed.samples == 13
    assert kit.fingerprint() == before


def test_workers_of_one_item_at_a_time_and_of_an_endless_sampler_agree_too(kit: SimpleNamespace) -> None:
    """batch_size=None, and a sampler without an end, with workers that read ahead of the loop."""
    single = [DataLoader(kit.Noisy(), batch_size=None, shuffle=True, num_workers=workers) for workers in (0, 2)]
    assert torch.equal(kit.read(single[0]).rows, kit.read(single[1]).rows)
    endless = [DataLoader(kit.Noisy(), 3, sampler=Endless(), num_workers=workers) for workers in (0, 2)]
    whole = kit.read(endless[0], stop=9)
    assert torch.equal(kit.read(endless[1], after=kit.read(endless[1], stop=4), stop=9).rows, whole.rows)


class Whoami(TensorDataset):
    """Each sample tells which process loaded it, and which epoch it was told."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, float(np.random.random()), os.getpid(), self.epoch], dtype=torch.float64)


def test_persistent_workers_live_through_all_epochs_and_hear_of_each(kit: SimpleNamespace) -> None:
    """Three epochs, the second left in the middle, are read by the same two processes, and `set_epoch` reaches them."""
    data = TorchData()
    loader = DataLoader(Whoami(torch.arange(12)), 3, shuffle=True, num_workers=2, persistent_workers=True)
    reads = [
        kit.read(loader, epoch=0, data=data),
        kit.read(loader, epoch=1, stop=1, data=data),
        kit.read(loader, epoch=2, data=data),
    ]
    workers = {int(pid) for result in reads for pid in result.rows[:, 2]}
    assert len(workers) == 2
    assert os.getpid() not in workers
    for epoch, result in enumerate(reads):
        alone = kit.read(DataLoader(Whoami(torch.arange(12)), 3, shuffle=True), epoch=epoch, stop=len(result.values))
        assert torch.equal(alone.rows[:, [0, 1, 3]], result.rows[:, [0, 1, 3]])
        assert set(result.rows[:, 3].tolist()) == {epoch}
    assert loader._iterator is None
    data.close()
    assert not any(alive(pid) for pid in workers)


def test_persistent_workers_end_with_the_users_loader(kit: SimpleNamespace) -> None:
    """A loader that the user lets go of takes its workers with it, as it would without us."""
    data = TorchData()
    loader = DataLoader(Whoami(torch.arange(12)), 3, num_workers=1, persistent_workers=True)
    workers = {int(pid) for pid in kit.read(loader, data=data).rows[:, 2]}
    assert all(alive(pid) for pid in workers)
    del loader
    assert not any(alive(pid) for pid in workers)


def test_an_epoch_left_in_the_middle_leaves_no_worker(kit: SimpleNamespace) -> None:
    """Breaking out of the loop ends the workers, not some garbage collection later."""
    data = TorchData()
    opened = data.open(
        DataLoader(Whoami(torch.arange(12)), 3, num_workers=1), seed=1, epoch=0, batches=0, samples=0, state=None
    )
    batches = iter(opened)
    worker = int(next(batches).value[0, 2])
    assert alive(worker)
    opened.close()
    assert not alive(worker)


class TellsOfTheWorker(TensorDataset):
    def __getitem__(self, index: int) -> torch.Tensor:
        info = get_worker_info()
        return torch.tensor([index, info.dataset is self, self.offset, self.rng.random()], dtype=torch.float64)


def give_a_generator(worker: int) -> None:
    dataset = get_worker_info().dataset
    dataset.offset = 100
    dataset.rng = np.random.default_rng()


def test_worker_init_fn_meets_the_users_own_data_set(kit: SimpleNamespace) -> None:
    """`get_worker_info().dataset` is the user's object, and generators that `worker_init_fn` makes are seeded too."""
    reads = [
        kit.read(DataLoader(TellsOfTheWorker(torch.arange(4)), 2, num_workers=workers, worker_init_fn=give_a_generator))
        for workers in (1, 2)
    ]
    assert reads[0].rows[:, 1:3].tolist() == [[1, 100]] * 4
    assert torch.equal(reads[0].rows, reads[1].rows)


class Broken(TensorDataset):
    def __getitem__(self, index: int) -> Any:
        raise KeyError("broken sample")


def test_an_error_in_a_worker_arrives_with_its_trace(kit: SimpleNamespace) -> None:
    """The user's exception and the place in the user's code come through."""
    with pytest.raises(KeyError, match="broken sample"):
        kit.read(DataLoader(Broken(torch.arange(4)), 2, num_workers=1))


def test_an_interrupt_does_not_reach_the_workers(kit: SimpleNamespace) -> None:
    """The cell is interrupted, all processes get the signal: the loop can still finish its epoch and save."""
    opened = TorchData().open(
        DataLoader(Whoami(torch.arange(12)), 3, num_workers=1), seed=1, epoch=0, batches=0, samples=0, state=None
    )
    batches = iter(opened)
    worker = int(next(batches).value[0, 2])
    os.kill(worker, signal.SIGINT)
    assert len(list(batches)) == 3


class SlowAtFirst(TensorDataset):
    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.3 if index == 0 else 0)
        return torch.tensor([index])


def test_batches_out_of_order_are_put_in_order_and_that_is_said(kit: SimpleNamespace) -> None:
    """in_order=False lets batches overtake each other, so that no position would mean anything."""
    loader = DataLoader(SlowAtFirst(torch.arange(8)), 2, num_workers=2)
    vars(loader)["in_order"] = False  # an argument of newer torch versions
    result = kit.read(loader)
    assert result.indices == list(range(8))
    assert "in_order=False" in result.notes[0]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


NOTEBOOK = """
import os, sys, time
import numpy as np, torch
from torch.utils.data import DataLoader, Dataset
from colabkeep.frameworks.torch.data import TorchData

class Cell(Dataset):
    shared = np.random.default_rng()
    def __init__(self):
        self.table = torch.arange(6, dtype=torch.float64)
    def __len__(self):
        return 6
    def __getitem__(self, index):
        time.sleep({pause})
        return torch.stack([self.table[index], torch.tensor(self.shared.random()), torch.tensor(helper())])

def helper():
    return float(np.random.random())

def init(worker):
    os.write(1, b"worker %d\\n" % os.getpid())  # in one piece: two of them may write at once

if __name__ == "__main__":
    method = sys.argv[1]
    rows = []
    for workers in ({counts}):
        loader = DataLoader(Cell(), 2, shuffle=True, num_workers=workers, collate_fn=lambda items: torch.stack(items),
                            multiprocessing_context=method if workers else None, worker_init_fn=init)
        opened = TorchData().open(loader, seed=1, epoch=0, batches=0, samples=0, state=None)
        rows.append(torch.cat([batch.value for batch in opened]))
        shared = loader.dataset.table.is_shared()
    print("equal", torch.equal(rows[0], rows[-1]), "shared", shared, flush=True)
"""


# A script in another folder finds the same colabkeep as this test does, installed or not.
ENVIRON = {**os.environ, "PYTHONPATH": str(Path(colabkeep.__file__).parents[1])}


def notebook(folder: Path, pause: float, counts: str) -> Path:
    path = folder / "cell.py"
    path.write_text(textwrap.dedent(NOTEBOOK).format(pause=pause, counts=counts))
    return path


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_classes_of_a_notebook_cell_reach_workers_of_every_start_method(tmp_path: Path, method: str) -> None:
    """Data set, lambda and functions defined in `__main__` work where plain torch could not even load them, and the
    data set's tensors are shared with the workers, not copied to each."""
    script = notebook(tmp_path, 0, "0, 2")
    command = [sys.executable, str(script), method]
    out = subprocess.run(command, env=ENVIRON, capture_output=True, text=True, check=False)
    assert out.stdout.splitlines()[-1:] == ["equal True shared True"], out.stderr
    assert out.stdout.count("worker") == 2


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_are_gone_when_the_trainer_is_killed(tmp_path: Path, method: str) -> None:
    """After SIGKILL of the trainer none of its workers is left, even one in the middle of a slow sample."""
    script = notebook(tmp_path, 3600, "2,")
    command = [sys.executable, str(script), method]
    quiet = subprocess.DEVNULL  # the resource tracker of a killed trainer has things to say
    with subprocess.Popen(command, env=ENVIRON, stdout=subprocess.PIPE, stderr=quiet, text=True) as trainer:
        assert trainer.stdout is not None
        workers = [int(trainer.stdout.readline().split()[1]) for _ in range(2)]
        assert all(map(alive, workers))
        trainer.kill()
        deadline = time.monotonic() + 30
        while any(map(alive, workers)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not any(map(alive, workers))
