"""What deterministic data costs: a seed per batch, and the listing of an epoch's order."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import torch
from measuring import Figure, Setting, figure
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset

from colabkeep.frameworks import find_framework

_BATCH = 4


class Drawing(Dataset[Any]):
    """Each sample draws, as an augmentation does, and tells how much CPU time its thread has used: in a worker,
    that is all but the feeding of the queue, which depends on who happens to wait."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, float]:
        return torch.rand(2), time.thread_time()


def run(setting: Setting) -> list[Figure]:
    """The same loader, iterated bare and positioned by colabkeep."""
    torch.set_num_threads(1)
    batches = 20 if setting.quick else 2000
    drawing, quiet = Drawing(batches * _BATCH), TensorDataset(torch.randn(batches * _BATCH, 2))
    here = DataLoader(drawing, batch_size=_BATCH, shuffle=True)
    still = DataLoader(quiet, batch_size=_BATCH, shuffle=True)
    worker = DataLoader(drawing, batch_size=_BATCH, shuffle=True, num_workers=1)
    main, tensors, behind = [], [], []
    for _ in range(setting.rounds(15)):
        main.append((_seconds(_positioned(here)) - _seconds(here)) / batches * 1e6)
        tensors.append((_seconds(_positioned(still)) - _seconds(still)) / batches * 1e6)
        behind.append((_used(_positioned(worker)) - _used(worker)) / batches * 1e6)
    return [
        figure("a seed per batch, in the main process", "µs per batch", main, goal=80),
        figure("a seed per batch, in a worker (CPU time of its main thread)", "µs per batch", behind, goal=20),
        figure("TensorDataset, which draws nothing: handing on", "µs per batch", tensors),
        *_listing(setting),
    ]


def _positioned(loader: DataLoader[Any]) -> Iterable[Any]:
    data = find_framework([torch.nn.Linear(1, 1)]).data()
    opened = data.open(loader, seed=0, epoch=0, batches=0, samples=0, state=None)
    return (batch.value for batch in opened)


def _seconds(loader: Iterable[Any]) -> float:
    start = time.perf_counter()
    for _ in loader:
        pass
    return time.perf_counter() - start


def _used(loader: Iterable[Any]) -> float:
    """CPU seconds that the worker used from its first sample to its last."""
    told = [float(value) for _, used in loader for value in used]
    return max(told) - min(told)


def _listing(setting: Setting) -> list[Figure]:
    samples = 1000 if setting.quick else 1_000_000
    data = range(samples)
    loader: DataLoader[Any] = DataLoader(data, batch_size=64, sampler=RandomSampler(data))  # type: ignore[arg-type]
    taken, bare = [], []
    for _ in range(setting.rounds(7)):
        start = time.perf_counter()
        list(RandomSampler(data))
        bare.append(time.perf_counter() - start)
        start = time.perf_counter()
        _positioned(loader)
        taken.append(time.perf_counter() - start)
    return [
        figure(f"{samples} samples: listed by the bare sampler", "s", bare),
        figure(f"{samples} samples: listed, hashed, ready to be read", "s", taken, goal=0.5),
    ]
