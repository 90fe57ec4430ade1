"""Checksums over all bytes of host memory that training goes on with, and may give back meanwhile.

BLAKE2b, 256 bits: nobody finds two texts with the same one. It needs no instructions of its own to be quick, unlike
SHA-256, which takes twice the time on processors without them.

Memory is read by a call to the kernel, which answers that it is not there where a plain read would end the process
(process_vm_readv(2), from Linux 3.2 on; a container may forbid it).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from typing import Any

__all__ = ["Reader"]

_PIECE = 2**20  # bytes: read and summed while they are in the second cache


class _Extent(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _readv() -> Any:
    try:
        call = ctypes.CDLL(None).process_vm_readv
    except (OSError, AttributeError, TypeError):  # not Linux
        return None
    extent = ctypes.POINTER(_Extent)
    call.argtypes = (ctypes.c_int, extent, ctypes.c_ulong, extent, ctypes.c_ulong, ctypes.c_ulong)
    call.restype = ctypes.c_ssize_t
    return call


_READV = _readv()


class Reader:
    """Reads memory of this process piece by piece."""

    def __init__(self) -> None:
        self._buffer = (ctypes.c_ubyte * _PIECE)()
        self._bytes = memoryview(self._buffer).cast("B")

    @staticmethod
    def works() -> bool:
        """Can memory be read so here?"""
        probe = ctypes.create_string_buffer(b"here", 4)
        return Reader().checksum(ctypes.addressof(probe), 4) == hashlib.blake2b(b"here", digest_size=32).digest()

    def checksum(self, address: int, size: int) -> bytes | None:
        """That of `size` bytes there; None if there is no such memory any more."""
        if _READV is None:
            return None
        digest = hashlib.blake2b(digest_size=32)
        here, process = ctypes.addressof(self._buffer), os.getpid()
        for start in range(0, size, _PIECE):
            length = min(_PIECE, size - start)
            ours, theirs = _Extent(here, length), _Extent(address + start, length)
            if _READV(process, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0) != length:
                return None
            digest.update(self._bytes[:length])
        return digest.digest()
