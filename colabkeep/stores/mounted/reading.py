"""Reading a file on the mount, which may go away and come back in the middle of it."""

from __future__ import annotations

import io
from contextlib import suppress
from typing import Any

from colabkeep.stores._posix import Files, explained
from colabkeep.stores.mounted.drafts import READ
from colabkeep.stores.mounted.patience import Patience
from colabkeep.stores.mounted.places import Spot
from colabkeep.vocabulary.errors import StoreUnavailable

__all__ = ["Reader"]

_MOST = 4 * 2**20  # bytes at a time


class Reader(io.RawIOBase):
    """A file, opened at once (`OSError` if that fails), and again where it broke off."""

    def __init__(self, files: Files, spot: Spot, root: str, patience: Patience) -> None:
        self._files = files
        self._spot = spot
        self._root = root
        self._patience = patience
        self._descriptor = -1
        self._offset = 0
        self._open()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), _MOST, self._spot.size - self._offset)
        data = self._patience(lambda: self._piece(wanted)) if wanted else b""
        buffer[: len(data)] = data
        self._offset += len(data)
        return len(data)

    def close(self) -> None:
        self._let_go()
        super().close()

    def _open(self) -> None:
        self._descriptor = self._files.open(self._spot.path, READ)

    def _piece(self, wanted: int) -> bytes:
        try:
            with explained(self._root, f"read {self._spot.name!r}"):
                if self._descriptor < 0:
                    self._open()
                data = self._files.pread(self._descriptor, wanted, self._offset)
            if not data:
                raise StoreUnavailable(
                    problem=f"{self._root} gave {self._offset} of the {self._spot.size} bytes of {self._spot.name!r}.",
                    remedy="Nothing needs to be done: it is read again.",
                )
        except BaseException:
            self._let_go()  # the descriptor of a mount that died stays dead when the mount is back
            raise
        return data

    def _let_go(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):
                self._files.close(descriptor)
