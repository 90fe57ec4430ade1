"""The order of one epoch: the user's own sampler, listed under a seed that depends on (seed, epoch) only."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, islice
from typing import Any

from colabkeep.frameworks.common.iterables import Place, length_of
from colabkeep.frameworks.common.streams import Aside, Kinds, Streams
from colabkeep.frameworks.common.walk import instances
from colabkeep.vocabulary.seeds import derive

__all__ = ["Order", "Sampling", "subsets"]

_LISTED = 1 << 24
"""Indices that are listed at most: 128 MiB as machine integers. As Python's they take 54 bytes each (measured)."""
_CHUNK = 1 << 12  # indices, or batches of them, looked at in one go
_REMEMBERED = 4096  # batches back from the newest, whose digest is still known: 2 MB


@dataclass(frozen=True, slots=True)
class Sampling:
    """Where a map-style loader's indices come from.

    `cut` is (batch size, drop_last) where batches are nothing but pieces of the sampler's order. Without it the
    sampler gives whole batches or, with `whole_batches=False`, one item at a time.
    """

    sampler: Any
    cut: tuple[int, bool] | None = None
    whole_batches: bool = False

    @property
    def bare(self) -> bool:
        """Does the loader give single items instead of batches?"""
        return self.cut is None and not self.whole_batches


class Order:
    """What the sampler of a map-style loader gives in one epoch, from a place in it on.

    One of samples (`cut` is set) can be cut differently from any sample on. Any other is one of whole batches or
    items. A sampler that does not end where its length says, has none, or names very many indices (unless `whole`), is
    followed as it goes instead of listed; `listed` is None then, and the digest covers what was consumed so far.
    """

    def __init__(self, sampling: Sampling, place: Place, kinds: Kinds, *, whole: bool = False) -> None:
        self.cut = sampling.cut
        self._whole_batches = sampling.whole_batches
        self._place = place
        self._skip = place.batches if self.cut is None else place.samples
        self._hash = blake2b(digest_size=16)
        self._digests = deque([(place.batches, self._hash)], _REMEMBERED)
        most = None if whole else _LISTED
        aside = Aside(Streams.of(kinds, sampling.sampler), derive(place.seed, "order", place.epoch))
        self.listed, self._tail = _listed(sampling.sampler, aside, most)
        if self.listed is None:
            for items in self._tail.pieces(self._skip):
                self._feed(items)
        elif isinstance(self.listed, range) and most is not None and len(self.listed) > most:
            self._hash.update(repr(self.listed).encode())
        else:
            self._feed(self.listed)

    @property
    def length(self) -> int | None:
        """Batches in the whole epoch; those consumed count with the size they had."""
        if self.listed is None or self.cut is None:
            return None if self.listed is None else len(self.listed)
        size, drop_last = self.cut
        left = max(0, len(self.listed) - self._skip)
        return self._place.batches + (left // size if drop_last else -(-left // size))

    def digest(self, batches: int | None = None) -> str | None:
        """A hash of the whole order. Of one that is followed as it goes: of what was consumed, or of the first
        `batches` batches of it; None if that is too long ago to be known."""
        if self.listed is not None or batches is None:
            return self._hash.hexdigest()
        return next((known.hexdigest() for count, known in reversed(self._digests) if count == batches), None)

    def remaining(self) -> Iterator[Any]:
        """The index lists behind the place (with `batch_size=None`: the indices). Called once."""
        if self.listed is None:
            return self._tail.items() if self.cut is None else self._tail.batches(*self.cut)
        if self.cut is None:
            return islice(self.listed, self._skip, None)
        return _slices(self.listed, self._skip, *self.cut)

    def consumed(self, index: Any) -> None:
        """This index list was consumed (of an order that is followed as it goes)."""
        if self.listed is None:
            count, before = self._digests[-1]
            self._hash = before.copy()
            self._feed([index] if self.cut is None else index)
            self._digests.append((count + 1, self._hash))

    def _feed(self, items: Iterable[Any]) -> None:
        if self._whole_batches:
            for batch in items:
                _feed(self._hash, [len(batch), *batch])
        else:
            _feed(self._hash, items)


def subsets(dataset: Any) -> Iterator[tuple[int, str]]:
    """For each subset within a data set, however wrapped: how many indices it has, and a hash of them."""
    for _, inside in instances(dataset):
        indices: Any = inside.get("indices") if "dataset" in inside else None  # torch's Subset, Paddle's, their likes
        if length_of(indices) is None or isinstance(indices, (str, bytes, bytearray)):
            continue
        try:
            packed = array("q", indices.tolist() if hasattr(indices, "tolist") else indices)
        except (TypeError, OverflowError):  # no whole numbers: of a data set that means something else by it
            continue
        yield len(packed), blake2b(packed, digest_size=8).hexdigest()


class _Tail:
    """What a sampler still gives, drawn in streams that are its alone, a piece at a time."""

    def __init__(self, head: Iterable[Any], iterator: Iterator[Any], aside: Aside) -> None:
        self._iterator = chain(head, iterator)
        self._aside = aside

    def pieces(self, count: int) -> Iterator[list[Any]]:
        """The next `count` indices."""
        for start in range(0, count, _CHUNK):
            yield self._take(min(_CHUNK, count - start))

    def batches(self, size: int, drop_last: bool) -> Iterator[list[Any]]:
        """The rest, cut."""
        while piece := self._take(size):
            if drop_last and len(piece) < size:
                return
            yield piece

    def items(self) -> Iterator[Any]:
        """The rest, one by one."""
        while piece := self._take(1):
            yield from piece

    def _take(self, count: int) -> list[Any]:
        with self._aside:
            return list(islice(self._iterator, count))


def _listed(source: Any, aside: Aside, most: int | None) -> tuple[Sequence[Any] | None, _Tail]:
    """All that `source` gives if it ends where its length says and is not too much; else None, and what follows it."""
    limit = length_of(source)
    with aside:
        iterator = iter(source)
        straight = _range(iterator)
        if straight is not None and (limit is None or len(straight) <= limit):
            return straight, _Tail((), iterator, aside)
        many = limit is None or (most is not None and limit > most)
        head = [] if many else _read(iterator, limit + 1)  # type: ignore[operator] # a number, if not many
    if not many and len(head) <= limit:  # type: ignore[operator]
        return head, _Tail((), iterator, aside)
    return None, _Tail(head, iterator, aside)


def _read(iterator: Iterator[Any], limit: int) -> list[Any] | array[int]:
    """Up to `limit` members; as machine integers if they are integers, since they have to stay for the epoch."""
    packed: array[int] = array("q")
    while chunk := list(islice(iterator, min(_CHUNK, limit - len(packed)))):
        try:
            words = array("q", chunk if set(map(type, chunk)) == {int} else ())
        except OverflowError:  # more than 64 bits
            words = array("q")
        if not words:
            return [*packed, *chunk, *islice(iterator, limit - len(packed) - len(chunk))]
        packed += words
    return packed


def _range(iterator: Iterator[Any]) -> range | None:
    """The range that is counted through, by a sampler that does nothing else, as those without a shuffle do."""
    if type(iterator) is not type(iter(range(0))):
        return None
    reduced: Any = iterator.__reduce__()  # (iter, (range,), position)
    return None if reduced[2] else reduced[1][0]


def _slices(items: Sequence[Any], start: int, size: int, drop_last: bool) -> Iterator[list[Any]]:
    stop = len(items)
    if drop_last:
        stop -= (stop - start) % size
    return (list(items[at : min(at + size, stop)]) for at in range(start, stop, size))


def _feed(digest: Any, items: Iterable[Any]) -> None:
    """Hash integers fast (1 M in 30 ms), anything else by its text, as far as that is the same in every process."""
    if isinstance(items, array):
        digest.update(items)
        return
    if isinstance(items, range):
        for start in range(0, len(items), _CHUNK):
            digest.update(array("q", items[start : start + _CHUNK]))
        return
    listed = list(items)
    try:
        digest.update(array("q", listed))
    except (TypeError, OverflowError):
        for item in listed:
            text = repr(item)
            digest.update((type(item).__qualname__ if " at 0x" in text else text).encode() + b"\x1f")
