"""A mounted Google Drive that can be had anywhere, with everything that makes the real one hard to live with.

::

    mount = FakeMount(tmp_path)
    store = MountedStore(mount.root / "colabkeep", files=mount.files)
    with mount.syncing():
        ...
    mount.reclaim()         # the machine is taken away; what Drive has is mounted on a new one

The files are real. What is written lands in a folder (`root`), DriveFS notices it later and uploads it later still, in
no particular order, into another one (`cloud`), which is all that outlives the machine. Where each behaviour was seen
is told in `colabkeep.stores.colab_drive`. What the fake knows of files it finds on disk, so it outlives a killed
process, as DriveFS does: a forked child may write through `files` and be killed (fork while no thread is `syncing`). A
process that has a fake of its own on the same folder goes on with what the one before left: one at a time.
"""

from __future__ import annotations

import errno
import hashlib
import os
import random
import shutil
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from colabkeep.stores.shared.files import OS_FILES, Files

__all__ = ["FakeMount"]

_PIECE = 100_000  # bytes that one write takes at most, so that writers have to go on
_BLOCK = 4096
_WRITES = os.O_WRONLY | os.O_RDWR


class FakeMount:
    """The mount, and the Drive behind it. Set the attributes as a test needs them, at any time.

    `away`: the error number of every call while the mount is gone: ENOTCONN (`die`), ENOENT (unmounted) or EIO.
    `fails`: the share of calls that fail once, with ENOTCONN or EIO. `lags`: from now on a folder's listing stays as
    it is when it is next read, until `settle`. `most_entries`: a folder with more than these answers with EIO.
    `quota_bytes`: Drive's room, trash included; what exceeds it is never uploaded, which nobody is told, or with
    `refuses` cannot be written (ENOSPC). `silent`: files get no attributes. `damages`: writes store other bytes.

    `misuse` lists what no store should do here: links, renames, files opened for writing twice and not deleted.
    """

    def __init__(self, folder: Path, *, seed: int = 0, quota_bytes: int | None = None) -> None:
        self.root = folder / "machine" / "MyDrive"
        self.root.mkdir(parents=True, exist_ok=True)
        self.away: int | None = None
        self.fails = 0.0
        self.lags = False
        self.most_entries: int | None = None
        self.quota_bytes = quota_bytes
        self.refuses = False
        self.silent = False
        self.damages = False
        self.random = random.Random(seed)  # a test is to be repeated
        self._drive = _Drive(folder / "cloud")
        self._guard = threading.RLock()
        self._noticed: set[str] = set()
        self._calls = _Calls(self, self._drive)
        self.files = Files(**{one.name: partial(self._call, one.name) for one in fields(Files)})

    @property
    def cloud(self) -> Path:
        """What Drive has."""
        return self._drive.folder

    @property
    def trash_bytes(self) -> int:
        """What deleted files still count."""
        return self._drive.trash_bytes

    @property
    def uploaded_bytes(self) -> int:
        """What this fake has sent to Drive so far, deleted files too."""
        return self._drive.taken_bytes

    @property
    def misuse(self) -> list[str]:
        with self._guard:
            again = [f"{path} was opened for writing again" for path in self._calls.reopened if Path(path).exists()]
            return [*self._calls.wrong, *again]

    @property
    def used_bytes(self) -> int:
        """What the account's quota counts, with what waits for its upload."""
        with self._guard:
            return self._drive.used_bytes + sum(path.stat().st_size for path in self._pending())

    def die(self) -> None:
        """The mount's program ends. Descriptors that are open now stay dead when it comes back."""
        with self._guard:
            self.away = errno.ENOTCONN
            self._calls.dead |= self._calls.opened

    def come_back(self, *, losing: bool = False) -> None:
        """It is mounted again. `losing`: what was not uploaded is gone."""
        with self._guard:
            self.away = None
            for path in self._pending() if losing else []:
                path.unlink()

    def delete_folder(self, name: str) -> None:
        """Somebody deletes this folder of the Drive, in the browser or here."""
        with self._guard:
            shutil.rmtree(self.root / name)

    def settle(self) -> None:
        """Listings show what there is now."""
        with self._guard:
            self.lags = False
            self._calls.shown.clear()

    def notice(self) -> None:
        """DriveFS takes note of what is there: from now on those files have attributes."""
        with self._guard:
            if self.away is None:
                self._noticed |= {str(path) for path in self._all_files()}

    def noticed(self, path: str) -> bool:
        """Does DriveFS know this file?"""
        return path in self._noticed and not self.silent

    def sync(self, most: int | None = None) -> int:
        """Upload files that were noticed and are closed, and carry out deletions: `most` of them, in any order."""
        with self._guard:
            if self.away is not None:
                return 0
            closed = [path for path in self._pending() if str(path) in self._noticed - self._calls.being_written()]
            deleted = [self.root / key for key in self._drive.names() if not (self.root / key).exists()]
            jobs = [*closed, *deleted]
            self.random.shuffle(jobs)
            return sum(self._sync_one(path) for path in jobs[:most])

    @contextmanager
    def syncing(self, every: float = 0.005) -> Iterator[None]:
        """A thread does all that by itself, one thing each `every` seconds."""
        done = threading.Event()

        def work() -> None:
            while not done.wait(every):
                self.sync(most=1)
                self.notice()

        thread = threading.Thread(target=work, name="fake-drivefs", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def reclaim(self) -> None:
        """The machine is taken away, and Drive is mounted on a new one.

        Of what was not uploaded some is missing in Drive, some is empty, some is cut.
        """
        with self._guard:
            for path in self._pending():
                fate = self.random.choice(("missing", "empty", "cut"))
                if fate != "missing":
                    self._drive.take(self._key(path), path, most=0 if fate == "empty" else path.stat().st_size // 2)
            shutil.rmtree(self.root)
            self._drive.copy_to(self.root)
            self.away = None
            self._noticed = {str(path) for path in self._all_files()}
            self._calls = _Calls(self, self._drive)

    def _sync_one(self, path: Path) -> bool:
        key = self._key(path)
        if not path.exists():
            return self._drive.delete(key, self._calls.last_sizes.get(str(path)))
        if self.quota_bytes is not None and self._drive.used_bytes + path.stat().st_size > self.quota_bytes:
            return False
        return self._drive.take(key, path)

    def _pending(self) -> list[Path]:
        return [path for path in self._all_files() if not self._drive.has(self._key(path), path)]

    def _all_files(self) -> list[Path]:
        return sorted(path for path in self.root.rglob("*") if path.is_file())

    def _key(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _call(self, name: str, /, *arguments: Any, **options: Any) -> Any:
        with self._guard:
            self._calls.answer(name, arguments[0])
            return getattr(self._calls, name, getattr(OS_FILES, name))(*arguments, **options)


class _Calls:
    """The system calls that are not quite those of a disk, and what must be remembered for them."""

    def __init__(self, mount: FakeMount, drive: _Drive) -> None:
        self._mount = mount
        self._drive = drive
        self._writing: dict[int, str] = {}
        self.opened: set[int] = set()
        self.dead: set[int] = set()
        self.shown: dict[str, list[_Entry]] = {}
        self.last_sizes: dict[str, int] = {}  # of deleted files, by path
        self.reopened: set[str] = set()
        self.wrong: list[str] = []

    def being_written(self) -> set[str]:
        return set(self._writing.values())

    def answer(self, name: str, subject: Any) -> None:
        """Raise what the mount answers instead of doing what is asked."""
        mount, code = self._mount, self._mount.away
        if code is None and subject in self.dead:
            code = errno.ENOTCONN
        if code is None and mount.random.random() < mount.fails:
            code = mount.random.choice((errno.ENOTCONN, errno.EIO))
        if code is not None:
            if name == "close":  # the system frees the descriptor all the same
                self.close(subject)
            raise OSError(code, os.strerror(code), str(subject))

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            self._refuse_full_folder(Path(path).parent)
        descriptor = os.open(path, flags, mode)
        self.opened.add(descriptor)
        if flags & _WRITES:
            self._writing[descriptor] = path
            if not flags & os.O_EXCL:
                self.reopened.add(path)
        return descriptor

    def close(self, descriptor: int) -> None:
        for known in (self.opened, self.dead):
            known.discard(descriptor)
        self._writing.pop(descriptor, None)
        os.close(descriptor)

    def write(self, descriptor: int, data: memoryview) -> int:
        quota, piece = self._mount.quota_bytes, data[:_PIECE]
        if quota is not None and self._mount.refuses and self._mount.used_bytes + len(piece) > quota:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(descriptor, bytes(len(piece)) if self._mount.damages else piece)

    def fsync(self, descriptor: int) -> None:
        """Nothing that is known of: no page says what it waits for here, and no store may rely on it."""

    def scandir(self, path: str) -> AbstractContextManager[Iterable[_Entry]]:
        self._refuse_full_folder(Path(path))
        if self._mount.lags and path in self.shown:
            return nullcontext(self.shown[path])
        found = []
        with os.scandir(path) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    found.append(_Entry(entry))
        if self._mount.lags:
            self.shown[path] = found
        return nullcontext(found)

    def unlink(self, path: str) -> None:
        size = Path(path).stat().st_size
        Path(path).unlink()
        self.last_sizes[path] = size

    def link(self, source: str, *_: Any, **__: Any) -> None:
        self.wrong.append(f"{source} was linked")
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), source)

    def rename(self, source: str, target: str) -> None:
        """Both names are there afterwards."""
        self.wrong.append(f"{source} was renamed")
        shutil.copyfile(source, target)

    def getxattr(self, path: str, name: str) -> bytes:
        here = Path(path)
        here.stat()
        key = here.relative_to(self._mount.root).as_posix()
        if self._mount.noticed(path) and name == "user.drive.id":
            return (self._drive.id(key) or f"local-{_digest(key)}").encode()
        if self._mount.noticed(path) and name == "user.drive.uncommitted":
            return b"0" if self._drive.has(key, here) else b"1"
        raise OSError(errno.ENODATA, os.strerror(errno.ENODATA), path)

    def statvfs(self, path: str) -> os.statvfs_result:
        """The account's room, not the disk's."""
        if self._mount.quota_bytes is None:
            return os.statvfs(path)
        free = max(0, self._mount.quota_bytes - self._mount.used_bytes) // _BLOCK
        return os.statvfs_result((_BLOCK, _BLOCK, self._mount.quota_bytes // _BLOCK, free, free, 0, 0, 0, 0, 255))

    def _refuse_full_folder(self, folder: Path) -> None:
        most = self._mount.most_entries
        if most is not None and folder.is_dir() and len(list(folder.iterdir())) > most:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(folder))


class _Drive:
    """What is in Drive: files by their keys, each in the version that was uploaded last, and a trash that counts.

    What a process before this one uploaded is known by its size and time, which the copy has of the original.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(exist_ok=True)
        self.trash_bytes = self.taken_bytes = 0
        self._versions: dict[str, tuple[int, int, int]] = {}

    @property
    def used_bytes(self) -> int:
        return self.trash_bytes + sum((self.folder / key).stat().st_size for key in self.names())

    def names(self) -> list[str]:
        return sorted(path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file())

    def id(self, key: str) -> str | None:
        """Drive's own name of the file; None if it is not there."""
        return _digest(f"{key} in Drive") if (self.folder / key).is_file() else None

    def has(self, key: str, path: Path) -> bool:
        """Is this very version of the file in Drive?"""
        if key in self._versions:
            return self._versions[key] == _version(path)
        there = self.folder / key
        return there.is_file() and _version(there)[1:] == _version(path)[1:]

    def take(self, key: str, path: Path, most: int | None = None) -> bool:
        """Upload a file, or only the first `most` bytes of it."""
        target = self.folder / key
        target.parent.mkdir(parents=True, exist_ok=True)
        with path.open("rb") as source, target.open("wb") as copy:
            self.taken_bytes += copy.write(source.read(-1 if most is None else most))
        shutil.copystat(path, target)
        self._versions[key] = _version(path)
        return True

    def delete(self, key: str, counts: int | None) -> bool:
        """Move a file to the trash, where it counts that many bytes (all of its own if None)."""
        path = self.folder / key
        self.trash_bytes += path.stat().st_size if counts is None else counts
        path.unlink()
        self._versions.pop(key, None)
        return True

    def copy_to(self, root: Path) -> None:
        """Show all files on a new machine."""
        shutil.copytree(self.folder, root)
        self._versions = {key: _version(root / key) for key in self.names()}


class _Entry:
    """An `os.DirEntry` that goes on showing what was there."""

    def __init__(self, entry: os.DirEntry[str]) -> None:
        self.name = entry.name
        self.path = entry.path
        self._facts = entry.stat(follow_symlinks=False)
        self._is_dir = entry.is_dir(follow_symlinks=False)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._is_dir

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return self._facts


def _version(path: Path) -> tuple[int, int, int]:
    facts = path.stat()
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:33]
