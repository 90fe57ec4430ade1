"""A file behind HTTP, read as a stream that goes on where it broke off."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, BinaryIO

from colabkeep.stores._asking import Asking
from colabkeep.vocabulary.errors import ObjectNotFound

__all__ = ["streamed"]

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
