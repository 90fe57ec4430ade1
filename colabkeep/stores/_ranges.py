"""An object that is read by asking for ranges of its bytes."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, BinaryIO

__all__ = ["Fetch", "ranged"]

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
