"""How fast this machine copies memory and hashes: the median of some runs, and how far they lie apart."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from colabkeep.vocabulary.clock import Clock

__all__ = ["Rate", "copy_rate", "hash_rate", "rate_of"]

_PIECE = 64 * 2**20  # bytes; more than the caches of the machines that notebooks get
_SECONDS = 2.0  # for each measurement
_RUNS = (3, 15)  # at least, at most
_CHUNK = 2**20  # bytes that are hashed at once, as a save does


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Bytes per second: the median of `runs`, with the slowest and the fastest, for pieces of `piece` bytes."""

    median: float
    slowest: float
    fastest: float
    runs: int
    piece: int


def rate_of(piece: int, seconds: Sequence[float]) -> Rate:
    """From the seconds that each run took for a piece."""
    rates = [piece / max(each, 1e-9) for each in seconds]
    return Rate(median=median(rates), slowest=min(rates), fastest=max(rates), runs=len(rates), piece=piece)


def copy_rate(clock: Clock) -> Rate:
    """Copying within memory, into a buffer that was used before, on one thread. Frameworks may use several."""
    source, target = bytes(_PIECE), bytearray(_PIECE)
    return rate_of(_PIECE, _runs(clock, lambda: target.__setitem__(slice(None), source)))


def hash_rate(clock: Clock) -> Rate:
    """SHA-256, which names every file of a checkpoint."""
    data = memoryview(bytes(_PIECE // 2))

    def once() -> None:
        digest = hashlib.sha256()
        for begin in range(0, len(data), _CHUNK):
            digest.update(data[begin : begin + _CHUNK])

    return rate_of(len(data), _runs(clock, once))


def _runs(clock: Clock, once: Callable[[], None]) -> list[float]:
    once()  # warm: pages are there, and the processor is awake
    least, most = _RUNS
    taken: list[float] = []
    while len(taken) < least or (len(taken) < most and sum(taken) < _SECONDS):
        began = clock.monotonic()
        once()
        taken.append(clock.monotonic() - began)
    return taken
