"""Whether Drive has a file, as far as DriveFS says so.

Two extended attributes, which are not listed and must be asked for by name: `user.drive.id` begins with "local-" until
the file has an id in Drive, and `user.drive.uncommitted` is 1 until its bytes are uploaded, then 0. ChromiumOS waits
for the one in its integration tests (tast-tests, drivefs helper, 2022) and for the other in a script (2024); public
notebooks read the id on Colab; neither is documented. What they prove:

* An id alone proves nothing where a file was overwritten, which keeps its id while new bytes wait. Nothing is
  overwritten here. Still, "confirmed" needs both, an id of Drive's own *and* 0.
* "local-" or 1: the bytes are on this machine's disk only. That is the level "local".
* Neither: a file that DriveFS took no notice of yet, so "local", as long as it speaks of other files or was asked for
  less than `SILENCE` seconds. After that this is an ordinary folder, or a later DriveFS that says nothing: "unknown".
* Anything else: "unknown". It claims that the file is there, whole, and that Drive may have it, no more.
* Vanished, empty or cut: "local" at most, however much was said of it before.
* `user.drive.md5` exists too; that it is the digest of the content was never confirmed on Colab, so it is not used.

Uploads overtake each other: DriveFS pushes ten at a time (googlecolab/colabtools `drive.py`, 2026-04). A manifest,
which is small, arrives before the blobs it names. So an object here is as durable as the *least* durable of those put
before it: what is called confirmed is usable. What was lost will not arrive any more, so only those wait for it that
cannot do without: the manifests that name it.
"""

from __future__ import annotations

import errno
import re
import threading
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from colabkeep.core.system import Clock
from colabkeep.stores.base import DurabilityLevel, Entry
from colabkeep.stores.colab_drive.files import Spot
from colabkeep.stores.shared.files import Files

SILENCE = 10.0
"""Seconds. A DriveFS says of a new file that it is on this machine only long before."""

_ID = "user.drive.id"
_UNCOMMITTED = "user.drive.uncommitted"
_SAYS_NOTHING = {errno.ENODATA, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_DRIVE_ID = re.compile(r"[A-Za-z0-9_-]+")
_LOCAL = "local-"


@dataclass(frozen=True, slots=True)
class Upload:
    """What DriveFS says of a file. `id`: the one in Drive, once there is one. `lost`: it is not there as it was put."""

    level: DurabilityLevel
    id: str | None = None
    lost: bool = False


_LOST = Upload("local", lost=True)
_NOTHING = Upload("unknown")


def ask(files: Files, path: str) -> Upload:
    """What DriveFS says of a file."""
    id, uncommitted = _attribute(files, path, _ID), _attribute(files, path, _UNCOMMITTED)
    if id.startswith(_LOCAL):
        return Upload("local")
    if not _DRIVE_ID.fullmatch(id):
        return Upload("unknown")
    levels: dict[str, DurabilityLevel] = {"0": "confirmed", "1": "local"}
    return Upload(levels.get(uncommitted, "unknown"), id)


def _attribute(files: Files, path: str, name: str) -> str:
    """The attribute as text, "" if there is none."""
    try:
        return files.getxattr(path, name).decode("ascii", "replace").strip("\0\n ")
    except OSError as error:
        if error.errno not in _SAYS_NOTHING:
            raise
        return ""


class Uploads:
    """The files of which Drive was not yet seen to have them, in the order in which they were put. Whatever looks
    raises the bare `OSError` where the mount does not answer."""

    def __init__(self, files: Files, clock: Clock) -> None:
        self._files = files
        self._clock = clock
        self._guard = threading.Lock()
        self._waiting: dict[str, Spot] = {}
        self._lost: dict[str, Spot] = {}  # those that are not there as they were put, as of the last look
        self._needs: dict[str, frozenset[str]] = {}  # what completes a whole needs, by path
        self._silent_since: float | None = None
        self.heard = False  # has DriveFS ever named an id? Then this is a Drive
        self.says_nothing = True  # about any file so far: nothing will, if this is an ordinary folder

    @property
    def lost(self) -> str | None:
        """An object that vanished before it was seen in Drive, and was not put again yet."""
        with self._guard:
            return next(iter(self._lost), None)

    @property
    def only_lost(self) -> bool:
        """As of the last look, is nothing waited for but what vanished, which will not arrive?"""
        with self._guard:
            return bool(self._waiting) and self._waiting.keys() == self._lost.keys()

    def add(self, spot: Spot, needs: AbstractSet[str] = frozenset()) -> None:
        """Wait for this one too, which is worth nothing without those that it `needs`. One that vanished and was put
        again keeps its turn, for later ones may need it."""
        with self._guard:
            self._waiting[spot.name] = spot
            self._needs[spot.path] = frozenset(needs)
            self._lost.pop(spot.name, None)

    def drop(self, name: str, path: str | None = None) -> None:
        """It was deleted, or given up (`path`: that file of it): nobody waits for it."""
        with self._guard:
            spot = self._waiting.get(name)
            if spot is not None and path in {None, spot.path}:
                del self._waiting[name]
                self._needs.pop(spot.path, None)
                self._lost.pop(name, None)

    def adopt(self, spot: Spot) -> None:
        """Wait for a file that was found, if an earlier session on this machine left it half-way."""
        upload = self._look(spot)
        if upload.level == "local" or upload.id is None:
            with self._guard:
                self._waiting.setdefault(spot.name, spot)

    def waiting(self) -> tuple[Entry, ...]:
        """What is waited for, as of the last look."""
        with self._guard:
            return tuple(Entry(name=spot.name, size=spot.size) for spot in self._waiting.values())

    def of(self, name: str, spot: Spot | None) -> Upload:
        """How durable an object is now, together with all that were put before it. `spot`: where it was found; None,
        for one that is not there, is as much a loss as a file that was cut."""
        first = self._advance()
        if spot is None:
            return _LOST
        if self._needs_what_was_lost(spot):
            return Upload("local")
        return self._look(spot) if first is None or name not in self._waiting else Upload(first.level)

    def all_arrived(self) -> bool:
        """Has Drive all of them?"""
        return self._advance() is None and not self._waiting

    def _advance(self) -> Upload | None:
        """Strike off those that have arrived, up to the first that is on its way: what is said of that one. What was
        lost, and the manifests that need it, are passed over."""
        with self._guard:
            waiting = list(self._waiting.values())
        for spot in waiting:
            upload = self._look(spot)
            needs = upload.level == "confirmed" and self._needs_what_was_lost(spot)
            with self._guard:
                now = self._waiting.get(spot.name)
                if now is not spot:
                    if now is None:
                        continue  # it was deleted meanwhile
                    return Upload("local")  # it was put again
                self._lost.pop(spot.name, None)
                if upload.lost:
                    self._lost[spot.name] = spot
                elif upload.level != "confirmed":
                    return upload
                elif not needs:
                    del self._waiting[spot.name]
        return None

    def _needs_what_was_lost(self, spot: Spot) -> bool:
        with self._guard:
            return not self._needs.get(spot.path, frozenset()).isdisjoint(self._lost)

    def _look(self, spot: Spot) -> Upload:
        try:
            upload = ask(self._files, spot.path)
            whole = self._files.stat(spot.path, follow_symlinks=False).st_size == spot.size
        except FileNotFoundError:
            return _LOST
        self.heard = self.heard or upload.id is not None
        self.says_nothing = self.says_nothing and upload == _NOTHING
        if not whole:
            return _LOST
        return Upload("local") if upload == _NOTHING and self._may_still_speak() else upload

    def _may_still_speak(self) -> bool:
        """Is a file of which nothing is said perhaps just new?"""
        now = self._clock.monotonic()
        self._silent_since = now if self._silent_since is None else self._silent_since
        return not self.says_nothing or now - self._silent_since < SILENCE
