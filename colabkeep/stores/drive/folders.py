"""Finds and makes the folder that a store calls its own, and finds the folders below it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from colabkeep.stores.drive.files import MARK, Files, RemoteFile, age
from colabkeep.stores.drive.place import Place

__all__ = ["OwnFolder", "joined"]


class OwnFolder:
    """The folder of a place. It is known by a mark that it got when it was made, so one question finds it together
    with all below; one that has no mark (rclone made it, or another OAuth client) is found by the names on the way."""

    def __init__(self, files: Files, place: Place) -> None:
        self._files = files
        self._place = place

    def search(self, doing: str) -> dict[str, tuple[RemoteFile, ...]]:
        """All folders that could be found without looking into each, by their paths below the store, the oldest of one
        path first; the store's own has the path "". Nothing if that is not there.

        Raises:
            FolderGone: the folder that the URL names by its id does not exist.
            StoreError: it cannot be told.
        """
        marked = self._files.marked_folders()
        if not self._place.folders and self._place.top is not None:
            own = [RemoteFile(id=self._place.top, name="", size=None, is_folder=True)]
        else:
            # Moved elsewhere by hand, it is still the same; renamed, it was put away.
            last = self._place.folders[-1]
            own = [one for one in marked if one.marks.get("root") == self._mark and one.name == last]
        return _paths(own or self._by_names(doing), marked)

    def make(self, doing: str) -> list[RemoteFile]:
        """Make the folder, and those above it that are missing. All folders of its name that are there by then, the
        oldest first: another machine may make one at the same moment.

        Raises:
            FolderGone: the folder that the URL names by its id does not exist.
            StoreError: it cannot be made.
        """
        folders = [RemoteFile(id=self._place.top or self._files.top, name="", size=None, is_folder=True)]
        for number, name in enumerate(self._place.folders, start=1):
            last = number == len(self._place.folders)
            marks = {MARK: "folder", "root": self._mark} if last else {MARK: "folder"}
            parent = folders[0].id
            folders = self._files.named(name, [parent], doing) or self._files.make_alone(name, parent, marks, doing)
        return folders

    def _by_names(self, doing: str) -> list[RemoteFile]:
        folders = [RemoteFile(id=self._place.top or self._files.top, name="", size=None, is_folder=True)]
        for name in self._place.folders:
            folders = self._files.named(name, [one.id for one in folders], doing) if folders else []
        return folders

    @property
    def _mark(self) -> str:
        """Shortened, for a property holds 124 bytes."""
        return hashlib.sha256(self._place.url.partition("?")[0].encode()).hexdigest()[:32]


def joined(folder: str, name: str) -> str:
    """A path one longer."""
    return f"{folder}/{name}" if folder else name


def _paths(own: Iterable[RemoteFile], marked: Iterable[RemoteFile]) -> dict[str, tuple[RemoteFile, ...]]:
    below: dict[str, list[RemoteFile]] = {}
    for folder in marked:
        for parent in folder.parents:
            below.setdefault(parent, []).append(folder)
    found: dict[str, list[RemoteFile]] = {}
    level = [("", one) for one in own]
    while level:
        for path, one in level:
            found.setdefault(path, []).append(one)
        level = [(joined(path, child.name), child) for path, one in level for child in below.pop(one.id, ())]
    return {path: tuple(sorted(folders, key=age)) for path, folders in found.items()}
