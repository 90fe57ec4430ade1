"""A map-style DataLoader, stopped anywhere, goes on with exactly the samples that were still to come."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from colabkeep.core.errors import Incompatible
from colabkeep.frameworks.torch.data import Adapted, TorchData


class OwnGenerator(Sampler):
    """A user's sampler with a private, unseeded NumPy generator."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.rng = np.random.default_rng()

    def __iter__(self):
        yield from self.rng.permutation(self.length).tolist()

    def __len__(self) -> int:
        return self.length


class BySize(Sampler):
    """A user's batch sampler without a length: batches of 1, 2, 3, … samples, shuffled with Python's `random`."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self):
        order = list(range(self.length))
        random.shuffle(order)
        size = 1
        while order:
            yield order[:size]
            order, size = order[size:], size + 1


class Endless(Sampler):
    """A sampler that never ends; perhaps one that claims it does."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self):
        while True:
            yield from torch.randperm(self.length).tolist()


class EndlessWithLength(Endless):
    def __len__(self) -> int:
        return self.length


class OddLoader(DataLoader):
    """A subclass with a constructor that only its author understands."""

    def __init__(self, spell: str, *, wand: Any) -> None:
        super().__init__(wand, batch_size=len(spell), shuffle=True, collate_fn=self.stack)
        self.spell = spell

    def stack(self, items: list[torch.Tensor]) -> torch.Tensor:
        assert len(self.dataset) == self.dataset.length
        return torch.stack(items)


LOADERS = {
    "shuffle": lambda d: DataLoader(d, batch_size=3, shuffle=True),
    "no shuffle": lambda d: DataLoader(d, batch_size=3),
    "shuffle with a generator": lambda d: DataLoader(d, batch_size=3, shuffle=True, generator=torch.Generator()),
    "drop_last": lambda d: DataLoader(d, batch_size=3, shuffle=True, drop_last=True),
    "one by one": lambda d: DataLoader(d, shuffle=True),
    "random, with replacement": lambda d: DataLoader(d, 3, sampler=RandomSampler(d, replacement=True, num_samples=20)),
    "weighted": lambda d: DataLoader(d, 3, sampler=WeightedRandomSampler([1.0 + i for i in range(len(d))], 20)),
    "subset": lambda d: DataLoader(d, 3, sampler=SubsetRandomSampler([1, 3, 5, 7, 9, 11])),
    "distributed": lambda d: DataLoader(d, 3, sampler=DistributedSampler(d, num_replicas=2, rank=0)),
    "the user's sampler": lambda d: DataLoader(d, 3, sampler=OwnGenerator(len(d))),
    "a list as sampler": lambda d: DataLoader(d, 3, sampler=[4, 2, 2, 9, 12]),
    "the user's batch sampler": lambda d: DataLoader(d, batch_sampler=BySize(len(d))),
    "a batch sampler of torch's": lambda d: DataLoader(d, batch_sampler=BatchSampler(OwnGenerator(len(d)), 4, False)),
    "an odd subclass": lambda d: OddLoader("hex", wand=d),
    "batch_size=None": lambda d: DataLoader(d, batch_size=None, shuffle=True),
    "batch_size=None, sampler of batches": lambda d: DataLoader(
        Batched(d), batch_size=None, sampler=BatchSampler(RandomSampler(d), 4, False)
    ),
    "subset of a concatenation": lambda d: DataLoader(Subset(ConcatDataset([d, d]), range(20)), 3, shuffle=True),
    "__getitems__": lambda d: DataLoader(Batched(d), 3, shuffle=True),
    "collate that draws": lambda d: DataLoader(d, 3, shuffle=True, collate_fn=noisy_collate),
}


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


COLLATE_RNG = np.random.RandomState()


def noisy_collate(items: list[torch.Tensor]) -> torch.Tensor:
    stacked = torch.stack(items)
    stacked[:, 1] += random.random() + COLLATE_RNG.random_sample() + float(torch.rand(()))
    return stacked


@pytest.mark.parametrize("name", LOADERS)
def test_consumed_and_resumed_is_what_one_session_would_have_read(kit: SimpleNamespace, name: str) -> None:
    """For each kind of sampler and each place to stop: the same samples, with the same bytes, in the same order."""
    whole = kit.read(LOADERS[name](kit.Noisy()))
    assert whole.length == (None if name == "the user's batch sampler" else len(whole.values))
    assert whole.samples == sum(value.shape[0] for value in whole.values) or name == "batch_size=None"
    for stop in range(len(whole.values) + 1):
        random.seed(stop), np.random.seed(stop), torch.manual_seed(stop)  # a new process is seeded differently
        stopped = kit.read(LOADERS[name](kit.Noisy()), stop=stop)
        resumed = kit.read(LOADERS[name](kit.Noisy()), after=stopped)
        assert torch.equal(resumed.rows, whole.rows)
        assert resumed.samples == whole.samples
        assert resumed.length == whole.length
        assert resumed.notes == []


@given(
    length=st.integers(1, 40),
    batch_size=st.integers(1, 9),
    drop_last=st.booleans(),
    cuts=st.lists(st.integers(0, 40), max_size=4),
    seed=st.integers(0, 2**63),
    epoch=st.integers(0, 10**6),
)
@settings(max_examples=60, deadline=None)
def test_any_number_of_interruptions_at_any_places_changes_nothing(
    length: int, batch_size: int, drop_last: bool, cuts: list[int], seed: int, epoch: int
) -> None:
    """However often an epoch is cut, every sample is seen once, in the order of the uninterrupted epoch."""
    values = torch.arange(length)

    def session(done: int, stop: int | None, state: Any) -> tuple[list[Any], Any]:
        loader = DataLoader(TensorDataset(values), batch_size=batch_size, shuffle=True, drop_last=drop_last)
        opened = TorchData().open(loader, seed=seed, epoch=epoch, batches=done, samples=done * batch_size, state=state)
        got = []
        for batch in opened:
            got.append(batch.value[0].tolist())
            if stop is not None and done + len(got) >= stop:
                break
        return got, opened.state()

    whole, _ = session(0, None, None)
    pieces: list[Any] = []
    state = None
    for cut in sorted(min(cut, len(whole)) for cut in cuts):
        if cut > len(pieces):
            more, state = session(len(pieces), cut, state)
            pieces += more
    if len(pieces) * batch_size <= length:
        pieces += session(len(pieces), None, state)[0]
    assert pieces == whole
    seen = Counter(index for batch in whole for index in batch)
    assert set(seen.values()) <= {1}
    assert len(seen) == (length - length % batch_size if drop_last else length)


@pytest.mark.parametrize("endless", [Endless, EndlessWithLength])
def test_a_sampler_that_never_ends_is_followed_and_resumed(kit: SimpleNamespace, endless: Any) -> None:
    """It is not listed (that would not end either); its places are still exact, and its length is not made up."""

    def loader() -> DataLoader:
        return DataLoader(kit.Noisy(), batch_size=3, sampler=endless(13))

    whole = kit.read(loader(), stop=20)
    assert whole.length is None
    for stop in (1, 7, 19):
        stopped = kit.read(loader(), stop=stop)
        resumed = kit.read(loader(), after=stopped, stop=20)
        assert torch.equal(resumed.rows, whole.rows)
    other = DataLoader(kit.Noisy(), batch_size=3, sampler=endless(12))
    with pytest.raises(Incompatible):
        kit.read(other, after=kit.read(loader(), stop=7))


def test_epochs_and_seeds_have_orders_and_augmentation_of_their_own(kit: SimpleNamespace) -> None:
    """Another epoch, or another seed, is another order; the same is the same."""
    reads = [
        kit.read(DataLoader(kit.Noisy(), 3, shuffle=True), seed=seed, epoch=epoch)
        for seed, epoch in [(5, 0), (5, 1), (6, 0), (5, 0)]
    ]
    orders = [tuple(r.indices) for r in reads]
    assert len(set(orders)) == 3
    assert orders[0] == orders[3]
    assert torch.equal(reads[0].rows, reads[3].rows)
    still = [kit.read(DataLoader(kit.Noisy(), 3), epoch=epoch) for epoch in (0, 1)]
    assert still[0].indices == still[1].indices
    assert not torch.equal(still[0].rows, still[1].rows)


@pytest.mark.parametrize("name", [n for n in LOADERS if "replacement" not in n])
def test_reading_leaves_the_loops_random_numbers_alone(kit: SimpleNamespace, name: str) -> None:
    """Global streams, and the user's own generators, are after each batch where they were before it."""
    generator = torch.Generator()
    generator.manual_seed(3)
    dataset = kit.Noisy()
    loader = LOADERS[name](dataset)
    if name == "shuffle with a generator":
        loader = DataLoader(dataset, 3, shuffle=True, generator=generator)
    np.random.standard_normal()  # leaves half a pair
    before = kit.fingerprint(), generator.get_state().tolist(), dataset.private["numpy"].bit_generator.state
    opened = TorchData().open(loader, seed=5, epoch=0, batches=1, samples=3, state=None)
    for _ in opened:
        now = kit.fingerprint(), generator.get_state().tolist(), dataset.private["numpy"].bit_generator.state
        assert now == before


def test_the_users_loader_is_never_changed(kit: SimpleNamespace) -> None:
    """Every attribute of the loader, its sampler and its data set is the object it was before."""
    loader = DataLoader(kit.Noisy(), 3, shuffle=True, worker_init_fn=print)
    owners = (loader, loader.sampler, loader.batch_sampler, loader.dataset)
    before = [dict(vars(owner)) for owner in owners]
    kit.read(loader)
    for owner, attributes in zip(owners, before, strict=True):
        assert vars(owner).keys() == attributes.keys()
        assert all(vars(owner)[name] is value for name, value in attributes.items())


@pytest.mark.parametrize("new_size", [1, 2, 5, 100])
def test_another_batch_size_in_the_middle_still_shows_each_sample_once(kit: SimpleNamespace, new_size: int) -> None:
    """The position is kept in samples, so another cut of the same order loses and repeats none, and says so."""
    stopped = kit.read(DataLoader(kit.Noisy(), 3, shuffle=True), stop=2)
    resumed = kit.read(DataLoader(kit.Noisy(), new_size, shuffle=True), after=stopped)
    assert sorted(resumed.indices) == list(range(13))
    assert resumed.length == len(resumed.values)
    assert "batch size 3" in resumed.notes[0]
    assert "weights" in resumed.notes[0]


CHANGES = {
    "a shorter data set": (lambda d: DataLoader(type(d)(11), 3, shuffle=True), "data set length: 13 → 11"),
    "a longer data set": (lambda d: DataLoader(type(d)(14), 3, shuffle=True), "data set length: 13 → 14"),
    "no shuffling": (lambda d: DataLoader(d, 3), "RandomSampler → SequentialSampler"),
    "fewer samples": (
        lambda d: DataLoader(d, 3, sampler=RandomSampler(d, num_samples=9)),
        "samples in an epoch: 13 → 9",
    ),
    "the user's batches": (lambda d: DataLoader(d, batch_sampler=BySize(13)), "RandomSampler → BySize"),
    "a stream": (lambda d: NoMap(), "a map-style DataLoader → a loader read from its beginning"),
}


class NoMap:
    def __iter__(self):
        return iter([torch.ones(3)])


@pytest.mark.parametrize("name", CHANGES)
def test_other_data_is_refused_and_the_difference_named(kit: SimpleNamespace, name: str) -> None:
    """Going on with other data would show samples twice or never: it stops before anything is loaded."""
    change, difference = CHANGES[name]
    stopped = kit.read(DataLoader(kit.Noisy(), 3, shuffle=True), stop=2)
    with pytest.raises(Incompatible, match=difference) as caught:
        kit.read(change(kit.Noisy()), after=stopped)
    assert 'resume="never"' in caught.value.remedy


def test_another_seed_is_refused(kit: SimpleNamespace) -> None:
    """The order is made of the seed; another one cannot continue an epoch."""
    stopped = kit.read(DataLoader(kit.Noisy(), 3, shuffle=True), stop=2)
    with pytest.raises(Incompatible, match="seed: 5 → 6"):
        kit.read(DataLoader(kit.Noisy(), 3, shuffle=True), after=stopped, seed=6)


def test_other_weights_of_the_same_sampler_are_refused(kit: SimpleNamespace) -> None:
    """Nothing but the order itself tells these apart: its hash does."""

    def loader(weight: float) -> DataLoader:
        return DataLoader(kit.Noisy(), 3, sampler=WeightedRandomSampler([weight] + [1.0] * 12, 13))

    stopped = kit.read(loader(1.0), stop=2)
    with pytest.raises(Incompatible, match="WeightedRandomSampler"):
        kit.read(loader(50.0), after=stopped)


def test_the_check_before_a_resume_draws_and_loads_nothing(kit: SimpleNamespace) -> None:
    """`check` compares lengths and seed; no sampler is asked for an order, no sample is loaded."""

    class Untouchable(Dataset):
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> Any:
            raise AssertionError("loaded")

    stopped = kit.read(DataLoader(kit.Noisy(), 3, shuffle=True), stop=2)
    before = kit.fingerprint()
    found = TorchData().check(DataLoader(Untouchable(), 3, shuffle=True), seed=6, state=stopped.state)
    assert sorted(found) == ["data set length: 13 → 10", "samples in an epoch: 13 → 10", "seed: 5 → 6"]
    assert TorchData().check(DataLoader(kit.Noisy(), 7, shuffle=True), seed=5, state=stopped.state) == []
    assert kit.fingerprint() == before


def test_an_error_in_the_data_set_arrives_and_leaves_the_streams_alone(kit: SimpleNamespace) -> None:
    """The user's exception comes through as it is, and the loop's random numbers are where they were."""

    class Broken(kit.Noisy):
        def __getitem__(self, index: int) -> torch.Tensor:
            self.draws()
            raise KeyError("broken sample")

    before = kit.fingerprint()
    with pytest.raises(KeyError, match="broken sample"):
        kit.read(DataLoader(Broken(), 3, shuffle=True))
    assert kit.fingerprint() == before


def test_whoever_wants_to_know_the_epoch_is_told(kit: SimpleNamespace) -> None:
    """`set_epoch` is called on the sampler, the batch sampler, the sampler inside it and the data set."""
    told = []

    class Curious:
        def set_epoch(self, epoch: int) -> None:
            told.append((type(self).__name__, epoch))

    class CuriousSampler(Curious, SequentialSampler): ...

    class CuriousBatches(Curious, BatchSampler): ...

    class CuriousData(Curious, kit.Noisy): ...

    dataset = CuriousData()
    kit.read(DataLoader(dataset, batch_sampler=CuriousBatches(CuriousSampler(dataset), 3, False)), epoch=4)
    assert sorted(set(told)) == [("CuriousBatches", 4), ("CuriousData", 4), ("CuriousSampler", 4)]


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
