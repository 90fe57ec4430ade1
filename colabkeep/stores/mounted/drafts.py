"""Writing one new file on the mount, and removing one. Nothing else in `mounted` changes a file."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress

from colabkeep.stores._posix import Files
from colabkeep.vocabulary.errors import StoreError, StoreUnavailable

__all__ = ["READ", "Draft", "read_whole", "remove"]

READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 2**20


class Draft:
    """A file that is short by its last byte until `finish`. `undo` works at every moment.

    An empty file is whole the moment it exists, so it is made by `finish`.
    """

    def __init__(self, files: Files, path: str, size: int) -> None:
        self.path = path
        self._files = files
        self._size = size
        self._descriptor = -1
        self._last = b""
        self._given = 0
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """The hex digest of what was given so far."""
        return self._digest.hexdigest()

    def begin(self) -> None:
        """Open the file, unless it is to be empty."""
        if self._size:
            self._descriptor = self._files.open(self.path, _NEW, 0o666)

    def write(self, chunk: memoryview) -> None:
        """Write the chunk, without the file's last byte.

        Raises:
            StoreError: these are more bytes than were announced.
        """
        view = chunk.cast("B") if chunk.nbytes else chunk
        self._given += view.nbytes
        if self._given > self._size:
            raise self._does_not_add_up()
        self._digest.update(view)
        if view.nbytes and self._given == self._size:
            self._last = bytes(view[-1:])
            view = view[:-1]
        self._write_all(view)

    def complete(self, sha256: str) -> None:
        """See that all bytes were given, and that they are those that were announced.

        Raises:
            StoreError: they are not.
        """
        if (self._given, self.sha256) != (self._size, sha256):
            raise self._does_not_add_up()

    def finish(self) -> None:
        """Write the last byte, which makes the object, close, and read all of it again.

        Raises:
            StoreUnavailable: the mount does not give back what was written.
        """
        if not self._size:
            self._descriptor = self._files.open(self.path, _NEW, 0o666)
        self._write_all(memoryview(self._last))
        self._files.fsync(self._descriptor)
        descriptor, self._descriptor = self._descriptor, -1
        self._files.close(descriptor)
        if self._read_again() != (self._size, self.sha256):
            raise StoreUnavailable(
                problem=f"What was written to {self.path} was not what could be read from it afterwards. It is not "
                "kept; what was saved before is untouched.",
                remedy="Nothing needs to be done: it is written again under another name.",
            )

    def undo(self) -> None:
        """Leave nothing. Where the mount is gone that cannot be had: then the file is short, and `sweep` finds it."""
        if self._descriptor >= 0:
            with suppress(OSError):
                self._files.close(self._descriptor)
        for _ in range(3):  # a mount that has just failed may fail once more
            with suppress(OSError):
                self._files.unlink(self.path)
                return

    def _write_all(self, view: memoryview) -> None:
        while view.nbytes:
            view = view[self._files.write(self._descriptor, view) :]

    def _read_again(self) -> tuple[int, str]:
        digest, offset = hashlib.sha256(), 0
        descriptor = self._files.open(self.path, READ)
        try:
            while data := self._files.pread(descriptor, _CHUNK, offset):
                digest.update(data)
                offset += len(data)
        finally:
            with suppress(OSError):  # nothing was written through it
                self._files.close(descriptor)
        return offset, digest.hexdigest()

    def _does_not_add_up(self) -> StoreError:
        return StoreError(
            problem=f"{self.path} was to have {self._size} bytes and came with {self._given}, or with others than were "
            "announced; it is not kept.",
            remedy="Its data changed while it was being saved: leave arrays and files alone until their save is done.",
        )


def read_whole(files: Files, path: str) -> bytes:
    """All bytes of a small file.

    Raises:
        OSError: it is not there, or the mount does not answer.
    """
    data = bytearray()
    descriptor = files.open(path, READ)
    try:
        while piece := files.pread(descriptor, _CHUNK, len(data)):
            data += piece
    finally:
        with suppress(OSError):  # nothing was written through it
            files.close(descriptor)
    return bytes(data)


def remove(files: Files, path: str, *, truncate: bool) -> None:
    """Delete a file. What is not there is no error.

    What is deleted goes to Drive's trash, whole, and counts against the quota for about 30 days; emptied first, it
    counts nothing (googlecolab/colabtools #1269; transformers #14922, 2021-12; piper #749, 2025-03). That is a
    kindness to the quota and nothing more, so where it cannot be done the file is deleted all the same.
    """
    if truncate:
        with suppress(OSError):
            descriptor = files.open(path, _OLD)
            try:
                files.ftruncate(descriptor, 0)
            finally:
                files.close(descriptor)
    with suppress(FileNotFoundError):
        files.unlink(path)
