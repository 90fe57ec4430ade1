"""The bytes of files, one file on disk per revision, and the digests the service states of them."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

PIECE = 1 << 18  # bytes read or sent at a time


class Digests:
    """MD5, SHA-1 and SHA-256 of a growing file; what has been hashed is not read again."""

    def __init__(self) -> None:
        self._hashes = {name: hashlib.new(name) for name in ("md5", "sha1", "sha256")}
        self._done = 0
        self._lock = threading.Lock()

    def catch_up(self, path: Path, size: int) -> None:
        """Hash the file's bytes up to `size`, as far as they are new."""
        with self._lock:
            for piece in pieces(path, self._done, size):
                for one in self._hashes.values():
                    one.update(piece)
            self._done = max(self._done, size)

    def hexadecimal(self) -> dict[str, str]:
        """The digests by name."""
        return {name: one.hexdigest() for name, one in self._hashes.items()}


def pieces(path: Path, start: int, stop: int) -> Iterator[bytes]:
    """The file's bytes from `start` to before `stop`."""
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while start < stop:
            piece = file.read(min(PIECE, stop - start))
            assert piece, f"{path} ends at byte {start} of {stop}"
            start += len(piece)
            yield piece


class Contents:
    """Revisions by name, in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def path(self, revision: str) -> Path:
        """Where the bytes of a revision are."""
        return self._folder / revision

    def adopt(self, part: Path, revision: str) -> None:
        """An upload's file becomes a revision; `part` stays until the upload is told to forget it, so that a server
        killed in between can do this again."""
        self.path(revision).unlink(missing_ok=True)
        os.link(part, self.path(revision))

    def copy(self, revision: str, copy: str) -> None:
        """The same bytes under a second name; no revision ever changes, so a link is a copy."""
        os.link(self.path(revision), self.path(copy))

    def remove(self, revision: str | None) -> None:
        """Forget the bytes."""
        if revision is not None:
            self.path(revision).unlink(missing_ok=True)
