"""Bytes on their way: a source in chunks, hashed; a source as a file; a download that continues where it broke off."""

from __future__ import annotations

import hashlib
import io
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

from colabkeep.stores.base import Source, changed


def flat(piece: memoryview) -> memoryview:
    """The same memory as bytes; what has no bytes cannot be cast."""
    return piece.cast("B") if piece.nbytes else memoryview(b"")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes `start` to `end` of an object. `data` is valid until the next chunk is asked for."""

    start: int
    data: memoryview
    is_last: bool

    @property
    def end(self) -> int:
        return self.start + len(self.data)


def chunks(name: str, source: Source, size: int, start: int = 0) -> Iterator[Chunk]:
    """The bytes of `source` from `start` on in chunks of `size` bytes; the last one is shorter, perhaps empty.

    The last one comes only when the source has ended and was as long as it announced, because sending it is what makes
    an object exist. One buffer is used for all of them.

    Raises:
        StoreError: the source has another number of bytes than it announced. What it raises comes out as it is.
    """
    buffer = memoryview(bytearray(max(min(size, source.size - start), 1)))
    filled, sent, total = 0, start, 0
    for piece in map(flat, source.chunks()):
        skipped = min(max(start - total, 0), len(piece))
        total += len(piece)
        if total > source.size:
            raise changed(name, source.size, f"at least {total}")
        rest = piece[skipped:]
        while len(rest):
            if filled == len(buffer):  # and more is to come, so it was not the last
                yield Chunk(sent, buffer, is_last=False)
                filled, sent = 0, sent + len(buffer)
            count = min(len(rest), len(buffer) - filled)
            buffer[filled : filled + count] = rest[:count]
            filled, rest = filled + count, rest[count:]
    if total != source.size:
        raise changed(name, source.size, total)
    yield Chunk(sent, buffer[:filled], is_last=True)


class Tally:
    """The digests of the chunks that went by."""

    def __init__(self) -> None:
        self.size = 0
        self.ended = False  # were these all, and nobody had the name then?
        self._sha256 = hashlib.sha256()
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._parts: list[bytes] = []

    def add(self, data: memoryview) -> None:
        self.size += len(data)
        self._sha256.update(data)
        self._md5.update(data)
        self._parts.append(hashlib.md5(data, usedforsecurity=False).digest())

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    @property
    def md5(self) -> bytes:
        return self._md5.digest()

    @property
    def md5_of_md5s(self) -> str:
        """The digest of the digests of the chunks, in hex, with their number: how S3 names what came in parts."""
        joined = hashlib.md5(b"".join(self._parts), usedforsecurity=False)
        return f"{joined.hexdigest()}-{len(self._parts)}"


def digest_of(reader: BinaryIO) -> str:
    """The SHA-256, in hex, of all that can be read; `reader` is closed."""
    digest = hashlib.sha256()
    with reader:
        while data := reader.read(2**20):
            digest.update(data)
    return digest.hexdigest()


class _Reader(io.RawIOBase):
    """Something of a known size to be read at any offset; a subclass says how, in `_read`."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._position = 0

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
        target = memoryview(buffer).cast("B")[: max(0, self._size - self._position)]
        count = self._read(target) if len(target) else 0
        self._position += count
        return count

    def _read(self, target: memoryview) -> int:
        """Fill the beginning of `target`, with one byte at least, from the current position on; how many bytes."""
        raise NotImplementedError


class SourceReader(_Reader):
    """A source as a file, for clients that upload one. Going back reads the source again from its start, which happens
    when an upload is tried again.

    `failure` is what the source raised, `moved` when it was last read from, in seconds of `monotonic`. After `abandon`,
    reading fails: a request that nobody waits for any more comes to its end.
    """

    def __init__(self, name: str, source: Source, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__(source.size)
        self._name = name
        self._source = source
        self._monotonic = monotonic
        self._pieces: Iterator[memoryview] = iter(())
        self._piece = memoryview(b"")
        self._start = source.size + 1  # of the piece, in the source: behind every position, so reading begins anew
        self._abandoned = False
        self.failure: BaseException | None = None
        self.moved = monotonic()

    def abandon(self) -> None:
        self._abandoned = True

    def _read(self, target: memoryview) -> int:
        if self._abandoned:
            raise ConnectionAbortedError("the upload was given up")
        self.moved = self._monotonic()
        try:
            return self._take(target)
        except BaseException as error:
            self.failure = error
            raise

    def _take(self, target: memoryview) -> int:
        if self._position < self._start:
            self._pieces, self._piece, self._start = map(flat, self._source.chunks()), memoryview(b""), 0
        while self._position >= self._start + len(self._piece):
            self._start += len(self._piece)
            piece = next(self._pieces, None)
            if piece is None:
                raise changed(self._name, self._size, self._start)
            self._piece = piece
        data = self._piece[self._position - self._start :][: len(target)]
        target[: len(data)] = data
        if self._position + len(data) == self._size:
            came = self._start + len(self._piece) + sum(map(len, self._pieces))
            if came != self._size:
                raise changed(self._name, self._size, came)
        return len(data)


_BUFFER = 2**18
_FIRST = 2**18  # whoever looks at a header gets little; whoever goes on gets more each time
_LARGEST = 2**23


def download(
    size: int, begin: Callable[[int], Any], ask: Callable[[Callable[[], int]], int], piece: int = 2**16
) -> io.BufferedReader:
    """A seekable reader of `size` bytes.

    `begin` opens those from an offset on, as a file that has `readinto`; where it ends, or after a jump, the next one
    is opened. `ask` calls what it is given, again where that helps, and turns its errors into `StoreError`s. `piece`:
    how much is read at once, and lost where a connection breaks.
    """
    return io.BufferedReader(_Download(size, begin, ask, piece), buffer_size=_BUFFER)


def ranged(size: int, fetch: Callable[[int, int], bytes]) -> BinaryIO:
    """A seekable reader by `fetch`, which gives the bytes from one offset up to another, not included. It holds one
    range at a time, of at most 8 MiB."""
    length = _FIRST // 4

    def begin(start: int) -> io.BytesIO:
        nonlocal length
        length = min(4 * length, _LARGEST)
        return io.BytesIO(fetch(start, min(start + length, size)))

    return download(size, begin, lambda call: call())


class _Download(_Reader):
    """The raw side: keeps what was begun last."""

    def __init__(
        self, size: int, begin: Callable[[int], Any], ask: Callable[[Callable[[], int]], int], piece: int
    ) -> None:
        super().__init__(size)
        self._largest = piece
        self._begin = begin
        self._ask = ask
        self._file: Any = None
        self._at = 0  # where in the object that file is

    def close(self) -> None:
        self._drop()
        super().close()

    def _read(self, target: memoryview) -> int:
        target, count = target[: self._largest], 0
        if self._file is not None and self._at == self._position:
            with suppress(Exception):  # it broke off: what is wrong is told by whoever opens it again
                count = int(self._file.readinto(target))
                self._at += count
        return count or self._ask(lambda: self._open(target))

    def _open(self, target: memoryview) -> int:
        self._drop()
        self._file = self._begin(self._position)
        try:
            count = int(self._file.readinto(target))
            if not count:
                raise ConnectionError(f"it broke off after {self._position} of {self._size} bytes")
        except BaseException:
            self._drop()
            raise
        self._at = self._position + count
        return count

    def _drop(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None
