"""How fast a storage takes what is put there, by a few probe objects that are deleted again."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

from colabkeep.session.bench.rates import Rate, rate_of
from colabkeep.stores.base import BytesSource, Receipt, Store
from colabkeep.vocabulary.clock import Clock
from colabkeep.vocabulary.errors import StoreError

__all__ = ["PROBE", "Budget", "Taken", "probe"]

PROBE = "colabkeep-bench-"
"""What the names of probe objects begin with: whoever finds one, after the power went, may delete it."""

_SMALLEST = 64 * 2**10  # bytes; the first probe, which shows what an object costs beside its bytes
_GROWS = 4  # times the size of the one before
_RUNS = 3  # of the largest size
_GOODBYE = 5.0  # seconds for a deletion to reach the slower side of a store that has two
_PAUSE = 0.25  # seconds between two questions whether it has arrived


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a probing may take: so many seconds, and so many bytes for the largest object and in all."""

    seconds: float
    largest: int
    in_all: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What a storage took. `each`: seconds that an object takes beside its bytes, at most. `confirmed`: all that was
    put reached the highest rung that there is here while it was waited for. `free_bytes`: the room there is, None where
    that is not known; `disk`: it is on this machine's disk. `left`: the probes that could not be deleted."""

    url: str
    rate: Rate
    each: float
    rung: str
    confirmed: bool
    bytes: int
    free_bytes: int | None = None
    disk: bool = False
    left: tuple[str, ...] = ()

    def seconds(self, size: int) -> float:
        """How long so many bytes take, in one piece."""
        return self.each + size / self.rate.median


def probe(store: Store, clock: Clock, budget: Budget) -> Taken:
    """Put objects of growing size while the budget lasts, at least one, and delete them, also when interrupted. No more
    than half of the room that there is gets used.

    Raises:
        StoreError: it took nothing.
    """
    properties = store.properties
    end, top, free = clock.monotonic() + budget.seconds, properties.top_rung, properties.free_bytes
    in_all = budget.in_all if free is None else min(budget.in_all, free // 2)
    size, runs, total, confirmed, rung = _SMALLEST, 0, 0, True, "local"
    taken: list[tuple[int, float]] = []
    with _cleaned(store) as (names, left):
        while runs < _RUNS:
            source = BytesSource(os.urandom(size))  # nothing on the way can have these already
            names.append(f"{PROBE}{secrets.token_hex(6)}")
            began = clock.monotonic()
            receipt = _arrived(store, clock, store.put(names[-1], source), top, end)
            seconds, rung = clock.monotonic() - began, receipt.rung
            confirmed &= rung == top
            taken.append((size, seconds))
            total += size
            largest = min(budget.largest, size * _GROWS)
            fits = clock.monotonic() + largest / size * seconds <= end and total + largest <= in_all
            if size == budget.largest or not fits:
                runs += 1
            else:
                size = largest
            if clock.monotonic() + seconds > end or total + size > in_all:
                break
    rate, each = _line(taken)
    return Taken(
        url=store.url,
        rate=rate,
        each=each,
        rung=rung,
        confirmed=confirmed,
        bytes=total,
        free_bytes=free,
        disk=properties.folder is not None,
        left=tuple(left),
    )


def _line(taken: Sequence[tuple[int, float]]) -> tuple[Rate, float]:
    """From sizes and their seconds: the rate of the bytes, and the seconds that an object takes beside them."""
    piece = taken[-1][0]
    small = median(seconds for size, seconds in taken if size == _SMALLEST)
    large = [seconds for size, seconds in taken if size == piece]
    if piece == _SMALLEST or median(large) <= small:  # noise hides the bytes, or there was no time for more of them
        return rate_of(piece, large), 0.0
    rate = rate_of(piece, [max(seconds - small, seconds / 10) * piece / (piece - _SMALLEST) for seconds in large])
    return rate, max(0.0, small - _SMALLEST / rate.median)


@contextmanager
def _cleaned(store: Store) -> Iterator[tuple[list[str], list[str]]]:
    """Names to be deleted at the end, whatever happens, and those that could not be."""
    names: list[str] = []
    left: list[str] = []
    try:
        yield names, left
    finally:
        for name in names:
            try:
                store.delete(name)
            except StoreError:
                left.append(name)
        if store.properties.behind is not None:
            store.flush(_GOODBYE)


def _arrived(store: Store, clock: Clock, receipt: Receipt, top: str, end: float) -> Receipt:
    """The receipt once it is on the top rung, or at the end of the time."""
    while receipt.rung != top and clock.monotonic() + _PAUSE < end:
        clock.sleep(_PAUSE)
        receipt = store.confirm(receipt)
    return receipt
