"""What is sent at a time: a source cut into chunks, and a chunk sent in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from colabkeep.stores.base import Source
from colabkeep.vocabulary.errors import StoreError

__all__ = ["UNIT", "Body", "Chunk", "chunks"]

UNIT = 256 * 1024
"""Bytes; a chunk has a multiple of them, unless it is the last ("Performing a Resumable Upload", Drive API guides)."""

_PIECE = 256 * 1024


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes `start` to `end` of an object. `data` is valid until the next chunk is asked for."""

    start: int
    data: memoryview
    is_last: bool

    @property
    def end(self) -> int:
        """The offset after its last byte."""
        return self.start + len(self.data)


def chunks(name: str, source: Source, start: int, size: int) -> Iterator[Chunk]:
    """The bytes of `source` from `start` on in chunks of `size` bytes, the last one shorter, perhaps empty.

    The last one comes only when the source has come to its end and was as long as it said: sending it is what makes
    the object exist. One buffer is used for all of them.

    Raises:
        StoreError: the source has another number of bytes than it announced. What it raises comes out as it is.
    """
    buffer = memoryview(bytearray(max(min(size, source.size - start), 1)))
    filled, sent, total = 0, start, 0
    for piece in source.chunks():
        rest = memoryview(piece).cast("B") if piece.nbytes else piece
        skipped = min(max(start - total, 0), rest.nbytes)
        total += rest.nbytes
        if total > source.size:
            raise _changed(name, source.size, f"at least {total}")
        rest = rest[skipped:]
        while rest.nbytes:
            if filled == len(buffer):  # and more is to come, so it was not the last
                yield Chunk(sent, buffer, is_last=False)
                filled, sent = 0, sent + len(buffer)
            count = min(rest.nbytes, len(buffer) - filled)
            buffer[filled : filled + count] = rest[:count]
            filled, rest = filled + count, rest[count:]
    if total != source.size:
        raise _changed(name, source.size, str(total))
    yield Chunk(sent, buffer[:filled], is_last=True)


class Body:
    """Bytes of a request. They can be sent again from the start, which google-auth does after a 401; and they leave
    in small pieces, each with the whole timeout to itself, so that a chunk may take long on a slow link. `left` is
    called when one has."""

    def __init__(self, data: memoryview, left: Callable[[], None]) -> None:
        self._data = data
        self._left = left

    def __len__(self) -> int:
        return len(self._data)

    def __iter__(self) -> Iterator[memoryview]:
        for start in range(0, len(self._data), _PIECE):
            yield self._data[start : start + _PIECE]
            self._left()


def _changed(name: str, announced: int, came: str) -> StoreError:
    return StoreError(
        problem=f"{name!r} was to have {announced} bytes and came with {came}; it is not kept.",
        remedy="Its data changed while it was being saved: leave arrays and files alone until their save is done.",
    )
