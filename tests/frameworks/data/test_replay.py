"""What can only be read from its beginning is read again, exactly, or is refused with a reason."""

from __future__ import annotations

import random
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from colabkeep.core.errors import Incompatible, UsageError

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def own_iter(kit: SimpleNamespace, *args: Any, **words: Any) -> Any:
    """A loader with an `__iter__` of its own that changes what the framework's gives."""

    class OwnIter(kit.DataLoader):
        def __iter__(self):
            for batch in super().__iter__():
                yield batch + random.random()

    return OwnIter(*args, **words)


class Foreign:
    """Not a DataLoader: draws its order and its batches from every global stream, and from its own."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.rng = np.random.default_rng()

    def __iter__(self):
        for index in self.rng.permutation(len(self.source)):
            yield self.source[index].reshape(1, -1)


LOADERS = {
    "stream": lambda kit, workers: kit.loader(kit.NoisyStream(), num_workers=workers),
    "stream, batch_size=None": lambda kit, workers: kit.loader(kit.NoisyStream(), None, num_workers=workers),
    "stream, drop_last": lambda kit, workers: kit.loader(kit.NoisyStream(), drop_last=True, num_workers=workers),
    "chain": lambda kit, workers: kit.loader(
        kit.ChainDataset([kit.NoisyStream(), kit.NoisyStream(7)]), 4, num_workers=workers
    ),
    "own __iter__": lambda kit, workers: own_iter(kit, kit.Noisy(), batch_size=3, shuffle=True, num_workers=workers),
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
    rows = kit.read(kit.loader(kit.NoisyStream(), num_workers=2)).rows
    assert sorted(rows[:, 0]) == list(range(13))
    assert all(len(set(column)) == 13 for column in rows[:, 1:].T)


def test_the_last_batch_of_a_stream_is_there_in_every_epoch_also_with_persistent_workers(kit: SimpleNamespace) -> None:
    """Paddle's own persistent workers drop it from the second epoch on."""
    data = kit.Data()
    loader = kit.loader(kit.NoisyStream(), num_workers=1, persistent_workers=True)
    for epoch in range(2):
        assert kit.read(loader, epoch=epoch, data=data).indices == list(range(13))


def test_epochs_of_a_stream_differ(kit: SimpleNamespace) -> None:
    """Each epoch has augmentation of its own, a function of seed and epoch."""
    reads = [kit.read(kit.loader(kit.NoisyStream()), epoch=epoch) for epoch in (0, 1, 0)]
    assert np.array_equal(reads[0].rows, reads[2].rows)
    assert not np.array_equal(reads[0].rows, reads[1].rows)


def stream(kit: SimpleNamespace, items: Any, length: int | None = None) -> Any:
    """A stream of what `items(self)` gives; with a length, if it has one."""
    words = {"__iter__": lambda self: iter(items(self))}
    return type("Stream", (kit.IterableDataset,), {**words, **({"__len__": lambda _: length} if length else {})})()


def test_an_epoch_starts_from_the_data_set_as_it_was_handed_over(kit: SimpleNamespace) -> None:
    """What a stream counts in itself would be lost with the session: it reaches no other epoch, as with workers."""

    def counted(self: Any) -> Any:
        self.times += 1
        return kit.tensor(np.full((4, 1), float(self.times)))

    dataset = stream(kit, counted)
    dataset.times = 0
    data = kit.Data()
    assert kit.read(kit.loader(dataset, 2), epoch=0, data=data).rows.tolist() == [[1.0]] * 4
    assert kit.read(kit.loader(dataset, 2), epoch=1, data=data).rows.tolist() == [[1.0]] * 4
    assert dataset.times == 0


@pytest.mark.parametrize("words", [{}, {"drop_last": True}, {"size": None}])
def test_the_length_of_a_stream_is_told_where_it_has_one(kit: SimpleNamespace, words: Any) -> None:
    """In batches, for the progress shown."""
    result = kit.read(kit.loader(stream(kit, lambda _: kit.tensor(np.ones((7, 2))), 7), **words))
    assert result.length == len(result.values)
    assert kit.read(kit.loader(kit.NoisyStream())).length is None


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        (lambda kit: kit.loader(kit.NoisyStream(4)), "more than 3 → 2"),
        (
            lambda kit: kit.loader(stream(kit, lambda _: kit.tensor(np.ones((5, 5, 7)))), None),
            "samples in the first 3 batches: 9 → 15",
        ),
    ],
)
def test_a_stream_that_became_another_is_refused(kit: SimpleNamespace, changed: Any, difference: str) -> None:
    """Too short for the place, or with other batches before it: going on would be wrong."""
    stopped = kit.read(kit.loader(kit.NoisyStream()), stop=3)
    with pytest.raises(Incompatible, match=difference):
        kit.read(changed(kit), after=stopped)


def test_a_stream_that_does_not_repeat_itself_is_noticed_and_said(kit: SimpleNamespace) -> None:
    """Randomness from the operating system cannot be repeated: the note says the rest is not bit-exact."""

    def whims() -> Any:
        return stream(kit, lambda _: (kit.tensor([random.SystemRandom().random()]) for _ in range(9)))

    stopped = kit.read(kit.loader(whims()), stop=2)
    resumed = kit.read(kit.loader(whims()), after=stopped)
    assert "not bit-exact" in resumed.notes[-1]


@pytest.mark.parametrize("loader", [iter([1, 2]), (n for n in [1]), map(str, [1]), 7])
def test_a_bare_iterator_is_refused_with_the_remedy(kit: SimpleNamespace, loader: Any) -> None:
    """Once read, its batches are gone: no epoch could be resumed, so training does not start."""
    with pytest.raises(UsageError) as caught:
        kit.Data().open(loader, seed=0, epoch=0, batches=0, samples=0, state=None)
    assert "Pass" in caught.value.remedy


def test_a_loader_that_reads_from_its_construction_on_is_refused_with_the_remedy(kit: SimpleNamespace) -> None:
    """Its order was drawn before anyone could seed it."""

    class Eager(kit.DataLoader):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            vars(self)["iterator"] = super().__iter__()

        def __iter__(self):
            yield from vars(self)["iterator"]

    with pytest.raises(UsageError, match="Eager") as caught:
        kit.read(Eager(np.arange(3.0), batch_size=3))  # noise would be drawn in Paddle's thread, while other tests draw
    assert "DataLoader with persistent_workers=True" in caught.value.remedy


def resumable(kit: SimpleNamespace, source: Any, extra: Any = ()) -> Any:
    """A stream that tells and takes its position, and knows how many items it had to produce since it was made."""

    class Resumable(kit.IterableDataset):
        produced = 0

        def __init__(self) -> None:
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

    return Resumable()


def test_a_stream_with_a_state_goes_on_without_reading_again(kit: SimpleNamespace) -> None:
    """Its own state (arrays of every kind in it) and its random streams are stored: nothing is produced twice."""
    extra = [*kit.kinds_of_tensors(), np.float32(1.5), np.ones((2, 2)), (1, None)]
    before = kit.fingerprint()
    whole = kit.read(kit.loader(resumable(kit, kit.Noisy(), extra)))
    for stop in (1, 3, 5):
        stopped = kit.read(kit.loader(resumable(kit, kit.Noisy(), extra)), stop=stop)
        dataset = resumable(kit, kit.Noisy())
        resumed = kit.read(kit.loader(dataset), after=stopped)
        assert np.array_equal(resumed.rows, whole.rows)
        assert dataset.produced == max(0, 13 - 3 * stop)
        assert resumed.notes == []
        assert repr(resumed.state["own"]["extra"]) == repr(stopped.state["own"]["extra"])
    assert kit.fingerprint() == before
    bare = resumable(kit, kit.Noisy(), extra)
    told = kit.read(bare, stop=1).state
    kit.read(bare, after=kit.Read([None], 0, told), stop=2)
    for given, got in zip(kit.kinds_of_tensors(), bare.extra, strict=False):
        assert got.dtype == given.dtype
        assert got.tolist() == given.tolist()


def test_the_next_epoch_of_a_resumed_stream_starts_at_its_beginning(kit: SimpleNamespace) -> None:
    """Loading a position does not stick to the user's data set."""
    data = kit.Data()
    loader = kit.loader(resumable(kit, kit.Noisy()))
    stopped = kit.read(loader, epoch=0, stop=2, data=data)
    kit.read(loader, epoch=0, after=stopped, data=data)
    assert kit.read(loader, epoch=1, data=data).indices == list(range(13))


def test_a_state_that_cannot_be_stored_is_replaced_by_reading_again(kit: SimpleNamespace) -> None:
    """Training goes on, a note names what could not be stored, and the resume is exact all the same."""
    stopped = kit.read(kit.loader(resumable(kit, kit.Noisy(), [print])), stop=2)
    assert "loader.extra[0]" in stopped.notes[0]
    whole = kit.read(kit.loader(resumable(kit, kit.Noisy())))
    resumed = kit.read(kit.loader(resumable(kit, kit.Noisy())), after=stopped)
    assert np.array_equal(resumed.rows, whole.rows)
    assert "reading 2 batches again" in resumed.notes[0]


class StatefulForeign(Foreign):
    """A loader of another library that can tell its state."""

    def __init__(self, source: Any) -> None:
        super().__init__(source)
        self.order: list[int] = []

    def __iter__(self):
        self.order = self.order or self.rng.permutation(len(self.source)).tolist()
        while self.order:
            yield self.source[self.order.pop()].reshape(1, -1)

    def state_dict(self) -> dict[str, Any]:
        return {"order": list(self.order)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order = list(state["order"])


def test_a_foreign_loader_with_a_state_goes_on_from_it(kit: SimpleNamespace) -> None:
    """Anything with state_dict and load_state_dict is asked for its state; what it draws next is the same."""
    whole = kit.read(StatefulForeign(kit.Noisy()))
    stopped = kit.read(StatefulForeign(kit.Noisy()), stop=5)
    resumed = kit.read(StatefulForeign(kit.Noisy()), after=stopped)
    assert np.array_equal(resumed.rows, whole.rows)
    assert resumed.notes == []


def test_numpys_stream_goes_on_from_what_earlier_versions_stored(kit: SimpleNamespace) -> None:
    """The words as bytes, and the second number of a pair."""
    stopped = kit.read(StatefulForeign(kit.Noisy()), stop=5)
    whole = kit.read(StatefulForeign(kit.Noisy()))
    streams = stopped.state["streams"]
    for at, state in enumerate(streams):
        if isinstance(state, dict) and state.get("bit_generator") == "MT19937":
            words = state["state"]["key"].value[2] + int(state["state"]["pos"]).to_bytes(4, sys.byteorder)
            streams[at] = (words, state["gauss"] if state["has_gauss"] else None)
    assert any(isinstance(state, tuple) and isinstance(state[0], bytes) for state in streams)
    assert np.array_equal(kit.read(StatefulForeign(kit.Noisy()), after=stopped).rows, whole.rows)


def test_a_resumed_loader_of_another_kind_is_refused(kit: SimpleNamespace) -> None:
    """A stream cannot continue a list, nor a sampler's order a stream."""
    stopped = kit.read(kit.loader(kit.NoisyStream()), stop=2)
    for other in ([np.ones(1)], kit.loader(kit.Noisy())):
        with pytest.raises(Incompatible, match="a loader read from its beginning →"):
            kit.read(other, after=stopped)
    with pytest.raises(Incompatible, match="seed: 5 → 8"):
        kit.read(kit.loader(kit.NoisyStream()), after=stopped, seed=8)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_in_a_stream_arrives(kit: SimpleNamespace, workers: int) -> None:
    """Also the one that drop_last would have swallowed with the batch it broke."""

    def broken(_: Any) -> Any:
        yield kit.tensor(np.ones(2))
        raise LookupError("broken stream")

    with pytest.raises(LookupError, match="broken stream"):
        kit.read(kit.loader(stream(kit, broken), drop_last=True, num_workers=workers))
