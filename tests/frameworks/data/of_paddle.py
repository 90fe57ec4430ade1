"""Paddle's words for the data tests: data sets that draw from everything there is, and loaders of all kinds."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import paddle
from paddle.framework import core
from paddle.io import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedBatchSampler,
    IterableDataset,
    RandomSampler,
    SequenceSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

from colabkeep.frameworks.paddle.data import PaddleData as Data
from colabkeep.frameworks.paddle.reading import PADDLE as KINDS

__all__ = [
    "KINDS",
    "ChainDataset",
    "Data",
    "DataLoader",
    "Dataset",
    "InOrder",
    "IterableDataset",
    "Noisy",
    "NoisyStream",
    "Shuffled",
]

InOrder, Shuffled = SequenceSampler, RandomSampler
seed = paddle.seed

UNSHARED: dict[str, Any] = {"use_shared_memory": False}  # of a loader whose workers send their batches through a pipe


def own_stream() -> Any:
    return repr([state.__getstate__() for state in paddle.get_rng_state()])


def draw() -> float:
    return paddle.rand([1]).item()


GLOBAL = core.default_cpu_generator()


def generator() -> Any:
    return core.Generator()


def draw_of(owner: Any) -> float:
    return owner.random()


def permutation(length: int) -> list[int]:
    return paddle.randperm(length).tolist()


def tensor(values: Any) -> Any:
    return np.array(values, dtype="float64")


def kinds_of_tensors() -> list[paddle.Tensor]:
    return [paddle.arange(3), paddle.ones([2, 2], dtype="bfloat16"), paddle.to_tensor(True)]


class Noisy(Dataset):
    """Augments each sample from five sources of randomness, two of them private and unseeded."""

    def __init__(self, length: int = 13) -> None:
        self.length = length
        self.private = {"numpy": np.random.default_rng(), "python": random.Random()}

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> np.ndarray:
        return tensor([index, *self.draws()])

    def draws(self) -> list[float]:
        own = self.private
        return [
            draw(),
            float(np.random.standard_normal()),
            random.gauss(0, 1),
            float(own["numpy"].random()),
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


def loader(dataset: Any, size: int | None = 3, *, sampler: Any = None, **words: Any) -> DataLoader:
    if sampler is None:
        return DataLoader(dataset, batch_size=size, **words)
    last = {"drop_last": words.pop("drop_last")} if "drop_last" in words else {}
    return by_batches(dataset, BatchSampler(sampler=sampler, batch_size=size, **last), **words)


def by_batches(dataset: Any, batches: Any, **words: Any) -> DataLoader:
    return DataLoader(dataset, batch_sampler=batches, **words)


def batches_of(kind: Any, sampler: Any, size: int = 3) -> Any:
    return kind(sampler=sampler, batch_size=size)


def tensors(*arrays: Any) -> TensorDataset:
    return TensorDataset([paddle.to_tensor(array) for array in arrays])


COLLATE_RNG = np.random.RandomState()


def noisy_collate(items: list[np.ndarray]) -> paddle.Tensor:
    stacked = paddle.to_tensor(np.stack(items))
    stacked[:, 1] += random.random() + COLLATE_RNG.random_sample() + draw()
    return stacked


class OddLoader(DataLoader):
    """A subclass with a constructor that only its author understands."""

    def __init__(self, spell: str, *, wand: Any) -> None:
        super().__init__(wand, batch_size=len(spell), shuffle=True, collate_fn=self.stack)
        self.spell = spell

    def stack(self, items: list[np.ndarray]) -> np.ndarray:
        assert len(self.dataset) == self.dataset.length
        return np.stack(items)


LOADERS = {
    "one by one": lambda d: DataLoader(d, shuffle=True),
    "random, with replacement": lambda d: loader(d, sampler=RandomSampler(d, replacement=True, num_samples=20)),
    "fewer samples": lambda d: loader(d, sampler=RandomSampler(d, num_samples=9)),
    "weighted": lambda d: loader(d, sampler=WeightedRandomSampler(np.arange(1.0, 1 + len(d)), 20)),
    "weighted otherwise": lambda d: loader(d, sampler=WeightedRandomSampler(50.0 - np.arange(len(d)), 20)),
    "subset": lambda d: loader(d, sampler=SubsetRandomSampler([1, 3, 5, 7, 9, 11])),
    "distributed": lambda d: by_batches(d, DistributedBatchSampler(d, 3, num_replicas=2, rank=0, shuffle=True)),
    "an odd subclass": lambda d: OddLoader("hex", wand=d),
    "subset of a concatenation": lambda d: loader(Subset(ConcatDataset([d, d]), list(range(20))), shuffle=True),
}
