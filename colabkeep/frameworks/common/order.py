"""The order of one epoch: the user's own sampler, listed under a seed that depends on (seed, epoch) only."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, islice
from typing import Any

from colabkeep.frameworks.common.iterables import Place, length_of
from colabkeep.frameworks.common.streams import Aside, Kinds, Streams
from colabkeep.vocabulary.seeds import derive

__all__ = ["Order", "Sampling"]


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
    items. A sampler that does not end where its length says, or has none, is followed as it goes instead of
    listed; `listed` is None then, and `digest` covers what was consumed so far.
    """

    def __init__(self, sampling: Sampling, place: Place, kinds: Kinds) -> None:
        self.cut = sampling.cut
        self._whole_batches = sampling.whole_batches
        self._place = place
        self._skip = place.batches if self.cut is None else place.samples
        self._hash = blake2b(digest_size=16)
        aside = Aside(Streams.of(kinds, sampling.sampler), derive(place.seed, "order", place.epoch))
        self.listed, self._tail = _listed(sampling.sampler, aside)
        if self.listed is None:
            self._feed(islice(self._tail, self._skip))
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

    @property
    def digest(self) -> str:
        """A hash of the whole order, or of the consumed part of one that is followed as it goes."""
        return self._hash.hexdigest()

    def remaining(self) -> Iterator[Any]:
        """The index lists behind the place (with `batch_size=None`: the indices). Called once."""
        if self.listed is None:
            return self._tail if self.cut is None else _cut(self._tail, *self.cut)
        if self.cut is None:
            return islice(self.listed, self._skip, None)
        return _slices(self.listed, self._skip, *self.cut)

    def consumed(self, index: Any) -> None:
        """This index list was consumed (of an order that is followed as it goes)."""
        if self.listed is None:
            self._feed([index] if self.cut is None else index)

    def _feed(self, items: Iterable[Any]) -> None:
        if self._whole_batches:
            for batch in items:
                _feed(self._hash, [len(batch), *batch])
        else:
            _feed(self._hash, list(items))


def _listed(source: Any, aside: Aside) -> tuple[list[Any] | None, Iterator[Any]]:
    """All that `source` gives if it ends where its length says; else None, and an iterator over it."""
    limit = length_of(source)
    with aside:
        iterator = iter(source)
        head = [] if limit is None else list(islice(iterator, limit + 1))
    if limit is not None and len(head) <= limit:
        return head, iter(())
    return None, chain(head, _isolated(iterator, aside))


def _isolated(iterator: Iterator[Any], aside: Aside) -> Iterator[Any]:
    end = object()
    while True:
        with aside:
            item = next(iterator, end)
        if item is end:
            return
        yield item


def _slices(items: list[Any], start: int, size: int, drop_last: bool) -> Iterator[list[Any]]:
    stop = len(items)
    if drop_last:
        stop -= (stop - start) % size
    return (items[at : min(at + size, stop)] for at in range(start, stop, size))


def _cut(items: Iterator[Any], size: int, drop_last: bool) -> Iterator[list[Any]]:
    while piece := list(islice(items, size)):
        if drop_last and len(piece) < size:
            return
        yield piece


def _feed(digest: Any, items: list[Any]) -> None:
    """Hash integers fast (1 M in 30 ms), anything else by its text, as far as that is the same in every process."""
    try:
        digest.update(array("q", items))
    except (TypeError, OverflowError):
        for item in items:
            text = repr(item)
            digest.update((type(item).__qualname__ if " at 0x" in text else text).encode() + b"\x1f")
