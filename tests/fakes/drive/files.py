"""The files and folders of all accounts, and who sees which.

Names are not unique; a file has one parent; what is in the trash keeps counting; a permanent delete takes the
descendants along (reference of the files resource; "Trash or delete files and folders", Drive API guides).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.fakes.drive.answers import ApiError, not_found
from tests.fakes.drive.shelf import Shelf

FOLDER = "application/vnd.google-apps.folder"
SHORTCUT = "application/vnd.google-apps.shortcut"
"""A file that only points to another, its target ("Create a shortcut to a Drive file", Drive API guides)."""

NARROW = frozenset({"drive.file", "drive.appdata", "drive.apps.readonly", "drive.photos.readonly", "drive.scripts"})
"""Scopes that open only what the same OAuth client made ("Choose Google Drive API scopes", Drive API guides)."""


@dataclass
class File:
    """One file or folder. Times in seconds since 1970, `size` in bytes; a folder has no size and no digests.

    `client` is the OAuth client that made it; `drive` the shared drive it lies in; `number` counts all that were
    ever made; `trashed` is said of this very file, see `Files.in_trash`, and so is `read_only`, see `Files.writable`.
    `target`: the id of what a shortcut points to, whether that is there or not, and `target_mime` what that was when
    the shortcut was made.
    """

    id: str
    name: str
    mime: str
    parent: str | None
    owner: str
    client: str
    created: float
    modified: float
    number: int
    drive: str | None = None
    size: int | None = None
    md5: str | None = None
    sha1: str | None = None
    sha256: str | None = None
    revision: str | None = None
    version: int = 1
    trashed: bool = False
    read_only: bool = False
    target: str | None = None
    target_mime: str | None = None
    description: str | None = None
    original_name: str | None = None
    properties: dict[str, str] = field(default_factory=dict)
    app_properties: dict[str, dict[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Caller:
    """Who asks: a person's or a service account, through an OAuth client, with short scopes ("drive.file").

    `all_drives`: the call says supportsAllDrives. Without it nothing in a shared drive exists ("Implement shared drive
    support", Drive API guides; googleapis/google-api-nodejs-client issue 2591).
    """

    account: str
    client: str
    scopes: frozenset[str]
    all_drives: bool = False

    @property
    def robot(self) -> bool:
        """Is it a service account?"""
        return self.account.endswith(".gserviceaccount.com")


class Files:
    """All files. Changed under `State.guard`."""

    def __init__(self, folder: Path, shared_drives: list[str]) -> None:
        self._shelf = Shelf(folder, File)
        for drive in shared_drives:
            if self._shelf.get(drive) is None:
                self.save(self._top(drive, "Shared drive", owner="", drive=drive))

    def __iter__(self) -> Iterator[File]:
        return iter(self._shelf)

    def save(self, file: File) -> None:
        """Keep the file as it is now."""
        self._shelf.save(file.id, file)

    def root(self, account: str) -> File:
        """The account's My Drive, which is there from the start."""
        root = "0A" + hashlib.sha256(account.encode()).hexdigest()[:17]
        found = self._shelf.get(root)
        if found is None:
            found = self._top(root, "My Drive", owner=account, drive=None)
            self.save(found)
        return found

    def next_number(self) -> int:
        """One more than any file has."""
        return max((file.number for file in self), default=0) + 1

    def lookup(self, file_id: str) -> File | None:
        """The file of that id, whoever may see it."""
        return self._shelf.get(file_id)

    def get(self, file_id: str, caller: Caller) -> File:
        """The file; "root" is the caller's My Drive. Raises ApiError 404 where there is none or none for this caller.

        To a `drive.file` client My Drive itself does not exist either (rclone 1.60, backend/drive/drive.go: "404
        means that this scope does not have permission to get the root").
        """
        file = self._shelf.get(self.real_id(file_id, caller))
        if file is None or not self.seen_by(file, caller):
            raise not_found(file_id)
        return file

    def parent(self, file_id: str, caller: Caller) -> File:
        """The folder to put a file into: any that is seen, and always My Drive. No source says whether a `drive.file`
        client may create at the top of a shared drive; here it may not."""
        root = self.root(caller.account)
        return root if self.real_id(file_id, caller) == root.id else self.get(file_id, caller)

    def real_id(self, file_id: str, caller: Caller) -> str:
        """ "root" resolved."""
        return self.root(caller.account).id if file_id == "root" else file_id

    def seen_by(self, file: File, caller: Caller) -> bool:
        """Does it exist for this caller?"""
        reachable = file.owner == caller.account if file.drive is None else caller.all_drives
        return reachable and (file.client == caller.client or not caller.scopes <= NARROW)

    def children(self, folder_id: str) -> list[File]:
        """What lies directly in the folder, trashed or not."""
        return [file for file in self if file.parent == folder_id]

    def in_trash(self, file: File) -> bool:
        """Is it trashed, itself or with a folder above it?"""
        return any(each.trashed for each in self._upwards(file))

    def writable(self, file: File) -> bool:
        """May this user change it? Not what somebody shared for reading only, nor what lies in such a folder."""
        return not any(each.read_only for each in self._upwards(file))

    def _upwards(self, file: File) -> Iterator[File]:
        """It, and the folders above it."""
        above: File | None = file
        while above is not None:
            yield above
            above = self._shelf.get(above.parent) if above.parent else None

    def delete(self, file: File) -> list[File]:
        """Remove it for good, with all that is below it; what was removed."""
        if file.parent is None:
            raise ApiError(403, "forbidden", "The root folder cannot be deleted.")
        gone = [file]
        for folder in gone:  # grows while it is walked
            gone += self.children(folder.id)
        for one in gone:
            self._shelf.remove(one.id)
        return gone

    def usage(self, account: str) -> tuple[int, int]:
        """Bytes that count against the account's quota, and those of them that lie in the trash.

        What lies in a shared drive counts against that drive's organisation.
        """
        own = [file for file in self if file.owner == account and file.drive is None]
        return sum(file.size or 0 for file in own), sum(file.size or 0 for file in own if self.in_trash(file))

    def _top(self, file_id: str, name: str, *, owner: str, drive: str | None) -> File:
        return File(file_id, name, FOLDER, None, owner, "", 0.0, 0.0, 0, drive)
