"""An order too long to be listed is followed as it goes, and resumed exactly all the same."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, Sampler, SequentialSampler

from colabkeep.core.errors import Incompatible
from colabkeep.frameworks.shared import loaders
from colabkeep.frameworks.torch.data import TorchData

DRAWS = int(1e10)  # those of minGPT's trainer


class Counted(RandomSampler):
    """minGPT's sampler, which knows how many indices it was asked for."""

    asked = 0

    def __iter__(self):
        for index in super().__iter__():
            self.asked += 1
            assert self.asked < 10_000, "somebody lists it"
            yield index


class Huge(Dataset):
    """More samples than any memory holds indices of."""

    def __len__(self) -> int:
        return DRAWS

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index)], dtype=torch.float64)


LOADERS = {
    "draws": lambda d: DataLoader(d, 3, sampler=Counted(d, replacement=True, num_samples=DRAWS)),
    "more than a length can say": lambda d: DataLoader(d, 3, sampler=Counted(d, replacement=True, num_samples=10**20)),
    "drop_last": lambda d: DataLoader(d, 3, sampler=Counted(d, replacement=True, num_samples=DRAWS), drop_last=True),
    "batches": lambda d: DataLoader(
        d, batch_sampler=BatchSampler(Counted(d, replacement=True, num_samples=DRAWS), 3, False)
    ),
    "workers": lambda d: DataLoader(
        d, 3, sampler=Counted(d, replacement=True, num_samples=DRAWS), num_workers=1, multiprocessing_context="fork"
    ),
}


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("name", LOADERS)
def test_a_sampler_of_ten_billion_draws_is_never_listed_and_resumes(kit: SimpleNamespace, name: str) -> None:
    """It opens at once, ends nowhere near, and goes on with the very samples that were still to come."""
    whole = kit.read(LOADERS[name](kit.Noisy()), stop=20)
    assert whole.length is None
    for stop in (1, 11, 19):
        stopped = kit.read(LOADERS[name](kit.Noisy()), stop=stop)
        resumed = kit.read(LOADERS[name](kit.Noisy()), after=stopped, stop=20)
        assert np.array_equal(resumed.rows, whole.rows)


def test_a_loader_without_a_shuffle_knows_its_place_however_long_it_is(kit: SimpleNamespace) -> None:
    """Ten billion indices in a row are counted, not listed: the length is known, and any place is found at once."""
    whole = kit.read(DataLoader(Huge(), 64), stop=5)
    assert whole.length == -(-DRAWS // 64)
    assert kit.read(DataLoader(Huge(), 64), after=kit.read(DataLoader(Huge(), 64), stop=2), stop=5).indices == list(
        range(5 * 64)
    )
    far = TorchData().open(
        DataLoader(Huge(), 64, drop_last=True), seed=1, epoch=0, batches=10**8, samples=64 * 10**8, state=None
    )
    assert next(iter(far)).value[:2, 0].tolist() == [64e8, 64e8 + 1]
    assert far.length == DRAWS // 64


def test_a_far_place_costs_little_memory() -> None:
    """To get to the place after a million draws, they are drawn again and forgotten at once."""
    loader = DataLoader(range(1000), 64, sampler=RandomSampler(range(1000), replacement=True, num_samples=DRAWS))
    tracemalloc.start()
    opened = TorchData().open(loader, seed=1, epoch=0, batches=15_625, samples=10**6, state=None)
    next(iter(opened))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4e6


def test_a_listed_order_takes_eight_bytes_for_an_index() -> None:
    """A million indices that wait for the whole epoch are machine integers; as Python's they took 54 bytes each."""
    loader = DataLoader(range(1000), 64, sampler=RandomSampler(range(1000), replacement=True, num_samples=10**6))
    tracemalloc.start()
    opened = TorchData().open(loader, seed=1, epoch=0, batches=0, samples=0, state=None)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert opened.length == 15_625
    assert kept < 12e6


class Odd(Sampler):
    """Gives what a user's data set takes for an index."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __iter__(self):
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


class Echo(Dataset):
    """Gives the index itself."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: Any) -> Any:
        return index


@pytest.mark.parametrize(
    "items",
    [[3, 1, 2], [3, "b", (1, 2)], [True, 2, 3], [2**70, 1, 0], [torch.tensor(2), torch.tensor(1)]],
    ids=["integers", "mixed", "a bool", "beyond 64 bits", "tensors"],
)
def test_an_index_is_what_the_sampler_gave(items: list[Any]) -> None:
    """Of whatever type; only plain integers are packed, and come out as such."""
    loader = DataLoader(Echo(), batch_size=None, sampler=Odd(items), collate_fn=lambda value: value)
    opened = TorchData().open(loader, seed=1, epoch=0, batches=0, samples=0, state=None)
    values = [batch.value for batch in opened]
    assert values == items
    assert list(map(type, values)) == list(map(type, items))


def test_other_draws_are_refused(kit: SimpleNamespace) -> None:
    """What was consumed has a digest, also where the rest is not known yet."""
    stopped = kit.read(LOADERS["draws"](kit.Noisy()), stop=7)
    other = DataLoader(kit.Noisy(), 3, sampler=Counted(kit.Noisy(12), replacement=True, num_samples=DRAWS))
    with pytest.raises(Incompatible, match="Counted"):
        kit.read(other, after=stopped)


def test_the_state_of_an_earlier_batch_is_known(kit: SimpleNamespace) -> None:
    """After an error the loop stands behind the last step: what is saved is the state of that, not of what was read."""
    opened = TorchData().open(LOADERS["draws"](kit.Noisy()), seed=5, epoch=1, batches=0, samples=0, state=None)
    states = [opened.state()]
    for batch, _ in zip(opened, range(9), strict=False):
        assert batch.samples == 3
        states.append(opened.state())
    assert [opened.state(batches) for batches in range(10)] == states
    assert len({state["order"] for state in states}) == 10
    assert not opened.positional


def test_a_place_stored_when_every_order_was_listed_still_fits(
    kit: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier version listed orders that are followed now; its hash, of the whole order, is met by listing once
    more."""
    for loader in (
        lambda: DataLoader(kit.Noisy(), 3, shuffle=True),
        lambda: DataLoader(kit.Noisy(), 3),
    ):
        stopped = kit.read(loader(), stop=2)
        del stopped.state["followed"]  # what it did not write
        monkeypatch.setattr(loaders, "_LISTED", 5)
        assert kit.read(loader(), after=stopped).indices == kit.read(loader(), stop=5).indices
        monkeypatch.undo()


def test_orders_listed_and_followed_are_the_same(kit: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the bound lies changes no sample."""
    loader = DataLoader(kit.Noisy(), 3, sampler=RandomSampler(range(13), replacement=True, num_samples=31))
    listed = kit.read(loader)
    monkeypatch.setattr(loaders, "_LISTED", 5)
    followed = kit.read(loader)
    assert (listed.length, followed.length) == (11, None)
    assert np.array_equal(listed.rows, followed.rows)


def test_a_subclass_of_the_sampler_in_a_row_may_do_otherwise(kit: SimpleNamespace) -> None:
    """Only what really counts through a range is taken for it."""

    class Backwards(SequentialSampler):
        def __iter__(self):
            return iter(range(len(self.data_source) - 1, -1, -1))

    class Late(SequentialSampler):
        def __iter__(self):
            counted = iter(range(len(self.data_source)))
            next(counted)
            return counted

    assert kit.read(DataLoader(kit.Noisy(), 3, sampler=Backwards(kit.Noisy()))).indices == list(range(12, -1, -1))
    assert kit.read(DataLoader(kit.Noisy(), 3, sampler=Late(kit.Noisy()))).indices == list(range(1, 13))
