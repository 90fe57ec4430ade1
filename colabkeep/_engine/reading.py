"""Bytes from a store's reader, in bounded pieces: a reader may give less than it is asked for."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator
from typing import Any

__all__ = ["CHUNK", "SMALL", "UnknownKind", "read_exactly", "read_up_to", "sha256_of_stream"]

CHUNK = 2**20
"""Bytes handled at a time: hashing and writing let other threads run for as long as a chunk takes."""

SMALL = 64 * 2**20
"""Bytes; manifests, leases, marks and journal segments are never larger."""


class UnknownKind(ValueError):
    """A value of a kind that this version does not know, in bytes that are as they were written: a newer one may."""


def read_up_to(reader: Any, size: int) -> bytes:
    """The next `size` bytes, fewer only where the object ends."""
    found = bytearray()
    while len(found) < size:
        piece = reader.read(min(CHUNK, size - len(found)))
        if not piece:
            break
        found += piece
    return bytes(found)


def read_exactly(reader: Any, size: int) -> tuple[memoryview, str]:
    """The `size` bytes of an object, and their SHA-256 in hex: each chunk is hashed while the cache holds it.

    Raises:
        ValueError: it has fewer or more.
        MemoryError: this machine cannot hold them.
    """
    view, digest = _memory(size), hashlib.sha256()
    filled = 0
    while filled < size:
        n = reader.readinto(view[filled : filled + CHUNK])
        if not n:
            raise ValueError(f"it is cut short ({filled} of {size} bytes)")
        digest.update(view[filled : filled + n])
        filled += n
    if reader.read(1):
        raise ValueError(f"it is longer than it was written ({size} bytes)")
    return view, digest.hexdigest()


def _memory(size: int) -> memoryview:
    """Fresh memory that is first touched when it is filled: a bytearray is cleared by Python once more, for a tenth of
    the time that reading and hashing take."""
    if size < CHUNK:
        return memoryview(bytearray(size))
    try:
        return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    except OSError as error:
        raise MemoryError(f"{size} bytes") from error


def sha256_of_stream(reader: Any) -> tuple[int, str]:
    """Size and hex digest of what is left to read, holding one chunk at a time."""
    digest, size = hashlib.sha256(), 0
    for piece in _pieces(reader):
        digest.update(piece)
        size += len(piece)
    return size, digest.hexdigest()


def _pieces(reader: Any) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(CHUNK))
    while count := reader.readinto(buffer):
        yield buffer[:count]
