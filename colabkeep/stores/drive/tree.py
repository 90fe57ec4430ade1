"""What lies where: folders by path, files by name, as the last listings showed it and as this process changed it.

A folder is listed at most once in a few seconds, and each with a request of its own: one for several may leave some
out. The first time anything of a run is looked for, all of its folders are listed; later those that are asked for.

Listings may lag. What this process wrote is remembered until a listing has shown it, and what it deleted for good.
Two folders of one name in one place are one folder here, whoever made the second: both are read, the older is written.
Another machine may make the second at the moment when this one makes the first. So it is looked for as soon as a
folder is made, and again once in a minute: then each of the two sees the other's lease, and the lower one stops.

Folders are written by their ids, which stay when somebody renames or moves them; but a machine that knows the URL only
would not find them any more. So once in a minute they are looked for as it would do, and one that is not found there
is looked at by its id: where it has another name or place, or is in the trash, all is looked for anew (`astray`).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from colabkeep.core.errors import StoreUnavailable
from colabkeep.stores.base import is_below, is_name
from colabkeep.stores.drive.files import (
    MARK,
    Files,
    FolderGone,
    Place,
    RemoteFile,
    age,
    joined,
    make,
    refuse_shortcut,
    search,
)
from colabkeep.stores.shared.listings import FRESH_SECONDS

Copies = tuple[RemoteFile, ...]
"""The files of one name, the oldest first."""

_TWINS_SECONDS = 60.0  # after which a second folder of the name of one that is known is looked for


@dataclass(frozen=True, slots=True)
class MovedFolder:
    """A folder that is not where it was: its path in the store, and the folder as it is now; None if it is gone."""

    path: str
    now: RemoteFile | None


@dataclass(frozen=True, slots=True)
class _Listing:
    """What was directly in a folder, when it was asked for."""

    at: float
    files: tuple[RemoteFile, ...]


class Tree:
    """The folder of a store with all below it. A path has no slash at its ends; the store's own folder is "".

    `_turn` is held while the service is asked, `_guard` for moments only: everything without an underscore that does
    not ask can be called at any time. What is guarded is replaced or changed under `_guard`. Whatever asks raises
    `StoreError` where it cannot be told.
    """

    def __init__(self, files: Files, place: Place, monotonic: Callable[[], float]) -> None:
        self._files = files
        self._place = place
        self._monotonic = monotonic
        self._turn = threading.RLock()
        self._guard = threading.Lock()
        self._folders: dict[str, tuple[str, ...]] = {}  # path → ids, the oldest first where a folder is there twice
        self._met: dict[str, RemoteFile] = {}  # folders by id, as they were when they were first seen
        self._astray: dict[str, MovedFolder] = {}  # replaced as a whole
        self._listed: dict[str, _Listing] = {}  # id of a folder → what is in it
        self._searched = -math.inf  # when the folders were looked for last
        self._own: dict[str, Copies] = {}  # written by this process, and not seen in a listing yet
        self._gone: frozenset[str] = frozenset()  # ids deleted by this process

    # -- asking ------------------------------------------------------------------------------------

    def find(self, name: str, doing: str) -> Copies:
        """The files of that name."""
        if not self._own.get(name):
            self._refresh(_parent(name), doing, deep=False)
        return self.known(name)

    def below(self, path: str, doing: str) -> dict[str, Copies]:
        """All files below the path, by name; names that no store gives are left out."""
        self._refresh(path, doing, deep=True)
        return {name: copies for name, copies in self._all().items() if is_below(name, path)}

    def known(self, name: str) -> Copies:
        """The files of that name, as far as is known without asking."""
        with self._guard:
            last = name.rpartition("/")[2]
            listed = [file for file in self._inside(_parent(name)) if file.name == last]
            return self._present([*listed, *self._own.get(name, ())])

    def holds(self, name: str, file: RemoteFile) -> bool:
        """Does the file lie where the name says, as far as is known without asking?"""
        with self._guard:
            folders = self._folders.get(_parent(name), ())
            return not file.trashed and (self._searched == -math.inf or any(one in folders for one in file.parents))

    @property
    def astray(self) -> tuple[MovedFolder, ...]:
        """The folders that somebody renamed, moved or removed under this process, and has not brought back."""
        return tuple(self._astray.values())

    # -- changing ----------------------------------------------------------------------------------

    def folder(self, path: str, doing: str) -> str:
        """The id of a folder to write into; it is made if it is not there."""
        with self._turn:
            self._refresh(path, doing, deep=False)
            if path not in self._folders:
                try:
                    self._make(path, doing)
                except FolderGone:
                    self.forget()
                    raise _vanished(doing) from None
            return self._folders[path][0]

    def wrote(self, name: str, file: RemoteFile) -> None:
        """This process wrote the file under that name."""
        with self._guard:
            self._own[name] = (*self._own.get(name, ()), file)

    def deleted(self, id: str) -> None:
        """This process deleted this file, or found that it is gone."""
        with self._guard:
            self._gone |= {id}
            self._own = _without(self._gone, self._own)

    def forget(self) -> None:
        """A folder is not where it was: look for everything again."""
        with self._guard:
            self._folders, self._listed, self._own, self._searched = {}, {}, {}, -math.inf

    # -- listing -----------------------------------------------------------------------------------

    def _refresh(self, path: str, doing: str, *, deep: bool) -> None:
        with self._turn:
            for _ in range(2):
                try:
                    self._list_due(path, doing, deep=deep)
                except FolderGone:
                    self.forget()  # deleted by hand, or by another session
                else:
                    return
            raise _vanished(doing)

    def _list_due(self, path: str, doing: str, *, deep: bool) -> None:
        oldest = self._monotonic() - FRESH_SECONDS  # fixed here: however slow the listings are, each is made once
        again = oldest if "" not in self._folders else self._monotonic() - _TWINS_SECONDS
        if self._searched < again:
            seen = self._search(doing)
            known = {(path, id) for path, ids in self._folders.items() for id in ids}
            if self._moved(known - seen, doing):
                self.forget()
                self._search(doing)
        while due := self._due(path, oldest, deep=deep):
            now = self._monotonic()
            self._take(due, self._files.inside(list(due), doing), now)

    def _due(self, path: str, oldest: float, *, deep: bool) -> dict[str, str]:
        """The folders that have to be listed now to know what is at the path: id → path."""
        if path in self._folders:
            wanted = {path} | {folder for folder in self._folders if deep and _below(folder, path)}
        else:
            wanted = set(self._above(path)[:1])
        owners = {id: folder for folder, ids in sorted(self._folders.items()) for id in ids}
        above = set(self._above(path))
        late = oldest + FRESH_SECONDS - _TWINS_SECONDS
        new = {id for id in owners if id not in self._listed}
        old = {id for id in owners if id not in new and self._listed[id].at < oldest}
        due = {id for id, folder in owners.items() if folder in wanted and id in new | old}
        due |= {id for id in old if owners[id] in above and self._listed[id].at < late}
        if due:
            run = {id for id in owners if _below(owners[id], path.partition("/")[0])}
            due |= run & new
        return {id: owners[id] for id in owners if id in due}

    def _above(self, path: str) -> list[str]:
        """The folders above the path that are there, the nearest first."""
        parts = path.split("/")
        above = ["/".join(parts[:count]) for count in range(len(parts) - 1, -1, -1)]
        return [folder for folder in above if folder in self._folders]

    def _take(self, due: Mapping[str, str], found: list[RemoteFile], now: float) -> None:
        files: dict[str, list[RemoteFile]] = {id: [] for id in due}
        folders: dict[str, list[RemoteFile]] = {}
        for file in found:
            for parent in file.parents:
                if parent in due:
                    files[parent].append(file)
                    if file.is_folder:
                        folders.setdefault(joined(due[parent], file.name), []).append(file)
        self._meet(folders)
        with self._guard:
            self._listed = {**self._listed, **{id: _Listing(now, tuple(files[id])) for id in due}}
            self._own = _without({file.id for file in found}, self._own)

    def _search(self, doing: str) -> set[tuple[str, str]]:
        """Look for the folders as a machine would that knows the URL only; paths and ids of those that it would
        find."""
        now = self._monotonic()
        found = search(self._files, self._place, doing)
        self._meet(found)
        self._searched = now
        return {(path, one.id) for path, folders in found.items() for one in folders}

    def _meet(self, found: Mapping[str, Iterable[RemoteFile]]) -> None:
        """These folders are at these paths. Those that are known and were not found stay: a search may be behind, and
        their own listings tell what is in them."""
        with self._guard:
            for path, folders in found.items():
                ids = set(self._folders.get(path, ()))
                for one in folders:
                    ids.add(self._met.setdefault(one.id, one).id)
                self._folders = {**self._folders, path: tuple(sorted(ids, key=lambda id: age(self._met[id])))}

    def _moved(self, unseen: Iterable[tuple[str, str]], doing: str) -> bool:
        """Is one of these folders, path and id, not where it was? Or one back that was not?"""
        lost = {
            id: MovedFolder(path, now) for path, id in unseen if self._has_left(id, now := self._files.look(id, doing))
        }
        back = {id for id in self._astray if id not in lost and not self._has_left(id, self._files.look(id, doing))}
        self._astray = {id: one for id, one in self._astray.items() if id not in back} | lost
        return bool(lost or back)

    def _has_left(self, id: str, now: RemoteFile | None) -> bool:
        was = self._met[id]
        return now is None or now.trashed or (now.name, set(now.parents)) != (was.name, set(was.parents))

    def _make(self, path: str, doing: str) -> None:
        """What is found beside a folder that was made is another machine's, which may have made more in it already."""
        if "" not in self._folders:
            self._meet({"": make(self._files, self._place, doing)})
            self._list_due(path, doing, deep=False)
        while path not in self._folders:
            above = self._above(path)[0]
            name = path[len(above) :].strip("/").partition("/")[0]
            for id in self._folders[above]:
                refuse_shortcut(name, self._listed[id].files if id in self._listed else ())
            folders = self._files.make_alone(name, self._folders[above][0], {MARK: "folder"}, doing)
            self._meet({joined(above, name): folders})
            if len(folders) == 1:
                with self._guard:  # it is empty
                    self._listed = {**self._listed, folders[0].id: _Listing(self._monotonic(), ())}
            self._list_due(path, doing, deep=False)

    # -- names -------------------------------------------------------------------------------------

    def _all(self) -> dict[str, Copies]:
        found: dict[str, list[RemoteFile]] = {}
        with self._guard:
            for folder in self._folders:
                for file in self._inside(folder):
                    found.setdefault(joined(folder, file.name), []).append(file)
            for name, copies in self._own.items():
                found.setdefault(name, []).extend(copies)
            whole = {name: self._present(files) for name, files in found.items()}
        return {name: copies for name, copies in whole.items() if copies and is_name(name)}

    def _inside(self, folder: str) -> list[RemoteFile]:
        listings = [self._listed[id] for id in self._folders.get(folder, ()) if id in self._listed]
        return [file for listing in listings for file in listing.files if file.size is not None]

    def _present(self, files: Iterable[RemoteFile]) -> Copies:
        alive = {file.id: file for file in files if file.id not in self._gone}
        return tuple(sorted(alive.values(), key=age))


def _parent(name: str) -> str:
    return name.rpartition("/")[0]


def _below(folder: str, path: str) -> bool:
    return folder == path or is_below(folder, path)


def _without(ids: Collection[str], own: Mapping[str, Copies]) -> dict[str, Copies]:
    left = {name: tuple(file for file in copies if file.id not in ids) for name, copies in own.items()}
    return {name: copies for name, copies in left.items() if copies}


def _vanished(doing: str) -> StoreUnavailable:
    return StoreUnavailable(
        problem=f"Google Drive could not {doing}: a folder of the checkpoints vanished meanwhile.",
        remedy="It is made again at the next try. If somebody moved it to the trash: it can be restored there.",
    )
