"""Whether Drive has a file, as far as DriveFS says so.

Two extended attributes, which are not listed and must be asked for by name: `user.drive.id` begins with "local-" until
the file has an id in Drive, and `user.drive.uncommitted` is 1 until its bytes are uploaded, then 0. ChromiumOS waits
for the one in its integration tests (tast-tests, drivefs helper, 2022) and for the other in a script (2024); public
notebooks read the id on Colab; neither is documented. What they prove:

* An id alone proves nothing where a file was overwritten, which keeps its id while new bytes wait. Nothing is
  overwritten here. Still, "confirmed" needs both, an id of Drive's own *and* 0.
* "local-" or 1: the bytes are on this machine's disk only. That is the rung "local".
* Absent, or anything else: "unknown". An ordinary folder says nothing, and so may a later DriveFS.
* `user.drive.md5` exists too; that it is the digest of the content was never confirmed on Colab, so it is not used.

Uploads overtake each other: DriveFS pushes ten at a time (googlecolab/colabtools `drive.py`, 2026-04). A manifest,
which is small, arrives before the blobs it names. So an object here is as durable as the *least* durable of those put
before it: what is called confirmed is usable.
"""

from __future__ import annotations

import errno
import re
import threading
from dataclasses import dataclass

from colabkeep.stores._posix import Files
from colabkeep.stores.base import Entry, Rung
from colabkeep.stores.mounted.places import Spot

__all__ = ["Upload", "Uploads", "ask"]

_ID = "user.drive.id"
_UNCOMMITTED = "user.drive.uncommitted"
_SAYS_NOTHING = {errno.ENODATA, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_DRIVE_ID = re.compile(r"[A-Za-z0-9_-]+")
_LOCAL = "local-"


@dataclass(frozen=True, slots=True)
class Upload:
    """What DriveFS says of a file. `id`: the one in Drive, once there is one. `lost`: it is not there as it was put."""

    rung: Rung
    id: str | None = None
    lost: bool = False


def ask(files: Files, path: str) -> Upload:
    """What DriveFS says of a file.

    Raises:
        FileNotFoundError: it is not there.
        OSError: the mount does not answer.
    """
    id, uncommitted = _attribute(files, path, _ID), _attribute(files, path, _UNCOMMITTED)
    if id.startswith(_LOCAL):
        return Upload("local")
    if not _DRIVE_ID.fullmatch(id):
        return Upload("unknown")
    rungs: dict[str, Rung] = {"0": "confirmed", "1": "local"}
    return Upload(rungs.get(uncommitted, "unknown"), id)


def _attribute(files: Files, path: str, name: str) -> str:
    """The attribute as text, "" if there is none."""
    try:
        return files.getxattr(path, name).decode("ascii", "replace").strip("\0\n ")
    except OSError as error:
        if error.errno not in _SAYS_NOTHING:
            raise
        return ""


class Uploads:
    """The files of which Drive was not yet seen to have them, in the order in which they were put."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._guard = threading.Lock()
        self._waiting: dict[str, Spot] = {}
        self.heard = False  # has DriveFS ever named an id? Then this is a Drive
        self.says_nothing = True  # about any file so far: nothing will, if this is an ordinary folder
        self.lost: str | None = None  # an object that vanished before it was seen in Drive

    def add(self, spot: Spot) -> None:
        """Wait for this one too. One that vanished and was put again keeps its turn, for later ones may need it."""
        with self._guard:
            self._waiting[spot.name] = spot
            if self.lost == spot.name:
                self.lost = None

    def drop(self, name: str, path: str | None = None) -> None:
        """It was deleted, or given up (`path`: that file of it): nobody waits for it."""
        with self._guard:
            spot = self._waiting.get(name)
            if spot is not None and path in {None, spot.path}:
                del self._waiting[name]
            if self.lost == name:
                self.lost = None

    def adopt(self, spot: Spot) -> None:
        """Wait for a file that was found, if an earlier session on this machine left it half-way.

        Raises:
            OSError: the mount does not answer.
        """
        upload = self._look(spot)
        if upload.rung == "local" or upload.id is None:
            with self._guard:
                self._waiting.setdefault(spot.name, spot)

    def waiting(self) -> tuple[Entry, ...]:
        """What is waited for, as of the last look."""
        with self._guard:
            return tuple(Entry(name=spot.name, size=spot.size) for spot in self._waiting.values())

    def of(self, name: str, spot: Spot | None) -> Upload:
        """How durable an object is now, together with all that were put before it. `spot`: where it was found.

        Raises:
            OSError: the mount does not answer.
        """
        first = self._advance()
        if first is not None and name in self._waiting:
            return Upload(first.rung)
        return Upload("unknown", lost=True) if spot is None else self._look(spot)

    def all_arrived(self) -> bool:
        """Has Drive all of them?

        Raises:
            OSError: the mount does not answer.
        """
        return self._advance() is None

    def _advance(self) -> Upload | None:
        """Strike off those that have arrived, up to the first that has not: what is said of that one."""
        while True:
            with self._guard:
                spot = next(iter(self._waiting.values()), None)
            if spot is None:
                return None
            upload = self._look(spot)
            with self._guard:
                if self._waiting.get(spot.name) is not spot:
                    continue  # deleted, or put again, meanwhile
                if upload.rung != "confirmed":
                    self.lost = spot.name if upload.lost else None
                    return upload
                del self._waiting[spot.name]

    def _look(self, spot: Spot) -> Upload:
        try:
            upload = ask(self._files, spot.path)
            whole = self._files.stat(spot.path, follow_symlinks=False).st_size == spot.size
        except FileNotFoundError:
            return Upload("unknown", lost=True)
        self.heard = self.heard or upload.id is not None
        self.says_nothing = self.says_nothing and upload == Upload("unknown")
        return upload if whole else Upload("unknown", lost=True)
