"""Data sets that draw from everything one can draw from, and a reader that stops and resumes."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from colabkeep.frameworks.torch.data import TorchData


class Noisy(Dataset):
    """Augments each sample from six sources of randomness, three of them private and unseeded."""

    def __init__(self, length: int = 13) -> None:
        self.length = length
        self.private = {"numpy": np.random.default_rng(), "torch": torch.Generator(), "python": random.Random()}
        self.private["torch"].seed()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, *self.draws()], dtype=torch.float64)

    def draws(self) -> list[float]:
        own = self.private
        return [
            float(torch.rand(())),
            float(np.random.standard_normal()),
            random.gauss(0, 1),
            float(own["numpy"].random()),
            float(torch.rand((), generator=own["torch"])),
            own["python"].random(),
        ]


class NoisyStream(IterableDataset):
    """The same, as a stream that each worker reads its share of."""

    def __init__(self, length: int = 13) -> None:
        self.source = Noisy(length)

    def __iter__(self):
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for index in range(first, self.source.length, step):
            yield self.source[index]


@dataclass
class Read:
    """What one session read."""

    values: list[Any] = field(default_factory=list)
    samples: int = 0
    state: Any = None
    notes: list[str] = field(default_factory=list)
    length: int | None = None

    @property
    def rows(self) -> torch.Tensor:
        return torch.cat([value.reshape(-1, value.shape[-1]) for value in self.values])

    @property
    def indices(self) -> list[int]:
        return [int(row[0]) for row in self.rows]


def read(
    loader: Any, *, seed: int = 5, epoch: int = 1, after: Read | None = None, stop: int | None = None, data: Any = None
) -> Read:
    """Read an epoch, from where `after` stopped, up to `stop` batches of it; as one session of a run would."""
    adapter = data or TorchData()
    done = after or Read()
    opened = adapter.open(
        loader, seed=seed, epoch=epoch, batches=len(done.values), samples=done.samples, state=done.state
    )
    result = Read(list(done.values), done.samples, length=opened.length)
    batches = iter(opened)
    while stop is None or len(result.values) < stop:
        batch = next(batches, None)
        if batch is None:
            break
        result.values.append(batch.value)
        result.samples += batch.samples or 0
    result.state, result.notes = opened.state(), list(opened.notes)
    batches.close()
    opened.close()
    if data is None:
        adapter.close()
    return result


def fingerprint() -> tuple[Any, ...]:
    """Where the global random streams are."""
    legacy = np.random.get_state()
    return torch.get_rng_state().numpy().tobytes(), legacy[1].tobytes(), legacy[2:], random.getstate()


@pytest.fixture
def kit() -> SimpleNamespace:
    return SimpleNamespace(
        Noisy=Noisy, NoisyStream=NoisyStream, Read=Read, read=read, fingerprint=fingerprint, data=TorchData
    )
