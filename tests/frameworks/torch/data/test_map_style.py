"""What torch alone has: loaders of whole batches, a generator in the loader, plain data that is left as it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, Dataset, RandomSampler, Subset, TensorDataset

from colabkeep.frameworks.torch.data import Adapted, TorchData
from tests.frameworks.data.of_torch import noisy_collate


class Batched(Dataset):
    """Loads whole batches at once, as columnar data sets do."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: Any) -> torch.Tensor:
        return torch.stack([self.source[i] for i in index])

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        np.random.random()
        return [self.source[i] for i in indices]


START: Any = {"seed": 5, "epoch": 0, "batches": 0, "samples": 0, "state": None}

LOADERS = {
    "a batch sampler of torch's": lambda d: DataLoader(d, batch_sampler=BatchSampler(RandomSampler(d), 4, False)),
    "batch_size=None": lambda d: DataLoader(d, batch_size=None, shuffle=True),
    "batch_size=None, sampler of batches": lambda d: DataLoader(
        Batched(d), batch_size=None, sampler=BatchSampler(RandomSampler(d), 4, False)
    ),
    "__getitems__": lambda d: DataLoader(Batched(d), 3, shuffle=True),
}


@pytest.mark.parametrize("name", LOADERS)
def test_consumed_and_resumed_is_what_one_session_would_have_read(kit: SimpleNamespace, name: str) -> None:
    """For each place to stop: the same samples, with the same bytes, in the same order."""
    whole = kit.read(LOADERS[name](kit.Noisy()))
    for stop in range(len(whole.values) + 1):
        kit.seed_all(stop)
        stopped = kit.read(LOADERS[name](kit.Noisy()), stop=stop)
        assert np.array_equal(kit.read(LOADERS[name](kit.Noisy()), after=stopped).rows, whole.rows)


def test_the_loaders_own_generator_is_left_alone(kit: SimpleNamespace) -> None:
    """Torch shuffles with it; here the order is a function of seed and epoch."""
    orders = []
    for seed in (3, 4):
        generator = torch.Generator()
        generator.manual_seed(seed)
        before = generator.get_state().tolist()
        loader = DataLoader(kit.Noisy(), 3, shuffle=True, generator=generator)
        orders.append([batch.value[:, 0].tolist() for batch in TorchData().open(loader, **START)])
        assert generator.get_state().tolist() == before
    assert orders[0] == orders[1]


@pytest.mark.parametrize(
    ("dataset", "quiet"),
    [
        (TensorDataset(torch.arange(9)), True),
        (list(range(9)), True),
        (range(9), True),
        (np.arange(9), True),
        (torch.arange(9), True),
        (Subset(TensorDataset(torch.arange(9)), [1, 2]), True),
        (ConcatDataset([TensorDataset(torch.arange(9)), range(3)]), True),
        (Subset(type("Own", (list,), {})(range(9)), [1, 2]), False),
        (type("Own", (TensorDataset,), {})(torch.arange(9)), False),
    ],
)
def test_nothing_is_wrapped_around_data_that_cannot_draw(dataset: Any, quiet: bool) -> None:
    """Plain tensors, arrays and lists are loaded as torch would load them; whatever may draw is seeded."""
    adapted = Adapted(DataLoader(dataset, 2), epoch=0)
    assert (adapted._loader.dataset is dataset) is quiet
    drawing = DataLoader(dataset, 2, collate_fn=noisy_collate)
    assert Adapted(drawing, epoch=0)._loader.dataset is not dataset
