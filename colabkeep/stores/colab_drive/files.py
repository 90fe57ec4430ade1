"""Files on the mount: what they are called, the folders they lie in, how one is written or removed, and which
objects there are.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from colabkeep.core.errors import StoreError, StoreUnavailable
from colabkeep.stores.base import Source, changed, is_below, is_name
from colabkeep.stores.shared.files import Files
from colabkeep.stores.shared.streaming import flat

# The number is the size in bytes, by which a file that was cut short is known; the token makes the name new. "~" occurs
# in no object's name, so nobody's plain file is taken for one of these. The ending stays last, for other programs.

_OURS = re.compile(r"([^~]+)~(0|[1-9][0-9]{0,18})~[0-9a-f]{16}(\.[^~]*)?")
_OVERFLOW = re.compile(r"~[1-9][0-9]*")


def new_file_name(last: str, size: int) -> str:
    """A name that no file has or ever had."""
    stem, dot, ending = last.rpartition(".")
    return f"{stem or last}~{size}~{secrets.token_hex(8)}{dot}{ending if dot else ''}"


def parse(file: str) -> tuple[str, int | None] | None:
    """What the name of a file says: the last part of the object's name, and the size in bytes (None: a plain name);
    None if it cannot be an object."""
    ours = _OURS.fullmatch(file)
    last = file if ours is None else ours[1] + (ours[3] or "")
    return (last, None if ours is None else int(ours[2])) if is_name(last) else None


_MY_DRIVE = frozenset({"MyDrive", "My Drive"})  # Colab has both spellings of the one folder
_SHARED = frozenset({"Shareddrives", "Shared drives"})


def drive_part(root: Path) -> Path | None:
    """The part of the path that is somebody's own Drive or a shared one, as Colab mounts them; None if none is."""
    paths = (root, *root.parents)
    return next((path for path in paths if path.name in _MY_DRIVE or path.parent.name in _SHARED), None)


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


READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 2**20


class Draft:
    """A file that is short by its last byte until `finish`. It is made with its first byte, so an empty one by
    `finish`, for it is whole the moment it exists. `undo` works at every moment."""

    def __init__(self, files: Files, path: str, name: str, source: Source) -> None:
        self.path = path
        self._files = files
        self._name = name
        self._source = source
        self._descriptor = -1
        self._last = memoryview(b"")
        self._given = 0
        self._digest = hashlib.sha256()

    def write(self, chunk: memoryview) -> None:
        """Write the chunk, without the file's last byte; `StoreError` if there are more than were announced."""
        view = flat(chunk)
        self._given += len(view)
        if self._given > self._source.size:
            raise changed(self._name, self._source.size, self._given)
        self._digest.update(view)
        if len(view) and self._given == self._source.size:
            view, self._last = view[:-1], memoryview(bytes(view[-1:]))
        if len(view):
            self._write_all(view)

    def complete(self) -> None:
        """See that all bytes were given, and that they are those that were announced."""
        if self._given != self._source.size:
            raise changed(self._name, self._source.size, self._given)
        if self._digest.hexdigest() != self._source.sha256:
            raise changed(self._name, self._source.size, "other bytes")

    def finish(self) -> None:
        """Write the last byte, which makes the object, close, and read all of it again.

        Raises:
            StoreUnavailable: the mount does not give back what was written.
        """
        self._write_all(self._last)
        self._files.fsync(self._descriptor)
        descriptor, self._descriptor = self._descriptor, -1
        self._files.close(descriptor)
        digest, offset = hashlib.sha256(), 0
        descriptor = self._files.open(self.path, READ)
        try:
            while data := self._files.pread(descriptor, _CHUNK, offset):
                digest.update(data)
                offset += len(data)
        finally:
            with suppress(OSError):  # nothing was written through it
                self._files.close(descriptor)
        if (offset, digest.digest()) != (self._given, self._digest.digest()):
            raise StoreUnavailable(
                problem=f"What was written to {self.path} was not what could be read from it afterwards. It is not "
                "kept; what was saved before is untouched.",
                remedy="Nothing needs to be done: it is written again under another name.",
            )

    def undo(self) -> None:
        """Leave nothing. Where the mount is gone that cannot be had: then the file is short, and `sweep` finds it."""
        if self._descriptor >= 0:
            with suppress(OSError):
                self._files.close(self._descriptor)
        for _ in range(3):  # a mount that has just failed may fail once more
            with suppress(OSError):
                self._files.unlink(self.path)
                return

    def _write_all(self, view: memoryview) -> None:
        if self._descriptor < 0:
            self._descriptor = self._files.open(self.path, _NEW, 0o666)
        while len(view):
            view = view[self._files.write(self._descriptor, view) :]


# A listing may lag, in both directions: it misses what was just written, and shows what was just deleted. So what was
# seen once is asked for by its path, which nobody else ever uses; and a path that was given up is no object any more.
#
# Drive grows slow, and answers with errno 5, where a folder has too many entries; no number is published
# (googlecolab/colabtools #3084, and #5028 of 2024-12, where staff advise subfolders). So a folder takes `per_folder`
# files of ours, and the others go into subfolders of it, `~1`, `~2`, …, which are no part of any object's name.


class Objects:
    """The objects below the folder `root`. Its calls raise the bare `OSError`, and `StoreUnavailable` where the mount,
    or a root that was there, is gone: that is never made anew, for objects would land on this machine's disk.

    All that changes is guarded by `_guard`, and no file is touched while that is held.
    """

    def __init__(self, files: Files, root: str, per_folder: int) -> None:
        self._files = files
        self._root = root
        self._per_folder = per_folder
        self.mount = str(drive_part(Path(root)) or Path(root).parent)  # is there when, and only when, Drive is mounted
        self._seen = False  # was the root ever there?
        self._guard = threading.Lock()
        self._known: dict[str, Spot] = {}
        self._void: set[str] = set()  # paths that are being written, or were given up or removed

    def find(self, name: str) -> Spot | None:
        """The object, if it is there."""
        known = self._known.get(name)
        if known is not None and self._is_there(known):
            return known
        spots = self._listed(name)
        with self._guard:
            if known is not None and self._known.get(name) is known:
                del self._known[name]
            if spots:
                self._known.setdefault(name, spots[0])
        return spots[0] if spots else None

    def list(self, parts: Sequence[str]) -> Sequence[Spot]:
        """The objects below a folder."""
        prefix = "/".join(parts)
        with self._guard:  # before the listing: what is put in the meantime is not judged by it
            known = [spot for name, spot in self._known.items() if is_below(name, prefix)]
        found: dict[str, Spot] = {}
        for spot in self._below(parts):
            if self._stands(spot):
                found.setdefault(spot.name, spot)
        found.update({spot.name: spot for spot in known if spot.name not in found and self._is_there(spot)})
        with self._guard:
            for spot in known:
                if spot.name not in found and self._known.get(spot.name) is spot:
                    del self._known[spot.name]
            found = {name: spot for name, spot in found.items() if spot.path not in self._void}
            self._known = {**found, **self._known}
        return list(found.values())

    def leftovers(self, parts: Sequence[str]) -> Sequence[Spot]:
        """The files of this store below a folder that are no objects: too short, or given up by this process."""
        return [
            spot
            for spot in self._below(parts)
            if spot.ours and not self._stands(spot) and self._size(spot.path) is not None
        ]

    def given_up(self, path: str) -> bool:
        """Did this process write that file, and give it up?"""
        return path in self._void

    def room_for(self, name: str) -> str:
        """The folder for the file of a new object; it is made.

        Raises:
            FileExistsError: the object is there already.
        """
        folder = self.folder(name.split("/")[:-1], make=True)
        spots, subfolder = self._look_for(folder, name)
        known = self._known.get(name)
        if any(map(self._stands, spots)) or (known is not None and self._is_there(known)):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        if subfolder != folder:
            with suppress(FileExistsError):
                self._files.mkdir(subfolder)
        return subfolder

    def begin(self, name: str, size: int) -> str:
        """The path for a new object, which this process takes for one when it is added, and not before.

        Raises:
            FileExistsError: the object is there already.
        """
        path = f"{self.room_for(name)}/{new_file_name(name.rpartition('/')[2], size)}"
        with self._guard:
            self._void.add(path)
        return path

    def add(self, spot: Spot) -> None:
        """It was written."""
        with self._guard:
            self._void.discard(spot.path)
            self._known[spot.name] = spot

    def delete(self, name: str) -> None:
        """Remove all files that are this object: a put that failed may have left a second one."""
        known = self._known.get(name)
        for spot in {spot.path: spot for spot in (*filter(None, [known]), *self._listed(name))}.values():
            self.remove(spot)

    def remove(self, spot: Spot) -> None:
        """Remove one file. What is deleted goes to Drive's trash, whole, and counts against the quota for about 30
        days; emptied first, it counts nothing (googlecolab/colabtools #1269; transformers #14922, 2021-12; piper #749,
        2025-03). That is a kindness to the quota and nothing more, so where it cannot be done the file is deleted all
        the same. A plain one was not written by this store, so it goes there as it is.
        """
        if spot.ours:
            with suppress(OSError):
                descriptor = self._files.open(spot.path, _OLD)
                try:
                    self._files.ftruncate(descriptor, 0)
                finally:
                    self._files.close(descriptor)
        with suppress(FileNotFoundError):
            self._files.unlink(spot.path)
        with self._guard:
            self._void.add(spot.path)
            known = self._known.get(spot.name)
            if known is not None and known.path == spot.path:
                del self._known[spot.name]

    def folder(self, parts: Sequence[str], *, make: bool = False) -> str:
        """The path of a folder below the root, which is made if need be. Links are not followed.

        Raises:
            FileNotFoundError: there is no such folder (a file or a link in its place counts so), and it is not to
                be made.
            NotADirectoryError: it is to be made, and something else has its name.
        """
        self._see_the_mount()
        path = self.mount
        for part in Path(self._root).relative_to(self.mount).parts:
            path = self._step(path, part, make=make and not self._seen, follow=True)
        self._seen = True
        for part in parts:
            path = self._step(path, part, make=make, follow=False)
        return path

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

    def _below(self, parts: Sequence[str]) -> Sequence[Spot]:
        """All files below a folder that could be objects, and what is left of some, in the order of their paths: of
        two equal ones all readers take the same."""
        try:
            folder = self.folder(parts)
        except FileNotFoundError:
            return []
        found = list(self._walk(folder, "/".join(parts)))
        self._see_the_mount()  # if it went away meanwhile, what vanished on the way was not deleted
        return sorted(found, key=lambda spot: spot.path)

    def _walk(self, folder: str, prefix: str) -> Iterator[Spot]:
        subfolders, below = self._subfolders(folder)
        yield from self._spots(subfolders, prefix)
        for part in below:
            with suppress(FileNotFoundError, NotADirectoryError):  # removed since the folder was read
                yield from self._walk(f"{folder}/{part}", f"{prefix}/{part}" if prefix else part)

    def _listed(self, name: str) -> Sequence[Spot]:
        """The files that are this object, in the order of their paths."""
        try:
            spots, _ = self._look_for(self.folder(name.split("/")[:-1]), name)
        except FileNotFoundError:
            return []
        return sorted(filter(self._stands, spots), key=lambda spot: spot.path)

    def _look_for(self, folder: str, name: str) -> tuple[Sequence[Spot], str]:
        """The files that are meant to be this object, and the folder in which a new one finds room."""
        subfolders, _ = self._subfolders(folder)
        spots = list(self._spots(subfolders, name.rpartition("/")[0], only=name.rpartition("/")[2]))
        for subfolder, entries in subfolders.items():
            if len(entries) < self._per_folder:
                return spots, subfolder
        return spots, next(path for n in count(1) if (path := f"{folder}/~{n}") not in subfolders)

    def _subfolders(self, folder: str) -> tuple[dict[str, Sequence[os.DirEntry[str]]], Sequence[str]]:
        """The files in the folder and in each that takes its overflow, by path; and the names of other folders."""
        entries = self._entries(folder)
        below = {entry.name for entry in entries if entry.is_dir(follow_symlinks=False)}
        subfolders: dict[str, Sequence[os.DirEntry[str]]] = {folder: [one for one in entries if one.name not in below]}
        for part in filter(_OVERFLOW.fullmatch, sorted(below, key=lambda part: (len(part), part))):
            with suppress(FileNotFoundError):
                path = f"{folder}/{part}"
                subfolders[path] = [one for one in self._entries(path) if not one.is_dir(follow_symlinks=False)]
        return subfolders, sorted(filter(is_name, below))

    def _entries(self, folder: str) -> Sequence[os.DirEntry[str]]:
        with self._files.scandir(folder) as entries:
            return list(entries)

    def _spots(
        self, subfolders: Mapping[str, Sequence[os.DirEntry[str]]], prefix: str, only: str | None = None
    ) -> Iterator[Spot]:
        for subfolder, entries in subfolders.items():
            for entry in entries:
                said = parse(entry.name)
                if said is None or only not in {None, said[0]}:
                    continue
                last, size = said
                with suppress(FileNotFoundError):  # a listing may show what was deleted
                    facts = entry.stat(follow_symlinks=False)
                    if S_ISREG(facts.st_mode):
                        yield Spot(
                            name=f"{prefix}/{last}" if prefix else last,
                            path=f"{subfolder}/{entry.name}",
                            size=facts.st_size if size is None else size,
                            whole=size in {None, facts.st_size},
                            ours=size is not None,
                            modified=facts.st_mtime,
                        )

    def _stands(self, spot: Spot) -> bool:
        return spot.whole and spot.path not in self._void

    def _is_there(self, spot: Spot) -> bool:
        return spot.path not in self._void and self._size(spot.path) == spot.size

    def _size(self, path: str) -> int | None:
        try:
            return self._files.stat(path, follow_symlinks=False).st_size
        except FileNotFoundError:
            return None


def _gone(what: str) -> StoreError:
    return StoreUnavailable(
        problem=what,
        remedy="Mount Google Drive again, or bring the folder back in Drive (see its trash), and run this cell again.",
    )
