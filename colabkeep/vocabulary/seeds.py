"""Seeds as pure functions of where we are: (run seed, epoch, batch position, …)."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

__all__ = ["derive", "derive_each"]

_AT_ONCE = 32  # seeds: code that comes to run in every step, between other work, takes five times as long


def derive(*position: int | str) -> int:
    """A 63-bit seed for a position. Equal positions give equal seeds, on every machine and version.

    The rule is part of the format: changing it would reorder the data of runs under way.

    >>> derive(0, "batch", 3, 17) == derive(0, "batch", 3, 17)
    True
    """
    text = "\x1f".join(map(str, position)).encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little") >> 1


def derive_each(*position: int | str, start: int) -> Iterator[int]:
    """`derive(*position, start)`, `derive(*position, start + 1)`, … without end.

    >>> next(derive_each(0, "batch", 3, start=17)) == derive(0, "batch", 3, 17)
    True
    """
    before = blake2b("\x1f".join([*map(str, position), ""]).encode(), digest_size=8)
    while True:
        yield from [_seed(before, number) for number in range(start, start + _AT_ONCE)]
        start += _AT_ONCE


def _seed(before: blake2b, number: int) -> int:
    digest = before.copy()
    digest.update(b"%d" % number)
    return int.from_bytes(digest.digest(), "little") >> 1
