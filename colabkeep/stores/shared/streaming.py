"""Bytes on their way: a source put together to blocks and hashed, an object read by ranges, a download that goes on
where it broke off.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from colabkeep.core.errors import ObjectNotFound, StoreError
from colabkeep.stores.base import Source
from colabkeep.stores.shared.retry import Asking

__all__ = [
    "Fetch",
    "Tally",
    "blocks",
    "ranged",
    "streamed",
]


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


Fetch = Callable[[int, int], bytes]
"""The bytes from one offset up to another, not included."""

_FIRST = 2**18  # whoever looks at a header gets little; whoever goes on gets more each time
_LARGEST = 2**23


def ranged(size: int, fetch: Fetch) -> BinaryIO:
    """A seekable reader of an object of `size` bytes. It holds one range at a time, of at most 8 MiB."""
    return io.BufferedReader(_Ranges(size, fetch), buffer_size=_FIRST)


class _Ranges(io.RawIOBase):
    """The raw side: keeps the last range fetched."""

    def __init__(self, size: int, fetch: Fetch) -> None:
        self._size = size
        self._fetch = fetch
        self._position = 0
        self._held = memoryview(b"")
        self._start = 0  # of what is held
        self._next = _FIRST

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")
        if self._position >= self._size or not len(target):
            return 0
        if not self._start <= self._position < self._start + len(self._held):
            self._hold()
        offset = self._position - self._start
        piece = self._held[offset : offset + len(target)]
        target[: len(piece)] = piece
        self._position += len(piece)
        return len(piece)

    def _hold(self) -> None:
        self._held = memoryview(b"")  # first: the old range and the new one need not be in memory together
        end = min(self._position + self._next, self._size)
        self._held, self._start = memoryview(self._fetch(self._position, end)), self._position
        self._next = min(4 * self._next, _LARGEST)


_BUFFER = 2**18


def streamed(size: int, begin: Callable[[int], Any], ask: Asking, name: str) -> BinaryIO:
    """A seekable reader of `size` bytes. `begin` asks for those from an offset on, and gives a `requests` answer."""
    return io.BufferedReader(_Stream(size, begin, ask, name), buffer_size=_BUFFER)


class _Stream(io.RawIOBase):
    """One request for all that is left, and another one only after a failure or a jump."""

    def __init__(self, size: int, begin: Callable[[int], Any], ask: Asking, name: str) -> None:
        self._size = size
        self._begin = begin
        self._ask = ask
        self._name = name
        self._position = 0
        self._answer: Any = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        position = max(0, base + offset)
        if position != self._position:
            self._drop()
        self._position = position
        return position

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")[: max(0, self._size - self._position)]
        if not len(target):
            return 0
        count = self._ask(f"read {self._name!r}", lambda: self._some(target), missing=ObjectNotFound)
        self._position += count
        return count

    def close(self) -> None:
        self._drop()
        super().close()

    def _some(self, target: memoryview) -> int:
        try:
            if self._answer is None:
                self._answer = self._begin(self._position)
                self._answer.raise_for_status()
            count = int(self._answer.raw.readinto(target))
            if not count:
                raise ConnectionError(f"it broke off after {self._position} of {self._size} bytes")
        except BaseException:
            self._drop()
            raise
        return count

    def _drop(self) -> None:
        if self._answer is not None:
            self._answer.close()
        self._answer = None
