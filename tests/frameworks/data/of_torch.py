"""Torch's words for the data tests: data sets that draw from everything there is, and loaders of all kinds."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)
from torch.utils.data.distributed import DistributedSampler

from colabkeep.frameworks.torch.data import TORCH as KINDS
from colabkeep.frameworks.torch.data import TorchData as Data

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

InOrder, Shuffled = SequentialSampler, RandomSampler
seed = torch.manual_seed

UNSHARED: dict[str, Any] = {}  # of a loader whose workers send their batches through a pipe


def own_stream() -> Any:
    return torch.get_rng_state().numpy().tobytes()


def draw() -> float:
    return float(torch.rand(()))


GLOBAL = torch.default_generator


def generator() -> Any:
    return torch.Generator()


def draw_of(owner: Any) -> float:
    return float(torch.rand((), generator=owner))


def permutation(length: int) -> list[int]:
    return torch.randperm(length).tolist()


def tensor(values: Any) -> torch.Tensor:
    return torch.as_tensor(np.array(values, dtype="float64"))


def kinds_of_tensors() -> list[torch.Tensor]:
    return [torch.arange(3), torch.ones(2, 2, dtype=torch.bfloat16), torch.tensor(True), torch.zeros(0, 2)]


class Noisy(Dataset):
    """Augments each sample from six sources of randomness, three of them private and unseeded."""

    def __init__(self, length: int = 13) -> None:
        self.length = length
        self.private = {"numpy": np.random.default_rng(), "torch": torch.Generator(), "python": random.Random()}
        self.private["torch"].seed()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return tensor([index, *self.draws()])

    def draws(self) -> list[float]:
        own = self.private
        return [
            draw(),
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


def loader(dataset: Any, size: int | None = 3, *, sampler: Any = None, **words: Any) -> DataLoader:
    return DataLoader(dataset, size, sampler=sampler, **words)


def by_batches(dataset: Any, batches: Any, **words: Any) -> DataLoader:
    return DataLoader(dataset, batch_sampler=batches, **words)


def batches_of(kind: Any, sampler: Any, size: int = 3) -> Any:
    return kind(sampler, size, False)


def tensors(*arrays: Any) -> TensorDataset:
    return TensorDataset(*map(torch.as_tensor, arrays))


COLLATE_RNG = np.random.RandomState()


def noisy_collate(items: list[torch.Tensor]) -> torch.Tensor:
    stacked = torch.stack(items)
    stacked[:, 1] += random.random() + COLLATE_RNG.random_sample() + draw()
    return stacked


class OddLoader(DataLoader):
    """A subclass with a constructor that only its author understands."""

    def __init__(self, spell: str, *, wand: Any) -> None:
        super().__init__(wand, batch_size=len(spell), shuffle=True, collate_fn=self.stack)
        self.spell = spell

    def stack(self, items: list[torch.Tensor]) -> torch.Tensor:
        assert len(self.dataset) == self.dataset.length
        return torch.stack(items)


LOADERS = {
    "one by one": lambda d: DataLoader(d, shuffle=True),
    "random, with replacement": lambda d: loader(d, sampler=RandomSampler(d, replacement=True, num_samples=20)),
    "fewer samples": lambda d: loader(d, sampler=RandomSampler(d, num_samples=9)),
    "weighted": lambda d: loader(d, sampler=WeightedRandomSampler([1.0 + i for i in range(len(d))], 20)),
    "weighted otherwise": lambda d: loader(d, sampler=WeightedRandomSampler([50.0 - i for i in range(len(d))], 20)),
    "subset": lambda d: loader(d, sampler=SubsetRandomSampler([1, 3, 5, 7, 9, 11])),
    "distributed": lambda d: loader(d, sampler=DistributedSampler(d, num_replicas=1, rank=0)),
    "an odd subclass": lambda d: OddLoader("hex", wand=d),
    "subset of a concatenation": lambda d: loader(Subset(ConcatDataset([d, d]), list(range(20))), shuffle=True),
    "shuffle with a generator": lambda d: loader(d, shuffle=True, generator=torch.Generator()),
    "a batch sampler of torch's": lambda d: by_batches(d, BatchSampler(RandomSampler(d), 4, False)),
}
