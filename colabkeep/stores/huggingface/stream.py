"""A source as the file that huggingface_hub wants to upload from."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from typing import Any

from colabkeep.stores.base import Source
from colabkeep.vocabulary.errors import StoreError

__all__ = ["SourceFile"]

_SAMPLE = 512  # bytes that the Hub looks at to tell text from binary


class SourceFile(io.BufferedIOBase):
    """Reads a source in order; going back to its start reads it again, which happens when an upload is tried again.

    It holds one chunk. `failure` is what the source raised, `moved` when it was last read from, in seconds of
    `monotonic`. After `abandon`, reading fails: a request that nobody waits for any more comes to its end.
    """

    def __init__(self, name: str, source: Source, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._source = source
        self._monotonic = monotonic
        self._position = 0  # where the reader is
        self._reached = 0  # what the iterator has given
        self._chunks: Iterator[memoryview] | None = None
        self._rest = memoryview(b"")  # of the last chunk
        self._abandoned = False
        self.failure: BaseException | None = None
        self.moved = monotonic()
        self.sample = b""
        self.sample = self._read(_SAMPLE)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._source.size}[whence] + offset
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        left = self._source.size - self._position
        wanted = left if size is None or size < 0 else min(size, left)
        pieces = bytearray()
        while len(pieces) < wanted:
            pieces += self._read(wanted - len(pieces))
        if self._position == self._source.size:
            self._see_the_end()
        return bytes(pieces)

    def abandon(self) -> None:
        """Nobody waits for what is read any more."""
        self._abandoned = True

    def _read(self, size: int) -> bytes:
        """At least one of the next `size` bytes."""
        if self._abandoned:
            raise ConnectionAbortedError("the upload was given up")
        self.moved = self._monotonic()
        if self._position < len(self.sample):  # so that whoever looked at the sample need not start again
            data = self.sample[self._position : self._position + size]
            self._position += len(data)
            return data
        try:
            if self._position < self._reached or self._chunks is None:
                self._chunks, self._reached, self._rest = iter(self._source.chunks()), 0, memoryview(b"")
            self._catch_up()
            if not len(self._rest):
                raise self._changed(self._reached)
        except BaseException as error:
            self.failure = error
            raise
        data = bytes(self._rest[:size])
        self._rest = self._rest[len(data) :]
        self._position += len(data)
        self._reached += len(data)
        return data

    def _catch_up(self) -> None:
        """Go on until the iterator is where the reader is, and has something for it."""
        assert self._chunks is not None  # noqa: S101 - set just before
        while True:
            skipped = min(self._position - self._reached, len(self._rest))
            self._rest, self._reached = self._rest[skipped:], self._reached + skipped
            if len(self._rest):
                return
            chunk = next(self._chunks, None)
            if chunk is None:
                return
            self._rest = memoryview(chunk).cast("B")

    def _see_the_end(self) -> None:
        """That no more bytes come than were announced."""
        extra = len(self._rest) + sum(map(len, self._chunks or ()))
        if extra:
            self.failure = self._changed(self._source.size + extra)
            raise self.failure

    def _changed(self, came: Any) -> StoreError:
        return StoreError(
            problem=f"{self._name!r} was to have {self._source.size} bytes and came with {came}; it is not kept.",
            remedy="Its data changed while it was being saved: leave arrays and files alone until their save is done.",
        )
