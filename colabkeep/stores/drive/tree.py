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

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from colabkeep.core.errors import StoreUnavailable, UsageError
from colabkeep.stores.base import check_name
from colabkeep.stores.drive.files import (
    MARK,
    Astray,
    Files,
    FolderGone,
    OwnFolder,
    RemoteFile,
    Whereabouts,
    joined,
    refuse_shortcut,
)

__all__ = ["FRESH_SECONDS", "Copies", "Tree"]

Copies = tuple[RemoteFile, ...]
"""The files of one name, the oldest first."""

FRESH_SECONDS = 5.0
"""A listing younger than this is taken for the present. What another session does is seen that much later at most."""


_TWINS_SECONDS = 60.0  # after which a second folder of the name of one that is known is looked for


@dataclass(frozen=True, slots=True)
class _Listing:
    """What was directly in a folder, when it was asked for."""

    at: float
    files: tuple[RemoteFile, ...]


class Tree:
    """The folder of a store with all below it. A path has no slash at its ends; the store's own folder is "".

    `_turn` is held while the service is asked, `_guard` for moments only: everything without an underscore that does
    not ask can be called at any time. What is guarded is replaced or changed under `_guard`.
    """

    def __init__(self, files: Files, root: OwnFolder, monotonic: Callable[[], float]) -> None:
        self._files = files
        self._root = root
        self._monotonic = monotonic
        self._turn = threading.RLock()
        self._guard = threading.Lock()
        self._folders: dict[str, tuple[str, ...]] = {}  # path → ids, the oldest first where a folder is there twice
        self._whereabouts = Whereabouts(files.look)
        self._listed: dict[str, _Listing] = {}  # id of a folder → what is in it
        self._searched: float | None = None  # when the folders were looked for last
        self._seen: set[tuple[str, str]] = set()  # paths and ids that were found then
        self._own: dict[str, Copies] = {}  # written by this process, and not seen in a listing yet
        self._gone: frozenset[str] = frozenset()  # ids deleted by this process

    # -- asking ------------------------------------------------------------------------------------

    def find(self, name: str, doing: str) -> Copies:
        """The files of that name.

        Raises:
            StoreError: it cannot be told.
        """
        if not self._own.get(name):
            self._refresh(_parent(name), doing, deep=False)
        return self.known(name)

    def below(self, path: str, doing: str) -> dict[str, Copies]:
        """All files below the path, by name; names that no store gives are left out.

        Raises:
            StoreError: it cannot be told.
        """
        self._refresh(path, doing, deep=True)
        return {name: copies for name, copies in self._all().items() if not path or name.startswith(f"{path}/")}

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
            return not file.trashed and (self._searched is None or any(one in folders for one in file.parents))

    @property
    def astray(self) -> tuple[Astray, ...]:
        """The folders that somebody renamed, moved or removed under this process, and has not brought back."""
        return self._whereabouts.astray

    # -- changing ----------------------------------------------------------------------------------

    def folder(self, path: str, doing: str) -> str:
        """The id of a folder to write into; it is made if it is not there.

        Raises:
            StoreError: it cannot be made, or it cannot be told whether it is there.
        """
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

    def deleted(self, name: str, ids: Iterable[str]) -> None:
        """This process deleted these files of that name, or found that they are gone."""
        with self._guard:
            self._gone |= frozenset(ids)
            left = tuple(file for file in self._own.get(name, ()) if file.id not in self._gone)
            if left:
                self._own[name] = left
            else:
                self._own.pop(name, None)

    def forget(self) -> None:
        """A folder is not where it was: look for everything again."""
        with self._guard:
            self._folders, self._listed, self._own, self._searched = {}, {}, {}, None

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
        if self._searched is None or self._searched < again:
            self._search(doing)
            ids = [(path, id) for path, ids in self._folders.items() for id in ids]
            if self._whereabouts.changed((one for one in ids if one not in self._seen), doing):
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
        folders = {folder: set(ids) for folder, ids in self._folders.items()}
        self._whereabouts.meet(file for file in found if file.is_folder)
        for file in found:
            for parent in file.parents:
                if parent in due:
                    files[parent].append(file)
                    if file.is_folder:
                        folders.setdefault(joined(due[parent], file.name), set()).add(file.id)
        shown = {file.id for file in found}
        with self._guard:
            self._listed = {**self._listed, **{id: _Listing(now, tuple(files[id])) for id in due}}
            self._folders = {folder: self._whereabouts.by_age(ids) for folder, ids in folders.items()}
            left = {name: tuple(f for f in copies if f.id not in shown) for name, copies in self._own.items()}
            self._own = {name: copies for name, copies in left.items() if copies}

    def _search(self, doing: str) -> None:
        now = self._monotonic()
        found = self._root.search(doing)
        self._whereabouts.meet(file for files in found.values() for file in files)
        self._seen = {(path, one.id) for path, files in found.items() for one in files}
        with self._guard:
            # One that is known and not found stays: the search may be behind, and its own listing tells what is in it.
            paths = found.keys() | self._folders.keys()
            known = {path: {*self._folders.get(path, ()), *(one.id for one in found.get(path, ()))} for path in paths}
            self._folders = {path: self._whereabouts.by_age(ids) for path, ids in known.items()}
            self._searched = now

    def _make(self, path: str, doing: str) -> None:
        """What is found beside a folder that was made is another machine's, which may have made more in it already."""
        if "" not in self._folders:
            self._adopt("", self._root.make(doing))
            self._list_due(path, doing, deep=False)
        while path not in self._folders:
            above = self._above(path)[0]
            name = path[len(above) :].strip("/").partition("/")[0]
            for id in self._folders[above]:
                refuse_shortcut(name, self._listed[id].files if id in self._listed else ())
            folders = self._files.make_alone(name, self._folders[above][0], {MARK: "folder"}, doing)
            self._adopt(joined(above, name), folders)
            if len(folders) == 1:
                with self._guard:  # it is empty
                    self._listed = {**self._listed, folders[0].id: _Listing(self._monotonic(), ())}
            self._list_due(path, doing, deep=False)

    def _adopt(self, path: str, folders: list[RemoteFile]) -> None:
        self._whereabouts.meet(folders)
        with self._guard:
            self._folders = {**self._folders, path: tuple(one.id for one in folders)}

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
        return {name: copies for name, copies in whole.items() if copies and _is_legal(name)}

    def _inside(self, folder: str) -> list[RemoteFile]:
        listings = [self._listed[id] for id in self._folders.get(folder, ()) if id in self._listed]
        return [file for listing in listings for file in listing.files if file.size is not None]

    def _present(self, files: Iterable[RemoteFile]) -> Copies:
        alive = {file.id: file for file in files if file.id not in self._gone}
        return tuple(sorted(alive.values(), key=lambda file: (file.created, file.id)))


def _parent(name: str) -> str:
    return name.rpartition("/")[0]


def _below(folder: str, path: str) -> bool:
    return folder == path or not path or folder.startswith(f"{path}/")


def _is_legal(name: str) -> bool:
    try:
        check_name(name)
    except UsageError:
        return False
    return True


def _vanished(doing: str) -> StoreUnavailable:
    return StoreUnavailable(
        problem=f"Google Drive could not {doing}: a folder of the checkpoints vanished meanwhile.",
        remedy="It is made again at the next try. If somebody moved it to the trash: it can be restored there.",
    )
