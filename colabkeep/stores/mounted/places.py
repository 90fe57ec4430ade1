"""Folders on the mount: whether it is there at all, and which files lie in them.

Drive grows slow, and answers with errno 5, where a folder has too many entries; no number is published
(googlecolab/colabtools #3084, and #5028 of 2024-12, where staff advise subfolders). So a folder takes `per_folder`
files of ours, and the others go into subfolders of it, `~1`, `~2`, …, which are no part of any object's name.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from colabkeep.stores._posix import Files
from colabkeep.stores.mounted.names import is_legal, is_overflow, overflow, parse
from colabkeep.vocabulary.errors import StoreUnavailable

__all__ = ["Place", "Spot", "is_in_drive", "mounted_part"]

_MY_DRIVE = frozenset({"MyDrive", "My Drive"})  # Colab has both spellings of the one folder
_SHARED = frozenset({"Shareddrives", "Shared drives"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """A file and the object it is meant to be. `size` in bytes: what its name states (`ours`), else what it has.
    `modified`: seconds since 1970."""

    name: str
    path: str
    size: int
    whole: bool
    ours: bool
    modified: float


class Place:
    """The folder `root`. Its calls raise the bare `OSError`, except for a mount that is gone."""

    def __init__(self, root: str, files: Files, per_folder: int) -> None:
        self.root = root
        self._files = files
        self._per_folder = per_folder
        self.mount = mounted_part(Path(root))
        self._seen = False

    def folder(self, parts: Sequence[str], *, make: bool = False) -> str:
        """The path of a folder below the root, which is made if need be. Links are not followed.

        Raises:
            StoreUnavailable: the mount, or a root that was there, is gone; it is never made anew, because the
                objects would land on this machine's disk.
            FileNotFoundError: there is no such folder (a file or a link in its place counts so), and it is not to
                be made.
            NotADirectoryError: it is to be made, and something else has its name.
        """
        self._see_the_mount()
        path = self.mount
        for part in Path(self.root).relative_to(self.mount).parts:
            path = self._step(path, part, make=make and not self._seen, follow=True)
        self._seen = True
        for part in parts:
            path = self._step(path, part, make=make, follow=False)
        return path

    def walk(self, parts: Sequence[str]) -> Iterator[Spot]:
        """All files below a folder that could be objects, and what is left of some.

        Raises:
            StoreUnavailable, FileNotFoundError: as `folder`.
        """
        yield from self._walk(self.folder(parts), "/".join(parts))
        self._see_the_mount()  # if it went away meanwhile, what vanished on the way was not deleted

    def look_for(self, folder: str, name: str) -> tuple[list[Spot], str]:
        """The files that are meant to be this object, and the folder in which a new one finds room."""
        prefix, _, last = name.rpartition("/")
        shelves, _ = self._shelves(folder)
        spots = [spot for spot in self._spots(shelves, prefix, only=last) if spot.name == name]
        for shelf, entries in shelves.items():
            if len(entries) < self._per_folder:
                return spots, shelf
        return spots, next(path for n in count(1) if (path := f"{folder}/{overflow(n)}") not in shelves)

    def make_shelf(self, path: str) -> None:
        """Make the folder that `look_for` chose."""
        with suppress(FileExistsError):
            self._files.mkdir(path)

    def _see_the_mount(self) -> None:
        try:
            self._files.stat(self.mount)
        except FileNotFoundError as error:
            raise _gone(
                f"{self.mount} is not there: Google Drive is not mounted, or not any more. What was uploaded before is "
                "safe in Drive."
            ) from error

    def _step(self, folder: str, part: str, *, make: bool, follow: bool) -> str:
        path = f"{folder}/{part}"
        try:
            facts = self._files.stat(path, follow_symlinks=follow)
        except FileNotFoundError as error:
            if not make:
                if follow and self._seen:
                    raise _gone(f"{path} was there and is gone: it was deleted or renamed in Drive.") from error
                raise
            with suppress(FileExistsError):
                self._files.mkdir(path)
            facts = self._files.stat(path, follow_symlinks=follow)
        if not S_ISDIR(facts.st_mode):
            code = errno.ENOTDIR if make else errno.ENOENT
            raise OSError(code, os.strerror(code), path)
        return path

    def _walk(self, folder: str, prefix: str) -> Iterator[Spot]:
        shelves, below = self._shelves(folder)
        yield from self._spots(shelves, prefix)
        for part in below:
            with suppress(FileNotFoundError, NotADirectoryError):  # removed since the folder was read
                yield from self._walk(f"{folder}/{part}", f"{prefix}/{part}" if prefix else part)

    def _shelves(self, folder: str) -> tuple[dict[str, list[os.DirEntry[str]]], list[str]]:
        """The files in the folder and in each that takes its overflow, by path; and the names of other folders."""
        shelves: dict[str, list[os.DirEntry[str]]] = {folder: []}
        below: list[str] = []
        for entry in self._entries(folder):
            if not entry.is_dir(follow_symlinks=False):
                shelves[folder].append(entry)
            elif is_overflow(entry.name):
                with suppress(FileNotFoundError):
                    path = f"{folder}/{entry.name}"
                    shelves[path] = [one for one in self._entries(path) if not one.is_dir(follow_symlinks=False)]
            elif is_legal(entry.name):
                below.append(entry.name)
        return shelves, below

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        with self._files.scandir(folder) as entries:
            return list(entries)

    def _spots(
        self, shelves: dict[str, list[os.DirEntry[str]]], prefix: str, only: str | None = None
    ) -> Iterator[Spot]:
        for shelf, entries in shelves.items():
            for entry in entries:
                said = parse(entry.name)
                if said is None or only not in {None, said.last}:
                    continue
                with suppress(FileNotFoundError):  # a listing may show what was deleted
                    facts = entry.stat(follow_symlinks=False)
                    if S_ISREG(facts.st_mode):
                        yield Spot(
                            name=f"{prefix}/{said.last}" if prefix else said.last,
                            path=f"{shelf}/{entry.name}",
                            size=facts.st_size if said.size is None else said.size,
                            whole=said.size in {None, facts.st_size},
                            ours=said.size is not None,
                            modified=facts.st_mtime,
                        )


def mounted_part(root: Path) -> str:
    """The part of the path that is there when, and only when, Drive is mounted: it is never made."""
    return str(_drive_part(root) or root.parent)


def is_in_drive(root: Path) -> bool:
    """Does the path lead into somebody's own Drive or a shared one, as Colab mounts them?"""
    return _drive_part(root) is not None


def _drive_part(root: Path) -> Path | None:
    paths = (root, *root.parents)
    return next((path for path in paths if path.name in _MY_DRIVE or path.parent.name in _SHARED), None)


def _gone(what: str) -> StoreUnavailable:
    return StoreUnavailable(
        problem=what,
        remedy="Mount Google Drive again, or bring the folder back in Drive (see its trash), and run this cell again.",
    )
