"""What can only be read from its beginning is read again, exactly, or is refused with a reason."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import paddle
import pytest
from paddle.io import ChainDataset, DataLoader, IterableDataset

from colabkeep.core.errors import Incompatible, UsageError
from colabkeep.frameworks.paddle.data import PaddleData


class OwnIter(DataLoader):
    """A loader with an `__iter__` of its own that changes what Paddle's gives."""

    def __iter__(self):
        for batch in super().__iter__():
            yield batch + random.random()


class Foreign:
    """Not a DataLoader: draws its order and its batches from every global stream, and from its own."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.rng = np.random.default_rng()

    def __iter__(self):
        for index in self.rng.permutation(len(self.source)):
            yield paddle.to_tensor(self.source[index]).unsqueeze(0)


LOADERS = {
    "stream": lambda kit, workers: DataLoader(kit.NoisyStream(), batch_size=3, num_workers=workers),
    "stream, batch_size=None": lambda kit, workers: DataLoader(kit.NoisyStream(), batch_size=None, num_workers=workers),
    "stream, drop_last": lambda kit, workers: DataLoader(
        kit.NoisyStream(), batch_size=3, drop_last=True, num_workers=workers
    ),
    "chain": lambda kit, workers: DataLoader(
        ChainDataset([kit.NoisyStream(), kit.NoisyStream(7)]), batch_size=4, num_workers=workers
    ),
    "own __iter__": lambda kit, workers: OwnIter(kit.Noisy(), batch_size=3, shuffle=True, num_workers=workers),
    "foreign": lambda kit, workers: Foreign(kit.Noisy()),
}


@pytest.mark.parametrize("name", LOADERS)
def test_what_is_read_again_is_what_was_read_before(kit: SimpleNamespace, name: str) -> None:
    """Wherever it was stopped: the rest is the rest of the uninterrupted epoch, and global streams do not move."""
    before = kit.fingerprint()
    whole = kit.read(LOADERS[name](kit, 0))
    for stop in (1, 3, len(whole.values)):
        stopped = kit.read(LOADERS[name](kit, 0), stop=stop)
        resumed = kit.read(LOADERS[name](kit, 0), after=stopped)
        assert np.array_equal(resumed.rows, whole.rows)
        assert f"reading {stop} batches again" in resumed.notes[0]
        assert f"Read {stop} batches again in" in resumed.notes[1]
        assert len(resumed.notes) == 2
    assert kit.fingerprint() == before


@pytest.mark.parametrize("name", ["stream", "chain", "own __iter__"])
def test_workers_repeat_themselves_and_stay_as_many_for_the_rest_of_the_epoch(kit: SimpleNamespace, name: str) -> None:
    """With workers the streams depend on their number: a resumed epoch keeps the number it began with, and says so."""
    before = kit.fingerprint()
    whole = kit.read(LOADERS[name](kit, 2))
    stopped = kit.read(LOADERS[name](kit, 2), stop=2)
    resumed = kit.read(LOADERS[name](kit, 0), after=stopped)
    assert np.array_equal(resumed.rows, whole.rows)
    assert any("num_workers=2, as it began; num_workers=0" in note for note in resumed.notes)
    back = kit.read(LOADERS[name](kit, 1), after=kit.read(LOADERS[name](kit, 0), stop=2))
    assert np.array_equal(back.rows, kit.read(LOADERS[name](kit, 0)).rows)
    assert kit.fingerprint() == before


def test_workers_of_a_stream_draw_numbers_of_their_own(kit: SimpleNamespace) -> None:
    """Two workers augmenting two shares by the same numbers would be half the augmentation."""
    rows = kit.read(DataLoader(kit.NoisyStream(), batch_size=3, num_workers=2)).rows
    assert sorted(rows[:, 0]) == list(range(13))
    assert all(len(set(column)) == 13 for column in rows[:, 1:].T)


def test_the_last_batch_of_a_stream_is_there_in_every_epoch_also_with_persistent_workers(kit: SimpleNamespace) -> None:
    """Paddle's own persistent workers drop it from the second epoch on."""
    data = PaddleData()
    loader = DataLoader(kit.NoisyStream(), batch_size=3, num_workers=1, persistent_workers=True)
    for epoch in range(2):
        assert kit.read(loader, epoch=epoch, data=data).indices == list(range(13))


def test_epochs_of_a_stream_differ(kit: SimpleNamespace) -> None:
    """Each epoch has augmentation of its own, a function of seed and epoch."""
    reads = [kit.read(DataLoader(kit.NoisyStream(), batch_size=3), epoch=epoch) for epoch in (0, 1, 0)]
    assert np.array_equal(reads[0].rows, reads[2].rows)
    assert not np.array_equal(reads[0].rows, reads[1].rows)


class Counting(IterableDataset):
    """Counts, in itself, how often it was read: as it does in no worker."""

    def __init__(self) -> None:
        self.times = 0

    def __iter__(self):
        self.times += 1
        return iter(np.full((4, 1), float(self.times)))


def test_an_epoch_starts_from_the_data_set_as_it_was_handed_over(kit: SimpleNamespace) -> None:
    """What a stream counts in itself would be lost with the session: it reaches no other epoch, as with workers."""
    dataset = Counting()
    data = PaddleData()
    assert kit.read(DataLoader(dataset, batch_size=2), epoch=0, data=data).rows.tolist() == [[1.0]] * 4
    assert kit.read(DataLoader(dataset, batch_size=2), epoch=1, data=data).rows.tolist() == [[1.0]] * 4
    assert dataset.times == 0


class Measured(IterableDataset):
    def __len__(self) -> int:
        return 7

    def __iter__(self):
        return iter(np.ones((7, 2)))


def test_the_length_of_a_stream_is_told_where_it_has_one(kit: SimpleNamespace) -> None:
    """In batches, for the progress shown; Paddle's own loader has none for any stream."""
    options = {"batch_size": 3}, {"batch_size": 3, "drop_last": True}, {"batch_size": None}
    for option in options:
        result = kit.read(DataLoader(Measured(), **option))
        assert result.length == len(result.values)
    assert kit.read(DataLoader(kit.NoisyStream(), batch_size=3)).length is None


class Wider(IterableDataset):
    def __iter__(self):
        return iter(np.ones((5, 5, 7)))


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        (lambda kit: DataLoader(kit.NoisyStream(4), batch_size=3), "more than 3 → 2"),
        (lambda kit: DataLoader(Wider(), batch_size=None), "samples in the first 3 batches: 9 → 15"),
    ],
)
def test_a_stream_that_became_another_is_refused(kit: SimpleNamespace, changed: Any, difference: str) -> None:
    """Too short for the place, or with other batches before it: going on would be wrong."""
    stopped = kit.read(DataLoader(kit.NoisyStream(), batch_size=3), stop=3)
    with pytest.raises(Incompatible, match=difference):
        kit.read(changed(kit), after=stopped)


def test_a_stream_that_does_not_repeat_itself_is_noticed_and_said(kit: SimpleNamespace) -> None:
    """Randomness from the operating system cannot be repeated: the note says the rest is not bit-exact."""

    class Whims(IterableDataset):
        def __iter__(self):
            for _ in range(9):
                yield np.array([random.SystemRandom().random()])

    stopped = kit.read(DataLoader(Whims(), batch_size=3), stop=2)
    resumed = kit.read(DataLoader(Whims(), batch_size=3), after=stopped)
    assert "not bit-exact" in resumed.notes[-1]


@pytest.mark.parametrize("loader", [iter([1, 2]), (n for n in [1]), 7])
def test_a_bare_iterator_is_refused_with_the_remedy(loader: Any) -> None:
    """Once read, its batches are gone: no epoch could be resumed, so training does not start."""
    with pytest.raises(UsageError) as caught:
        PaddleData().open(loader, seed=0, epoch=0, batches=0, samples=0, state=None)
    assert "Pass" in caught.value.remedy


def test_a_loader_that_reads_from_its_construction_on_is_refused_with_the_remedy(kit: SimpleNamespace) -> None:
    """Its order was drawn before anyone could seed it."""

    class Eager(DataLoader):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.iterator = super().__iter__()

        def __iter__(self):
            yield from self.iterator

    with pytest.raises(UsageError, match="Eager") as caught:
        kit.read(Eager(np.arange(3.0), batch_size=3))  # noise would be drawn in its thread, while other tests draw
    assert "paddle.io.DataLoader" in caught.value.remedy


class Resumable(IterableDataset):
    """A stream that tells and takes its position; counts how many items it had to produce."""

    produced = 0

    def __init__(self, source: Any, extra: Any = ()) -> None:
        self.source, self.extra, self.position = source, extra, 0

    def __iter__(self):
        while self.position < len(self.source):
            self.position += 1
            Resumable.produced += 1
            yield self.source[self.position - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "extra": self.extra}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position, self.extra = state["position"], state["extra"]


def test_a_stream_with_a_state_goes_on_without_reading_again(kit: SimpleNamespace) -> None:
    """Its own state (tensors of every kind in it) and its random streams are stored: nothing is produced twice."""
    tensors = [paddle.arange(3), paddle.ones([2, 2], dtype="bfloat16"), paddle.to_tensor(True)]
    extra = [*tensors, np.float32(1.5), np.ones((2, 2)), (1, None)]
    before = kit.fingerprint()
    whole = kit.read(DataLoader(Resumable(kit.Noisy(), extra), batch_size=3))
    for stop in (1, 3, 5):
        stopped = kit.read(DataLoader(Resumable(kit.Noisy(), extra), batch_size=3), stop=stop)
        Resumable.produced = 0
        resumed = kit.read(DataLoader(Resumable(kit.Noisy()), batch_size=3), after=stopped)
        assert np.array_equal(resumed.rows, whole.rows)
        assert Resumable.produced == max(0, 13 - 3 * stop)
        assert resumed.notes == []
        assert repr(resumed.state["own"]["extra"]) == repr(stopped.state["own"]["extra"])
    assert kit.fingerprint() == before
    bare = Resumable(kit.Noisy(), extra)
    told = kit.read(bare, stop=1).state
    kit.read(bare, after=kit.Read([None], 0, told), stop=2)
    for given, got in zip(tensors, bare.extra, strict=False):
        assert got is not given
        assert got.dtype == given.dtype
        assert got.tolist() == given.tolist()


def test_a_resumed_loader_of_another_kind_is_refused(kit: SimpleNamespace) -> None:
    """A stream cannot continue a list, nor a sampler's order a stream."""
    stopped = kit.read(DataLoader(kit.NoisyStream(), batch_size=3), stop=2)
    for other in ([np.ones(1)], DataLoader(kit.Noisy(), batch_size=3)):
        with pytest.raises(Incompatible, match="a loader read from its beginning →"):
            kit.read(other, after=stopped)
    with pytest.raises(Incompatible, match="seed: 5 → 8"):
        kit.read(DataLoader(kit.NoisyStream(), batch_size=3), after=stopped, seed=8)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_in_a_stream_arrives(kit: SimpleNamespace, workers: int) -> None:
    """Also the one that drop_last would have swallowed with the batch it broke."""

    class Broken(IterableDataset):
        def __iter__(self):
            yield np.ones(2)
            raise LookupError("broken stream")

    loader = DataLoader(Broken(), batch_size=3, drop_last=True, num_workers=workers)
    with pytest.raises(LookupError, match="broken stream"):
        kit.read(loader)
