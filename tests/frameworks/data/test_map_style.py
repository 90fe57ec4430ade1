"""A map-style DataLoader, stopped anywhere, goes on with exactly the samples that were still to come."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colabkeep.core.errors import Incompatible, UsageError
from tests.frameworks.data.reading import OwnGenerator


class BySize:
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


class Endless:
    """A sampler that never ends; perhaps one that claims it does."""

    def __init__(self, kit: SimpleNamespace, length: int) -> None:
        self.permutation = kit.permutation
        self.length = length

    def __iter__(self):
        while True:
            yield from self.permutation(self.length)


class EndlessWithLength(Endless):
    def __len__(self) -> int:
        return self.length


LOADERS = {
    "shuffle": lambda kit, d: kit.loader(d, shuffle=True),
    "no shuffle": lambda kit, d: kit.loader(d),
    "drop_last": lambda kit, d: kit.loader(d, shuffle=True, drop_last=True),
    "one by one": lambda kit, d: kit.LOADERS["one by one"](d),
    "random, with replacement": lambda kit, d: kit.LOADERS["random, with replacement"](d),
    "weighted": lambda kit, d: kit.LOADERS["weighted"](d),
    "subset": lambda kit, d: kit.LOADERS["subset"](d),
    "distributed": lambda kit, d: kit.LOADERS["distributed"](d),
    "the user's sampler": lambda kit, d: kit.loader(d, sampler=OwnGenerator(len(d)), drop_last=True),
    "a list as sampler": lambda kit, d: kit.loader(d, sampler=[4, 2, 2, 9, 12]),
    "the user's batch sampler": lambda kit, d: kit.by_batches(d, BySize(len(d))),
    "an odd subclass": lambda kit, d: kit.LOADERS["an odd subclass"](d),
    "batch_size=None": lambda kit, d: kit.loader(d, None),
    "subset of a concatenation": lambda kit, d: kit.LOADERS["subset of a concatenation"](d),
    "collate that draws": lambda kit, d: kit.loader(d, shuffle=True, collate_fn=kit.noisy_collate),
}


@pytest.mark.parametrize("name", LOADERS)
def test_consumed_and_resumed_is_what_one_session_would_have_read(kit: SimpleNamespace, name: str) -> None:
    """For each kind of sampler and each place to stop: the same samples, with the same bytes, in the same order."""
    whole = kit.read(LOADERS[name](kit, kit.Noisy()))
    assert whole.length == (None if name == "the user's batch sampler" else len(whole.values))
    assert whole.samples == sum(value.shape[0] for value in whole.values) or name == "batch_size=None"
    for stop in range(len(whole.values) + 1):
        kit.seed_all(stop)
        stopped = kit.read(LOADERS[name](kit, kit.Noisy()), stop=stop)
        resumed = kit.read(LOADERS[name](kit, kit.Noisy()), after=stopped)
        assert np.array_equal(resumed.rows, whole.rows)
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
@settings(max_examples=40, deadline=None)
def test_any_number_of_interruptions_at_any_places_changes_nothing(
    kit: SimpleNamespace, length: int, batch_size: int, drop_last: bool, cuts: list[int], seed: int, epoch: int
) -> None:
    """However often an epoch is cut, every sample is seen once, in the order of the uninterrupted epoch."""
    values = kit.tensors(np.arange(length))

    def session(done: int, stop: int | None, state: Any) -> tuple[list[Any], Any]:
        loader = kit.loader(values, batch_size, shuffle=True, drop_last=drop_last)
        opened = kit.Data().open(loader, seed=seed, epoch=epoch, batches=done, samples=done * batch_size, state=state)
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

    def loader() -> Any:
        return kit.loader(kit.Noisy(), sampler=endless(kit, 13))

    whole = kit.read(loader(), stop=20)
    assert whole.length is None
    for stop in (1, 7, 19):
        stopped = kit.read(loader(), stop=stop)
        resumed = kit.read(loader(), after=stopped, stop=20)
        assert np.array_equal(resumed.rows, whole.rows)
    other = kit.loader(kit.Noisy(), sampler=endless(kit, 12))
    with pytest.raises(Incompatible):
        kit.read(other, after=kit.read(loader(), stop=7))


def test_epochs_and_seeds_have_orders_and_augmentation_of_their_own(kit: SimpleNamespace) -> None:
    """Another epoch, or another seed, is another order; the same is the same."""
    reads = [
        kit.read(kit.loader(kit.Noisy(), shuffle=True), seed=seed, epoch=epoch)
        for seed, epoch in [(5, 0), (5, 1), (6, 0), (5, 0)]
    ]
    orders = [tuple(r.indices) for r in reads]
    assert len(set(orders)) == 3
    assert orders[0] == orders[3]
    assert np.array_equal(reads[0].rows, reads[3].rows)
    still = [kit.read(kit.loader(kit.Noisy()), epoch=epoch) for epoch in (0, 1)]
    assert still[0].indices == still[1].indices
    assert not np.array_equal(still[0].rows, still[1].rows)


@pytest.mark.parametrize("name", [n for n in LOADERS if "replacement" not in n])
def test_reading_leaves_the_loops_random_numbers_alone(kit: SimpleNamespace, name: str) -> None:
    """Global streams, and the user's own generators, are after each batch where they were before it."""
    dataset = kit.Noisy()
    loader = LOADERS[name](kit, dataset)
    np.random.standard_normal()  # leaves half a pair
    before = kit.fingerprint(), dataset.private["numpy"].bit_generator.state
    opened = kit.Data().open(loader, seed=5, epoch=0, batches=1, samples=3, state=None)
    for _ in opened:
        assert (kit.fingerprint(), dataset.private["numpy"].bit_generator.state) == before


def test_the_users_loader_is_never_changed(kit: SimpleNamespace) -> None:
    """Every attribute of the loader, its sampler and its data set is the object it was before."""
    loader = kit.loader(kit.Noisy(), shuffle=True, worker_init_fn=print)
    owners = (loader, loader.batch_sampler, loader.batch_sampler.sampler, loader.dataset)
    before = [dict(vars(owner)) for owner in owners]
    kit.read(loader)
    for owner, attributes in zip(owners, before, strict=True):
        assert vars(owner).keys() == attributes.keys()
        assert all(vars(owner)[name] is value for name, value in attributes.items())


@pytest.mark.parametrize("new_size", [1, 2, 5, 100])
def test_another_batch_size_in_the_middle_still_shows_each_sample_once(kit: SimpleNamespace, new_size: int) -> None:
    """The position is kept in samples, so another cut of the same order loses and repeats none, and says so."""
    stopped = kit.read(kit.loader(kit.Noisy(), shuffle=True), stop=2)
    resumed = kit.read(kit.loader(kit.Noisy(), new_size, sampler=kit.Shuffled(range(13))), after=stopped)
    assert sorted(resumed.indices) == list(range(13))
    assert resumed.length == len(resumed.values)
    assert f"batch size 3 → {new_size}" in resumed.notes[0]
    assert "weights" in resumed.notes[0]


class NoMap:
    def __iter__(self):
        return iter([np.ones(3)])


CHANGES = {
    "a shorter data set": (lambda kit: kit.loader(kit.Noisy(11), shuffle=True), "data set length: 13 → 11"),
    "a longer data set": (lambda kit: kit.loader(kit.Noisy(14), shuffle=True), "data set length: 13 → 14"),
    "no shuffling": (lambda kit: kit.loader(kit.Noisy()), r"RandomSampler → Sequen(ce|tial)Sampler"),
    "fewer samples": (lambda kit: kit.LOADERS["fewer samples"](kit.Noisy()), "samples in an epoch: 13 → 9"),
    "the user's batches": (lambda kit: kit.by_batches(kit.Noisy(), BySize(13)), "RandomSampler → BySize"),
    "a rank's sampler": (lambda kit: kit.LOADERS["distributed"](kit.Noisy()), r"RandomSampler → Distributed|: 13 → 7"),
    "a stream": (lambda kit: NoMap(), "a map-style DataLoader → a loader read from its beginning"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_other_data_is_refused_and_the_difference_named(kit: SimpleNamespace, name: str) -> None:
    """Going on with other data would show samples twice or never: it stops before anything is loaded."""
    change, difference = CHANGES[name]
    stopped = kit.read(kit.loader(kit.Noisy(), shuffle=True), stop=2)
    with pytest.raises(Incompatible, match=difference) as caught:
        kit.read(change(kit), after=stopped)
    assert 'resume="never"' in caught.value.remedy


def test_another_seed_is_refused(kit: SimpleNamespace) -> None:
    """The order is made of the seed; another one cannot continue an epoch."""
    stopped = kit.read(kit.loader(kit.Noisy(), shuffle=True), stop=2)
    with pytest.raises(Incompatible, match="seed: 5 → 6"):
        kit.read(kit.loader(kit.Noisy(), shuffle=True), after=stopped, seed=6)


def test_other_weights_of_the_same_sampler_are_refused(kit: SimpleNamespace) -> None:
    """Nothing but the order itself tells these apart: its hash does."""
    stopped = kit.read(kit.LOADERS["weighted"](kit.Noisy()), stop=2)
    with pytest.raises(Incompatible, match="WeightedRandomSampler"):
        kit.read(kit.LOADERS["weighted otherwise"](kit.Noisy()), after=stopped)


def test_the_check_before_a_resume_draws_and_loads_nothing(kit: SimpleNamespace) -> None:
    """`check` compares lengths and seed; no sampler is asked for an order, no sample is loaded."""

    class Untouchable(kit.Dataset):
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> Any:
            raise AssertionError("loaded")

    stopped = kit.read(kit.loader(kit.Noisy(), shuffle=True), stop=2)
    before = kit.fingerprint()
    found = kit.Data().check(kit.loader(Untouchable(), shuffle=True), seed=6, state=stopped.state)
    assert sorted(found) == ["data set length: 13 → 10", "samples in an epoch: 13 → 10", "seed: 5 → 6"]
    assert kit.Data().check(kit.loader(kit.Noisy(), 7, shuffle=True), seed=5, state=stopped.state) == []
    assert kit.fingerprint() == before


@pytest.mark.parametrize("draws", [False, True])
def test_an_error_in_the_data_set_arrives_and_leaves_the_streams_alone(kit: SimpleNamespace, draws: bool) -> None:
    """The user's exception comes through as it is, and the loop's random numbers are where they were."""

    class Broken(kit.Noisy):
        def __getitem__(self, index: int) -> Any:
            self.draws() if draws else None
            raise KeyError("broken sample")

    before = kit.fingerprint()
    with pytest.raises(KeyError, match="broken sample"):
        kit.read(kit.loader(Broken(), shuffle=True))
    assert kit.fingerprint() == before


def test_whoever_wants_to_know_the_epoch_is_told(kit: SimpleNamespace) -> None:
    """`set_epoch` is called on the batch sampler, the sampler inside it and the data set."""
    told = []

    class Curious:
        def set_epoch(self, epoch: int) -> None:
            told.append((type(self).__name__, epoch))

    class CuriousSampler(Curious, kit.InOrder): ...

    class CuriousBatches(Curious, kit.BatchSampler): ...

    class CuriousData(Curious, kit.Noisy): ...

    dataset = CuriousData()
    kit.read(kit.by_batches(dataset, kit.batches_of(CuriousBatches, CuriousSampler(dataset))), epoch=4)
    assert sorted(set(told)) == [("CuriousBatches", 4), ("CuriousData", 4), ("CuriousSampler", 4)]


def test_a_data_set_becomes_a_loader_of_shuffled_batches(kit: SimpleNamespace) -> None:
    """Of 32 samples if nothing is said; a stream is not shuffled, and what gives batches already is left alone."""
    data = kit.Data()
    loader: Any = data.as_loader(kit.Noisy(50), None)
    assert [batch.samples for batch in data.open(loader, seed=1, epoch=0, batches=0, samples=0, state=None)] == [32, 18]
    assert kit.read(data.as_loader(kit.Noisy(50), 10)).indices != list(range(50))
    assert kit.read(data.as_loader(kit.NoisyStream(), 4)).indices == list(range(13))
    batches = [np.ones(2)]
    assert data.as_loader(batches, None) is batches
    with pytest.raises(UsageError, match="batch_size=4"):
        data.as_loader(loader, 4)
