"""Loaders of other libraries over torch's, and the time that reading again takes."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch

from colabkeep.frameworks.shared.iterables import IterableData
from colabkeep.frameworks.torch.data import TENSORS, TORCH
from tests.environments import TESTS
from tests.programs import run


class Foreign:
    """Not a DataLoader."""

    def __iter__(self):
        return iter(torch.ones(13, 1, 2))


def test_the_expected_time_comes_from_the_time_it_took(kit: SimpleNamespace) -> None:
    """The note names the batches and the time that reading them took in the session before."""
    ticks = iter(range(10_000))
    data = IterableData(TORCH, TENSORS, timer=lambda: float(next(ticks)) * 30)
    stopped = kit.read(Foreign(), stop=8, data=data)
    resumed = kit.read(Foreign(), after=stopped, data=data)
    assert resumed.notes[0].endswith("reading 8 batches again without training, about 4 min.")
    assert resumed.notes[1] == "Read 8 batches again in 4 min."


STATEFUL_LOADER = """
import sys, torch, warnings
sys.path[:0] = {path!r}
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader
from tests.frameworks.data.of_torch import Noisy, NoisyStream
from tests.frameworks.data.reading import open_kit
read = open_kit("torch").read

class Positions(torch.utils.data.IterableDataset):
    position = 0
    def __iter__(self):
        while self.position < 13:
            self.position += 1
            yield torch.tensor([self.position - 1.0])
    def state_dict(self):
        return {{"position": self.position}}
    def load_state_dict(self, state):
        self.position = state["position"]

for workers, stop in [(0, 2), (2, 3)]:
    make = lambda workers: StatefulDataLoader(Noisy(), 3, shuffle=True, num_workers=workers)
    whole = read(make(1))
    resumed = read(make(0), after=read(make(workers), stop=stop))
    assert (whole.rows == resumed.rows).all() and sorted(whole.indices) == list(range(13))
for workers in (0, 2):
    make = lambda: StatefulDataLoader(NoisyStream(), 3, num_workers=workers)
    resumed = read(make(), after=read(make(), after=read(make(), stop=1), stop=2))  # twice
    assert (read(make()).rows == resumed.rows).all() and "reading 2 batches again" in resumed.notes[0]
make = lambda: StatefulDataLoader(Positions(), 3, num_workers=2)
resumed = read(make(), after=read(make(), stop=2))
assert sorted(resumed.indices) == sorted([*range(13)] * 2), resumed.indices
assert "its own state" in resumed.notes[0]
print("exact")
"""


@pytest.mark.skipif(find_spec("torchdata") is None, reason="torchdata is not installed")
def test_torchdatas_stateful_loader_is_exact_with_augmentation() -> None:
    """It restores an order but no augmentation by itself; here both are exact. (In a process of its own: importing
    torchdata exchanges torch's samplers.)"""
    path = [str(TESTS.parent), *sys.path]
    code = STATEFUL_LOADER.format(path=path)
    out = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert out.stdout.split() == ["exact"], out.stderr


STREAMED = """
from datasets import IterableDataset
from torch.utils.data import DataLoader
from tests.frameworks.data.reading import open_kit
read = open_kit("torch").read

def numbers():
    for number in range(20):
        yield {"x": float(number)}

def loader(shuffled):
    stream = IterableDataset.from_generator(numbers).with_format("torch")
    return DataLoader(stream.shuffle(seed=3, buffer_size=7) if shuffled else stream, 3)

def rows(result):
    return [x for value in result.values for x in value["x"].tolist()]

for shuffled in (False, True):
    whole = rows(read(loader(shuffled), epoch=0))
    again = loader(shuffled)
    resumed = read(again, epoch=0, after=read(loader(shuffled), epoch=0, stop=3))
    assert rows(resumed) == whole and sorted(whole) == list(range(20))
    assert bool(resumed.notes) is shuffled
    assert rows(read(again, epoch=1)) == rows(read(loader(shuffled), epoch=1))
print("exact")
"""


@pytest.mark.skipif(find_spec("datasets") is None, reason="Hugging Face datasets is not installed")
def test_streamed_hugging_face_data_loses_no_sample() -> None:
    """It goes on from its own state; with a shuffle buffer, which that state leaves out, it is read again instead."""
    out = run(STREAMED)
    assert out.stdout.split() == ["exact"], out.stderr
