"""Loader workers: the same samples with any number of them, from any start method; none outlives the trainer."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import colabkeep
from tests.frameworks.data.reading import alive

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


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
