"""How git names the bytes of a file and keeps a large one, and sources as the files that clients of such hubs
upload from.
"""

from __future__ import annotations

import hashlib
import io
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colabkeep.core.errors import StoreError
from colabkeep.stores.base import Source

__all__ = [
    "POINTER_BYTES",
    "SourceFile",
    "Spooled",
    "git_digest",
    "is_pointer_to",
    "read_pointer",
    "spooled",
]

POINTER_BYTES = 200
"""No pointer without extensions is longer."""

_POINTER = re.compile(
    rb"version https://git-lfs\.github\.com/spec/v1\noid sha256:([0-9a-f]{64})\nsize ([0-9]{1,18})\n?"
)


def git_digest(data: bytes) -> str:
    """Git's own name for these bytes."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def read_pointer(data: bytes) -> tuple[str, int] | None:
    """The SHA-256 and the size in bytes of the large file that this text stands for; None if it is no pointer."""
    match = _POINTER.fullmatch(data)
    return None if match is None else (match[1].decode(), int(match[2]))


def is_pointer_to(git: str, sha256: str, size: int) -> bool:
    """Is `git` the name of a pointer to a file of this SHA-256 and size? aistudio-sdk leaves out its last newline."""
    text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}".encode()
    return git in (git_digest(text), git_digest(text + b"\n"))


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


_SMALL = 5 * 2**20  # bytes; up to which AI Studio keeps a file in git itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Spooled:
    """The file, and what its bytes are. `md5`: as an object storage states it. `git`: git's name for a small one."""

    path: str
    size: int
    sha256: str
    md5: str
    git: str | None


@contextmanager
def spooled(name: str, source: Source) -> Iterator[Spooled]:
    """In the machine's temporary folder, and gone afterwards. Its ending is that of `name`: the SDK judges by it.

    Raises:
        StoreError: the source gave other bytes than it announced.
    """
    with tempfile.TemporaryDirectory(prefix="colabkeep-aistudio-") as folder:
        path = Path(folder) / name.rpartition("/")[2]
        md5, sha256, came = hashlib.md5(usedforsecurity=False), hashlib.sha256(), 0
        with path.open("wb") as file:
            for chunk in source.chunks():
                came += len(chunk)
                file.write(chunk)
                md5.update(chunk)
                sha256.update(chunk)
        if came != source.size:
            raise StoreError(
                problem=f"{name!r} was to have {source.size} bytes and came with {came}; it is not kept.",
                remedy="Its data changed while it was being saved: leave arrays and files alone until their save is "
                "done.",
            )
        git = git_digest(path.read_bytes()) if came <= _SMALL else None
        yield Spooled(path=str(path), size=came, sha256=sha256.hexdigest(), md5=md5.hexdigest(), git=git)
