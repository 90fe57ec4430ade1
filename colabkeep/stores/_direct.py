"""Large files go to the disk past the page cache, where the file system lets them.

A save is flushed to disk in any case, and its bytes are not read again soon. Through the page cache each of them costs
the kernel a fresh page: of 300 MB on ext4, written and flushed behind busy cores, 150 to 220 ms of CPU time instead of
45, and half as long again on the clock (medians of 12, in turn). It also pushes the training's data set out of it.

The disk takes only whole blocks from aligned memory, so the bytes pass through a buffer; its copying, unlike that of a
`memoryview`, lets other threads run. Source: open(2), "O_DIRECT", and fcntl(2), "F_SETFL".
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections import deque
from contextlib import suppress
from typing import TypeAlias

from colabkeep.stores._posix import Files

__all__ = ["LARGE", "Direct", "Spare", "past_cache", "write_all"]

LARGE = 2**22
"""Bytes; a smaller file is not worth a buffer."""

_BUFFER = 2**23  # bytes; with 4 and with 16 MiB it took as long

Spare: TypeAlias = "deque[mmap.mmap]"
"""The buffer of the file before, for the next one: of 8 and of 17 MB, put behind a training, each took 22 ms with fresh
memory and 5 and 10 ms with that; in CPU time 9 and 11 ms, and 2 and 3."""

_BLOCK = 2**12  # bytes; no disk asks for more than a page
_FAILED = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})  # the disk itself, whichever way the bytes come
_O_DIRECT = getattr(os, "O_DIRECT", 0)  # macOS has none


class Direct:
    """The bytes of one new file that was opened for it by `past_cache`, in order; `end` writes the last of them."""

    def __init__(self, files: Files, descriptor: int, spare: Spare) -> None:
        self._files = files
        self._descriptor = descriptor
        self._spare = spare
        try:
            self._memory = spare.pop()
        except IndexError:  # the first; or another thread has it
            self._memory = mmap.mmap(-1, _BUFFER)  # aligned to pages
        self._buffer = memoryview(self._memory)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._buffer))
        self._filled = 0
        self._direct = True

    def write(self, chunk: memoryview) -> None:
        """Take all of the chunk; its memory is not needed afterwards."""
        at = 0
        while at < chunk.nbytes:
            count = min(chunk.nbytes - at, _BUFFER - self._filled)
            self._copy(chunk[at : at + count])
            at += count
            if self._filled == _BUFFER:
                self._drain(_BUFFER)

    def end(self) -> None:
        """Write what is left in the buffer: the last, broken block goes through the page cache."""
        whole = self._filled // _BLOCK * _BLOCK
        rest = bytes(self._buffer[whole : self._filled])
        self._drain(whole)
        self._give_up()
        write_all(self._files, self._descriptor, memoryview(rest))
        self._spare.append(self._memory)

    def _copy(self, piece: memoryview) -> None:
        if piece.readonly:  # bytes: small tensors, gathered to 1 MiB or so; or what another source gives
            self._buffer[self._filled : self._filled + piece.nbytes] = piece
        else:
            source = ctypes.addressof(ctypes.c_char.from_buffer(piece))
            ctypes.memmove(self._address + self._filled, source, piece.nbytes)
        self._filled += piece.nbytes

    def _drain(self, size: int) -> None:
        view, self._filled = self._buffer[:size], 0
        while view.nbytes:
            try:
                view = view[self._files.write(self._descriptor, view) :]
            except OSError as error:
                # A disk with larger blocks, or that says only now that it cannot; or the call before stopped amid a
                # block, and this one would begin there. A real failure comes again through the cache.
                if error.errno in _FAILED or not self._direct:
                    raise
                self._give_up()

    def _give_up(self) -> None:
        if self._direct:
            self._files.set_flags(self._descriptor, 0)
            self._direct = False


def past_cache(files: Files, descriptor: int, spare: Spare) -> Direct | None:
    """The way past the page cache for this file; None where there is none."""
    if not _O_DIRECT:
        return None
    try:
        # Not when opening it: where that fails, the file is there all the same.
        files.set_flags(descriptor, _O_DIRECT)
    except OSError:  # EINVAL, as memory file systems answer; mounted drives and sandboxes have answers of their own
        with suppress(OSError):
            files.set_flags(descriptor, 0)
        return None
    return Direct(files, descriptor, spare)


def write_all(files: Files, descriptor: int, view: memoryview) -> None:
    """Write all of it, in however many calls that takes."""
    while view.nbytes:
        view = view[files.write(descriptor, view) :]
