"""Finds and makes the folder that a store calls its own, and finds the folders below it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from colabkeep.stores.drive.files import MARK, Files, RemoteFile
from colabkeep.stores.drive.place import Place

__all__ = ["OwnFolder", "joined"]


class OwnFolder:
    """The folder of a place. It is known by a mark that it got when it was made, so one question finds it together
    with all below; one that has no mark (rclone made it, or another OAuth client) is found by the names on the way."""

    def __init__(self, files: Files, place: Place) -> None:
        self._files = files
        self._place = place

    def search(self, doing: str) -> dict[str, tuple[str, ...]]:
        """Path below the store → ids, of all folders that could be found without looking into each; the store's own
        has the path "". Nothing if that is not there.

        Raises:
            FolderGone: the folder that the URL names by its id does not exist.
            StoreError: it cannot be told.
        """
        marked = self._files.marked_folders()
        if not self._place.folders and self._place.top is not None:
            own = {self._place.top}
        else:
            # Moved elsewhere by hand, it is still the same; renamed, it was put away.
            last = self._place.folders[-1]
            own = {one.id for one in marked if one.marks.get("root") == self._mark and one.name == last}
        return _paths(own or self._by_names(doing), marked)

    def make(self, doing: str) -> str:
        """Make the folder, and those above it that are missing; its id.

        Raises:
            FolderGone: the folder that the URL names by its id does not exist.
            StoreError: it cannot be made.
        """
        folder = self._place.top or self._files.top
        for number, name in enumerate(self._place.folders, start=1):
            last = number == len(self._place.folders)
            marks = {MARK: "folder", "root": self._mark} if last else {MARK: "folder"}
            found = self._named(name, [folder], doing)
            folder = found[0] if found else self._files.make_folder(name, folder, marks).id
        return folder

    def _by_names(self, doing: str) -> list[str]:
        ids = [self._place.top or self._files.top]
        for name in self._place.folders:
            ids = self._named(name, ids, doing) if ids else []
        return ids

    def _named(self, name: str, folders: list[str], doing: str) -> list[str]:
        inside = self._files.inside(folders, doing)
        return sorted(file.id for file in inside if file.is_folder and file.name == name)

    @property
    def _mark(self) -> str:
        """Shortened, for a property holds 124 bytes."""
        return hashlib.sha256(self._place.url.partition("?")[0].encode()).hexdigest()[:32]


def joined(folder: str, name: str) -> str:
    """A path one longer."""
    return f"{folder}/{name}" if folder else name


def _paths(own: Iterable[str], marked: Iterable[RemoteFile]) -> dict[str, tuple[str, ...]]:
    below: dict[str, list[RemoteFile]] = {}
    for folder in marked:
        for parent in folder.parents:
            below.setdefault(parent, []).append(folder)
    found: dict[str, set[str]] = {}
    level = [("", id) for id in own]
    while level:
        for path, id in level:
            found.setdefault(path, set()).add(id)
        level = [(joined(path, child.name), child.id) for path, id in level for child in below.pop(id, ())]
    return {path: tuple(sorted(ids)) for path, ids in found.items()}
