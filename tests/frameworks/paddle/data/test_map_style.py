"""A map-style DataLoader, stopped anywhere, goes on with exactly the samples that were still to come."""

from __future__ import annotations

import random
import threading
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paddle.io import (
    BatchSampler,
    ComposeDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedBatchSampler,
    RandomSampler,
    Sampler,
    SequenceSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from colabkeep.core.errors import Incompatible, UsageError
from colabkeep.frameworks.paddle.data import Adapted, PaddleData


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
            yield from paddle.randperm(self.length).tolist()


class EndlessWithLength(Endless):
    def __len__(self) -> int:
        return self.length


class OddLoader(DataLoader):
    """A subclass with a constructor that only its author understands."""

    def __init__(self, spell: str, *, wand: Any) -> None:
        super().__init__(wand, batch_size=len(spell), shuffle=True, collate_fn=self.stack)
        self.spell = spell

    def stack(self, items: list[np.ndarray]) -> np.ndarray:
        assert len(self.dataset) == self.dataset.length
        return np.stack(items)


def sampled(dataset: Any, sampler: Any, size: int = 3, **options: Any) -> DataLoader:
    return DataLoader(dataset, batch_sampler=BatchSampler(sampler=sampler, batch_size=size, **options))


LOADERS = {
    "shuffle": lambda d: DataLoader(d, batch_size=3, shuffle=True),
    "no shuffle": lambda d: DataLoader(d, batch_size=3),
    "drop_last": lambda d: DataLoader(d, batch_size=3, shuffle=True, drop_last=True),
    "one by one": lambda d: DataLoader(d, shuffle=True),
    "no buffer reader": lambda d: DataLoader(d, batch_size=3, shuffle=True, use_buffer_reader=False),
    "random, with replacement": lambda d: sampled(d, RandomSampler(d, replacement=True, num_samples=20)),
    "weighted": lambda d: sampled(d, WeightedRandomSampler(np.arange(1.0, 1 + len(d)), 20)),
    "subset": lambda d: sampled(d, SubsetRandomSampler([1, 3, 5, 7, 9, 11])),
    "distributed": lambda d: DataLoader(
        d, batch_sampler=DistributedBatchSampler(d, 3, num_replicas=2, rank=0, shuffle=True)
    ),
    "the user's sampler": lambda d: sampled(d, OwnGenerator(len(d)), drop_last=True),
    "a list as sampler": lambda d: sampled(d, [4, 2, 2, 9, 12]),
    "the user's batch sampler": lambda d: DataLoader(d, batch_sampler=BySize(len(d))),
    "an odd subclass": lambda d: OddLoader("hex", wand=d),
    "batch_size=None": lambda d: DataLoader(d, batch_size=None),
    "subset of a concatenation": lambda d: DataLoader(
        Subset(ConcatDataset([d, d]), list(range(20))), batch_size=3, shuffle=True
    ),
    "collate that draws": lambda d: DataLoader(d, batch_size=3, shuffle=True, collate_fn=noisy_collate),
}


COLLATE_RNG = np.random.RandomState()


def noisy_collate(items: list[np.ndarray]) -> paddle.Tensor:
    stacked = paddle.to_tensor(np.stack(items))
    stacked[:, 1] += random.random() + COLLATE_RNG.random_sample() + paddle.rand([1]).item()
    return stacked


@pytest.mark.parametrize("name", LOADERS)
def test_consumed_and_resumed_is_what_one_session_would_have_read(kit: SimpleNamespace, name: str) -> None:
    """For each kind of sampler and each place to stop: the same samples, with the same bytes, in the same order."""
    whole = kit.read(LOADERS[name](kit.Noisy()))
    assert whole.length == (None if name == "the user's batch sampler" else len(whole.values))
    assert whole.samples == sum(value.shape[0] for value in whole.values) or name == "batch_size=None"
    for stop in range(len(whole.values) + 1):
        random.seed(stop), np.random.seed(stop), paddle.seed(stop)  # a new process is seeded differently
        stopped = kit.read(LOADERS[name](kit.Noisy()), stop=stop)
        resumed = kit.read(LOADERS[name](kit.Noisy()), after=stopped)
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
    length: int, batch_size: int, drop_last: bool, cuts: list[int], seed: int, epoch: int
) -> None:
    """However often an epoch is cut, every sample is seen once, in the order of the uninterrupted epoch."""
    values = paddle.arange(length)

    def session(done: int, stop: int | None, state: Any) -> tuple[list[Any], Any]:
        loader = DataLoader(TensorDataset([values]), batch_size=batch_size, shuffle=True, drop_last=drop_last)
        opened = PaddleData().open(loader, seed=seed, epoch=epoch, batches=done, samples=done * batch_size, state=state)
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
        return sampled(kit.Noisy(), endless(13))

    whole = kit.read(loader(), stop=20)
    assert whole.length is None
    for stop in (1, 7, 19):
        stopped = kit.read(loader(), stop=stop)
        resumed = kit.read(loader(), after=stopped, stop=20)
        assert np.array_equal(resumed.rows, whole.rows)
    other = sampled(kit.Noisy(), endless(12))
    with pytest.raises(Incompatible):
        kit.read(other, after=kit.read(loader(), stop=7))


def test_an_endless_order_over_quiet_data_is_drawn_by_nobody_but_the_training_thread(kit: SimpleNamespace) -> None:
    """Paddle's reading thread would draw it at any moment, between two of the loop's own draws."""
    threads = set()

    class Watched(Endless):
        def __iter__(self):
            for index in super().__iter__():
                threads.add(threading.get_ident())
                yield index

    result = kit.read(sampled(np.arange(13.0), Watched(13)), stop=30)
    assert len(result.values) == 30
    assert threads == {threading.get_ident()}


def test_epochs_and_seeds_have_orders_and_augmentation_of_their_own(kit: SimpleNamespace) -> None:
    """Another epoch, or another seed, is another order; the same is the same."""
    reads = [
        kit.read(DataLoader(kit.Noisy(), batch_size=3, shuffle=True), seed=seed, epoch=epoch)
        for seed, epoch in [(5, 0), (5, 1), (6, 0), (5, 0)]
    ]
    orders = [tuple(r.indices) for r in reads]
    assert len(set(orders)) == 3
    assert orders[0] == orders[3]
    assert np.array_equal(reads[0].rows, reads[3].rows)
    still = [kit.read(DataLoader(kit.Noisy(), batch_size=3), epoch=epoch) for epoch in (0, 1)]
    assert still[0].indices == still[1].indices
    assert not np.array_equal(still[0].rows, still[1].rows)


@pytest.mark.parametrize("name", [n for n in LOADERS if "replacement" not in n])
def test_reading_leaves_the_loops_random_numbers_alone(kit: SimpleNamespace, name: str) -> None:
    """Global streams, and the user's own generators, are after each batch where they were before it."""
    dataset = kit.Noisy()
    loader = LOADERS[name](dataset)
    np.random.standard_normal()  # leaves half a pair
    before = kit.fingerprint(), dataset.private["numpy"].bit_generator.state
    opened = PaddleData().open(loader, seed=5, epoch=0, batches=1, samples=3, state=None)
    for _ in opened:
        assert (kit.fingerprint(), dataset.private["numpy"].bit_generator.state) == before


def test_the_users_loader_is_never_changed(kit: SimpleNamespace) -> None:
    """Every attribute of the loader, its sampler and its data set is the object it was before."""
    loader = DataLoader(kit.Noisy(), batch_size=3, shuffle=True, worker_init_fn=print)
    owners = (loader, loader.batch_sampler, loader.batch_sampler.sampler, loader.dataset)
    before = [dict(vars(owner)) for owner in owners]
    kit.read(loader)
    for owner, attributes in zip(owners, before, strict=True):
        assert vars(owner).keys() == attributes.keys()
        assert all(vars(owner)[name] is value for name, value in attributes.items())


@pytest.mark.parametrize("new_size", [1, 2, 5, 100])
def test_another_batch_size_in_the_middle_still_shows_each_sample_once(kit: SimpleNamespace, new_size: int) -> None:
    """The position is kept in samples, so another cut of the same order loses and repeats none, and says so."""
    stopped = kit.read(DataLoader(kit.Noisy(), batch_size=3, shuffle=True), stop=2)
    resumed = kit.read(sampled(kit.Noisy(), RandomSampler(range(13)), new_size), after=stopped)
    assert sorted(resumed.indices) == list(range(13))
    assert resumed.length == len(resumed.values)
    assert f"batch size 3 → {new_size}" in resumed.notes[0]
    assert "weights" in resumed.notes[0]


class NoMap:
    def __iter__(self):
        return iter([np.ones(3)])


CHANGES = {
    "a shorter data set": (
        lambda d: DataLoader(type(d)(11), batch_size=3, shuffle=True),
        "data set length: 13 → 11",
    ),
    "a longer data set": (lambda d: DataLoader(type(d)(14), batch_size=3, shuffle=True), "data set length: 13 → 14"),
    "no shuffling": (lambda d: DataLoader(d, batch_size=3), "RandomSampler → SequenceSampler"),
    "fewer samples": (lambda d: sampled(d, RandomSampler(d, num_samples=9)), "samples in an epoch: 13 → 9"),
    "the user's batches": (lambda d: DataLoader(d, batch_sampler=BySize(13)), "RandomSampler → BySize"),
    "one of two ranks": (
        lambda d: DataLoader(d, batch_sampler=DistributedBatchSampler(d, 3, num_replicas=2, rank=0)),
        "RandomSampler → DistributedBatchSampler",
    ),
    "a stream": (lambda d: NoMap(), "a map-style DataLoader → a loader read from its beginning"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_other_data_is_refused_and_the_difference_named(kit: SimpleNamespace, name: str) -> None:
    """Going on with other data would show samples twice or never: it stops before anything is loaded."""
    change, difference = CHANGES[name]
    stopped = kit.read(DataLoader(kit.Noisy(), batch_size=3, shuffle=True), stop=2)
    with pytest.raises(Incompatible, match=difference) as caught:
        kit.read(change(kit.Noisy()), after=stopped)
    assert 'resume="never"' in caught.value.remedy


def test_another_seed_is_refused(kit: SimpleNamespace) -> None:
    """The order is made of the seed; another one cannot continue an epoch."""
    stopped = kit.read(DataLoader(kit.Noisy(), batch_size=3, shuffle=True), stop=2)
    with pytest.raises(Incompatible, match="seed: 5 → 6"):
        kit.read(DataLoader(kit.Noisy(), batch_size=3, shuffle=True), after=stopped, seed=6)


def test_other_weights_of_the_same_sampler_are_refused(kit: SimpleNamespace) -> None:
    """Nothing but the order itself tells these apart: its hash does."""

    def loader(weight: float) -> DataLoader:
        return sampled(kit.Noisy(), WeightedRandomSampler(np.array([weight] + [1.0] * 12), 13))

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

    stopped = kit.read(DataLoader(kit.Noisy(), batch_size=3, shuffle=True), stop=2)
    before = kit.fingerprint()
    found = PaddleData().check(DataLoader(Untouchable(), batch_size=3, shuffle=True), seed=6, state=stopped.state)
    assert sorted(found) == ["data set length: 13 → 10", "samples in an epoch: 13 → 10", "seed: 5 → 6"]
    same = DataLoader(kit.Noisy(), batch_size=7, shuffle=True)
    assert PaddleData().check(same, seed=5, state=stopped.state) == []
    assert kit.fingerprint() == before


@pytest.mark.parametrize("quiet", [True, False])
def test_an_error_in_the_data_set_arrives_and_leaves_the_streams_alone(kit: SimpleNamespace, quiet: bool) -> None:
    """The user's exception comes through as it is (Paddle's own loop would wait for ever), and the loop's random
    numbers are where they were."""

    class Broken(kit.Noisy):
        def __getitem__(self, index: int) -> np.ndarray:
            self.draws()
            raise IndexError("broken sample")

    before = kit.fingerprint()
    broken = Subset(TensorDataset([paddle.arange(3)]), [0, 1, 99]) if quiet else Broken()
    with pytest.raises(IndexError):
        kit.read(DataLoader(broken, batch_size=3, shuffle=True))
    assert kit.fingerprint() == before


def test_whoever_wants_to_know_the_epoch_is_told(kit: SimpleNamespace) -> None:
    """`set_epoch` is called on the batch sampler, the sampler inside it and the data set."""
    told = []

    class Curious:
        def set_epoch(self, epoch: int) -> None:
            told.append((type(self).__name__, epoch))

    class CuriousSampler(Curious, SequenceSampler): ...

    class CuriousBatches(Curious, BatchSampler): ...

    class CuriousData(Curious, kit.Noisy): ...

    dataset = CuriousData()
    batches = CuriousBatches(sampler=CuriousSampler(dataset), batch_size=3)
    kit.read(DataLoader(dataset, batch_sampler=batches), epoch=4)
    assert sorted(set(told)) == [("CuriousBatches", 4), ("CuriousData", 4), ("CuriousSampler", 4)]


def test_a_distributed_order_is_that_of_the_epoch_however_often_it_was_asked_for(kit: SimpleNamespace) -> None:
    """Paddle's sampler counts epochs by itself, each time it is iterated; here the run's epoch decides."""

    def loader() -> DataLoader:
        return DataLoader(
            kit.Noisy(), batch_sampler=DistributedBatchSampler(kit.Noisy(), 3, num_replicas=2, rank=1, shuffle=True)
        )

    used, data = loader(), PaddleData()
    orders = [kit.read(used, epoch=epoch, data=data).indices for epoch in (0, 1, 2, 1)]
    assert orders[1] == orders[3] == kit.read(loader(), epoch=1).indices
    assert orders[0] != orders[1] != orders[2]


def test_batches_are_what_paddles_own_loader_gives() -> None:
    """The same nesting, types, dtypes and values, read in the training thread, in Paddle's and in a worker."""

    class Rich(Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            pair = (index, np.full((2, 3), index, dtype=np.float16))
            flag = np.array(index % 2 == 0)
            return {"pair": pair, "name": f"n{index}", "tensor": paddle.full([2], float(index)), "flag": flag}

    native = [tell(batch) for batch in DataLoader(Rich(), batch_size=2)]
    for workers in (0, 1):
        loader = DataLoader(Rich(), batch_size=2, num_workers=workers)
        opened = PaddleData().open(loader, seed=0, epoch=0, batches=0, samples=0, state=None)
        assert [tell(batch.value) for batch in opened] == native
    items = [(n, {"x": [float(n)]}) for n in range(4)]
    opened = PaddleData().open(DataLoader(items, batch_size=2), seed=0, epoch=0, batches=0, samples=0, state=None)
    assert [tell(batch.value) for batch in opened] == [tell(batch) for batch in DataLoader(items, batch_size=2)]


def tell(value: Any) -> Any:
    if isinstance(value, paddle.Tensor):
        return str(value.dtype), str(value.place), value.stop_gradient, list(value.shape), value.tolist()
    if isinstance(value, dict):
        return {key: tell(member) for key, member in value.items()}
    return [tell(member) for member in value] if isinstance(value, list) else value


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_without_an_array_arrive(workers: int) -> None:
    """Paddle's own loader takes a batch of strings for the end of the data, without a word."""
    names = [f"name {n}" for n in range(5)]
    loader = DataLoader(names, batch_size=2, num_workers=workers)
    opened = PaddleData().open(loader, seed=0, epoch=0, batches=0, samples=0, state=None)
    assert [batch.value for batch in opened] == [names[:2], names[2:4], names[4:]]


def test_a_data_set_becomes_a_loader_of_shuffled_batches(kit: SimpleNamespace) -> None:
    """Of 32 samples if nothing is said; a stream is not shuffled, and what gives batches already is left alone."""
    data = PaddleData()
    loader: Any = data.as_loader(kit.Noisy(50), None)
    assert [batch.samples for batch in data.open(loader, seed=1, epoch=0, batches=0, samples=0, state=None)] == [32, 18]
    assert kit.read(data.as_loader(kit.Noisy(50), 10)).indices != list(range(50))
    assert kit.read(data.as_loader(kit.NoisyStream(), 4)).indices == list(range(13))
    batches = [np.ones(2)]
    assert data.as_loader(batches, None) is batches
    with pytest.raises(UsageError, match="batch_size=4"):
        data.as_loader(loader, 4)


def test_a_loader_for_static_graphs_is_refused_with_the_remedy(kit: SimpleNamespace) -> None:
    """Its batches go to a program by name: nothing that could be put in order or resumed."""
    fed = DataLoader(kit.Noisy(), batch_size=3, feed_list=[paddle.ones([1])])
    with pytest.raises(UsageError, match="feed_list") as caught:
        kit.read(fed)
    assert "without feed_list" in caught.value.remedy
    paddle.enable_static()
    try:
        with pytest.raises(UsageError, match="static graph") as caught:
            kit.read(DataLoader(kit.Noisy(), batch_size=3, return_list=True))
    finally:
        paddle.disable_static()
    assert "paddle.disable_static()" in caught.value.remedy
    listed = DataLoader(kit.Noisy(), batch_size=3, return_list=False)  # which Paddle ignores in dynamic mode
    assert kit.read(listed).indices == list(range(13))


@pytest.mark.parametrize(
    ("dataset", "quiet"),
    [
        (TensorDataset([paddle.arange(9)]), True),
        (list(range(9)), True),
        (range(9), True),
        (np.arange(9), True),
        (paddle.arange(9), True),
        (Subset(TensorDataset([paddle.arange(9)]), [1, 2]), True),
        (ConcatDataset([TensorDataset([paddle.arange(9)]), TensorDataset([paddle.arange(3)])]), True),
        (ComposeDataset([TensorDataset([paddle.arange(9)]), TensorDataset([paddle.arange(9)])]), True),
        (Subset(type("Own", (list,), {})(range(9)), [1, 2]), False),
        (type("Own", (TensorDataset,), {})([paddle.arange(9)]), False),
    ],
)
def test_paddles_own_thread_reads_what_cannot_draw_and_nothing_else(dataset: Any, quiet: bool) -> None:
    """Plain tensors, arrays and lists are loaded ahead, as Paddle would load them; whatever may draw is seeded."""
    adapted = Adapted(DataLoader(dataset, batch_size=2), epoch=0)
    assert adapted.quiet is quiet
    drawing = Adapted(DataLoader(dataset, batch_size=2, collate_fn=noisy_collate), epoch=0)
    assert not drawing.quiet
