"""A source's chunks, put together to blocks of one size, and counted and hashed on the way."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from colabkeep.stores.base import Source
from colabkeep.vocabulary.errors import StoreError

__all__ = ["Tally", "blocks"]


def blocks(name: str, source: Source, size: int) -> Iterator[memoryview]:
    """The bytes of `source` in blocks of `size` bytes, the last one shorter; each is valid until the next is asked for.

    Raises:
        StoreError: they are not as many as the source announced. Whatever the source raises comes out as it is.
    """
    buffer, filled, total = memoryview(bytearray(min(size, max(source.size, 1)))), 0, 0
    for chunk in source.chunks():
        rest = memoryview(chunk).cast("B")
        total += len(rest)
        if total > source.size:
            raise _changed(name, source.size, f"at least {total}")
        while len(rest):
            count = min(len(rest), len(buffer) - filled)
            buffer[filled : filled + count] = rest[:count]
            filled, rest = filled + count, rest[count:]
            if filled == len(buffer):
                yield buffer
                filled = 0
    if total != source.size:
        raise _changed(name, source.size, str(total))
    if filled:
        yield buffer[:filled]


class Tally:
    """The digests of the blocks that went by."""

    def __init__(self) -> None:
        self.size = 0
        self.ended = False  # were these all, and nobody had the name then?
        self._sha256 = hashlib.sha256()
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._blocks: list[bytes] = []

    def add(self, block: memoryview) -> None:
        """Count and hash one more."""
        self.size += len(block)
        self._sha256.update(block)
        self._md5.update(block)
        self._blocks.append(hashlib.md5(block, usedforsecurity=False).digest())

    @property
    def sha256(self) -> str:
        """Of all bytes, in hex."""
        return self._sha256.hexdigest()

    @property
    def md5(self) -> bytes:
        """Of all bytes."""
        return self._md5.digest()

    @property
    def md5_of_md5s(self) -> str:
        """The digest of the digests of the blocks, in hex, with their number: how S3 names what came in parts."""
        joined = hashlib.md5(b"".join(self._blocks), usedforsecurity=False)
        return f"{joined.hexdigest()}-{len(self._blocks)}"


def _changed(name: str, announced: int, came: str) -> StoreError:
    return StoreError(
        problem=f"{name!r} was to have {announced} bytes and came with {came}; it is not kept.",
        remedy="Its data changed while it was being saved: leave arrays and files alone until their save is done.",
    )
