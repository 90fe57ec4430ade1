"""A store that is a folder on a disk of this machine: the only writer of files beside those of a mounted Drive;
large files go past the page cache.
"""

from __future__ import annotations

import ctypes
import errno
import io
import mmap
import os
import re
import secrets
import stat
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias
from urllib.parse import unquote_to_bytes, urlsplit

from colabkeep.core.errors import ObjectNotFound, StoreUnavailable, UsageError
from colabkeep.stores.base import (
    Entry,
    Lock,
    NoLock,
    Receipt,
    Source,
    Store,
    StoreProperties,
    changed,
    check_name,
    check_prefix,
    explained,
    is_name,
    run_of,
    shown,
)
from colabkeep.stores.shared.files import OS_FILES, Files
from colabkeep.stores.shared.locks import take

# A save is flushed to disk in any case, and its bytes are not read again soon. Through the page cache each of them
# costs the kernel a fresh page: of 300 MB on ext4, written and flushed behind busy cores, 150 to 220 ms of CPU time
# instead of 45, and half as long again on the clock (medians of 12, in turn). It also pushes the training's data set
# out of it.
#
# The disk takes only whole blocks from aligned memory, so the bytes pass through a buffer; its copying, unlike that of
# a `memoryview`, lets other threads run. Source: open(2), "O_DIRECT", and fcntl(2), "F_SETFL".


LARGE = 2**22
"""Bytes; a smaller file is not worth a buffer."""

_BUFFER = 2**23  # bytes; with 4 and with 16 MiB it took as long

Spare: TypeAlias = "deque[mmap.mmap]"
"""The buffer of the file before, for the next one: of 8 and of 17 MB, put behind a training, each took 22 ms with fresh
memory and 5 and 10 ms with that; in CPU time 9 and 11 ms, and 2 and 3."""

_BLOCK = 2**12  # bytes; no disk asks for more than a page
_FAILED = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})  # the disk itself, whichever way the bytes come
_O_DIRECT = getattr(os, "O_DIRECT", 0)  # macOS has none


class Direct:
    """The bytes of one new file that was opened for it by `past_cache`, in order; `end` writes the last of them."""

    def __init__(self, files: Files, descriptor: int, spare: Spare) -> None:
        self._files = files
        self._descriptor = descriptor
        self._spare = spare
        try:
            self._memory = spare.pop()
        except IndexError:  # the first; or another thread has it
            self._memory = mmap.mmap(-1, _BUFFER)  # aligned to pages
        self._buffer = memoryview(self._memory)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._buffer))
        self._filled = 0
        self._direct = True

    def write(self, chunk: memoryview) -> None:
        """Take all of the chunk; its memory is not needed afterwards."""
        at = 0
        while at < chunk.nbytes:
            count = min(chunk.nbytes - at, _BUFFER - self._filled)
            self._copy(chunk[at : at + count])
            at += count
            if self._filled == _BUFFER:
                self._drain(_BUFFER)

    def end(self) -> None:
        """Write what is left in the buffer: the last, broken block goes through the page cache."""
        whole = self._filled // _BLOCK * _BLOCK
        rest = bytes(self._buffer[whole : self._filled])
        self._drain(whole)
        self._give_up()
        write_all(self._files, self._descriptor, memoryview(rest))
        self._spare.append(self._memory)

    def _copy(self, piece: memoryview) -> None:
        if piece.readonly:  # bytes: small tensors, gathered to 1 MiB or so; or what another source gives
            self._buffer[self._filled : self._filled + piece.nbytes] = piece
        else:
            source = ctypes.addressof(ctypes.c_char.from_buffer(piece))
            ctypes.memmove(self._address + self._filled, source, piece.nbytes)
        self._filled += piece.nbytes

    def _drain(self, size: int) -> None:
        view, self._filled = self._buffer[:size], 0
        while view.nbytes:
            try:
                view = view[self._files.write(self._descriptor, view) :]
            except OSError as error:
                # A disk with larger blocks, or that says only now that it cannot; or the call before stopped amid a
                # block, and this one would begin there. A real failure comes again through the cache.
                if error.errno in _FAILED or not self._direct:
                    raise
                self._give_up()

    def _give_up(self) -> None:
        if self._direct:
            self._files.set_flags(self._descriptor, 0)
            self._direct = False


def past_cache(files: Files, descriptor: int, spare: Spare) -> Direct | None:
    """The way past the page cache for this file; None where there is none."""
    if not _O_DIRECT:
        return None
    try:
        # Not when opening it: where that fails, the file is there all the same.
        files.set_flags(descriptor, _O_DIRECT)
    except OSError:  # EINVAL, as memory file systems answer; mounted drives and sandboxes have answers of their own
        with suppress(OSError):
            files.set_flags(descriptor, 0)
        return None
    return Direct(files, descriptor, spare)


def write_all(files: Files, descriptor: int, view: memoryview) -> None:
    """Write all of it, in however many calls that takes."""
    while view.nbytes:
        view = view[files.write(descriptor, view) :]


# An object is written under a temporary name in its own folder (it starts with a dot, so that no object can have it),
# made durable, and then *linked* to its final name: unlike a rename, a link never replaces anything. Every folder is
# opened from its parent without following links, so nothing inside the folder, however hostile, leads a read or a write
# out of it.


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_TEMPORARY = re.compile(r"\.[A-Za-z0-9_-][A-Za-z0-9._-]*\.[0-9a-f]{16}\.tmp")
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # O_NONBLOCK: opening a pipe would wait for ever
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_LINKS = frozenset(
    {
        errno.EPERM,  # what FAT and some network drives answer to link()
        errno.EACCES,
        errno.EINVAL,
        errno.EMLINK,
        errno.ENOSYS,
        errno.ENOTSUP,
        errno.EOPNOTSUPP,
    }
)


class DirectoryStore(Store):
    """Objects as files below the folder `root`, which is made when the first object is put.

    A root that was there and then is gone (a drive that lost its mount) is never made anew: objects
    would land on another disk than everybody thinks. But with `remade`, for what can be lost (copies of what
    is elsewhere, notes), it is made anew where it was deleted: on the disk that it was on, that is.
    `properties.locks` is True until an attempt to lock shows that the file system cannot. `files` are the system
    calls, for tests.
    """

    def __init__(self, root: str | os.PathLike[str], *, files: Files = OS_FILES, remade: bool = False) -> None:
        self._root = str(Path(root).expanduser().absolute())
        self._files = files
        self._remakes = remade
        self.remade = 0  # how often that was done
        self._locks = True
        self._seen = False
        self._device: int | None = None  # the number of the disk on which the root was seen last
        self._spare: Spare = deque(maxlen=1)

    def as_front(self) -> DirectoryStore:
        """As `colabkeep.stores.base.as_front` says."""
        return DirectoryStore(self._root, files=self._files, remade=True)

    @property
    def url(self) -> str:
        return self._root

    @property
    def properties(self) -> StoreProperties:
        return StoreProperties(top_level="local", locks=self._locks, free_bytes=self._free_bytes(), folder=self._root)

    def put(self, name: str, source: Source) -> Receipt:
        *folders, last = check_name(name).split("/")
        doing = f"write {name!r}"
        with self._folder(folders, doing, make=True) as folder:
            draft = _Draft(self._files, folder, last, self._spare)
            try:
                with explained(self._root, doing):
                    draft.begin(source.size)
                for chunk in source.chunks():
                    with explained(self._root, doing):
                        draft.write(chunk)
                if draft.size != source.size:
                    raise changed(name, source.size, draft.size)
                with explained(self._root, doing):
                    draft.publish()
            except BaseException:
                draft.undo()
                raise
        return Receipt(name=name, size=draft.size, sha256=source.sha256, level="local")

    def get(self, name: str) -> BinaryIO:
        *folders, last = check_name(name).split("/")
        doing = f"read {name!r}"
        with self._folder(folders, doing) as folder, explained(self._root, doing, missing=ObjectNotFound):
            try:
                descriptor = self._files.open(last, _READ, dir_fd=folder)
            except OSError as error:
                if error.errno in {errno.ELOOP, errno.ENXIO}:  # a link, a socket: no object of ours
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), last) from error
                raise
            if stat.S_ISREG(self._files.fstat(descriptor).st_mode):
                return io.BufferedReader(_Reader(descriptor, self._root, doing), buffer_size=2**18)
            self._files.close(descriptor)
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), last)

    def list(self, prefix: str) -> Sequence[Entry]:
        folders = [part for part in check_prefix(prefix).split("/") if part]
        doing = f"list {prefix!r}"
        found: list[Entry] = []
        with suppress(ObjectNotFound), self._folder(folders, doing) as top, explained(self._root, doing):
            for name, _, entry in self._walk(top, prefix):
                if is_name(name):
                    with suppress(FileNotFoundError):  # deleted since the folder was read
                        facts = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(facts.st_mode):
                            found.append(Entry(name=name, size=facts.st_size))
        return found

    def delete(self, name: str) -> None:
        *folders, last = check_name(name).split("/")
        doing = f"delete {name!r}"
        with (
            suppress(ObjectNotFound),
            self._folder(folders, doing) as folder,
            explained(self._root, doing, missing=ObjectNotFound),
        ):
            if stat.S_ISREG(self._files.stat(last, dir_fd=folder, follow_symlinks=False).st_mode):
                self._files.unlink(last, dir_fd=folder)
                # Durable at once: a manifest must not come back after a crash that its blobs do not survive.
                _sync_folder(self._files, folder)

    def lock(self, name: str, holder: str) -> Lock:
        *folders, last = check_name(name).split("/")
        doing = f"lock {name!r}"
        lock = None
        try:
            with self._folder(folders, doing, make=True) as folder, explained(self._root, doing):
                lock = take(self._files, folder, last, holder)
        except BaseException:
            if lock is not None:  # an interrupt came after it was taken: nobody else would let go of it
                lock.release()
            raise
        self._locks = lock is not None
        return NoLock() if lock is None else lock

    def sweep(self, prefix: str) -> int:
        folders = [part for part in check_prefix(prefix).split("/") if part]
        doing = f"tidy up {prefix!r}"
        count = 0
        with suppress(ObjectNotFound), self._folder(folders, doing) as top, explained(self._root, doing):
            for name, folder, entry in self._walk(top, prefix):
                if prefix and run_of(name) != prefix:
                    continue
                if _TEMPORARY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    self._files.unlink(entry.name, dir_fd=folder)
                    count += 1
        return count

    def close(self) -> None:
        """Nothing is held between two calls but a buffer."""
        self._spare.clear()

    def _free_bytes(self) -> int | None:
        path = Path(self._root)
        for place in (path, *path.parents):
            try:
                answer = self._files.statvfs(place)
            except FileNotFoundError:
                continue
            except OSError:
                return None
            return answer.f_bavail * answer.f_frsize
        return None

    @contextmanager
    def _folder(self, folders: Sequence[str], doing: str, *, make: bool = False) -> Iterator[int]:
        """A descriptor of a folder below the root.

        Raises:
            ObjectNotFound: it is not there, and not to be made.
        """
        # Reading where nothing was ever put finds nothing; but a root that was there and is gone has failed.
        gone = StoreUnavailable if make or self._seen else ObjectNotFound
        with explained(self._root, doing, missing=gone):
            if make and not self._seen:
                _make_folders(self._files, Path(self._root))
            root = self._open_root(folders)
        self._seen = True
        with explained(self._root, doing, missing=StoreUnavailable if make else ObjectNotFound):
            folder = _open_below(self._files, root, folders, make=make)
        try:
            yield folder
        finally:
            _close_folder(self._files, folder)

    def _open_root(self, folders: Sequence[str]) -> int:
        seen = self._seen  # before the look: another thread may be making it just now
        try:
            root = self._files.open(self._root, _FOLDER)
        except FileNotFoundError as error:
            if not seen:
                raise
            if not (self._remakes and _is_deleted(self._files, self._root, self._device)):
                raise _gone(self._root) from error
            _make_folders(self._files, Path(self._root))
            self.remade += 1
            root = self._files.open(self._root, _FOLDER)
        try:
            device = self._files.fstat(root).st_dev
            if folders and self._device not in (None, device):
                self._files.stat(folders[0], dir_fd=root, follow_symlinks=False)  # mounted again, it has another number
            if folders or self._device is None:
                self._device = device
        except FileNotFoundError as error:
            _close_folder(self._files, root)
            raise _on_another_disk(self._root) from error
        except BaseException:
            _close_folder(self._files, root)
            raise
        return root

    def _walk(self, folder: int, prefix: str) -> Iterator[tuple[str, int, os.DirEntry[str]]]:
        """Everything below that is no folder: its name, its folder's descriptor (open until the next one), itself."""
        with self._files.scandir(folder) as entries:
            found = list(entries)
        for entry in found:
            name = f"{prefix}/{entry.name}" if prefix else entry.name
            if not entry.is_dir(follow_symlinks=False):
                yield name, folder, entry
            elif is_name(name):
                with suppress(FileNotFoundError, NotADirectoryError):  # removed or replaced since the folder was read
                    below = self._files.open(entry.name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
                    try:
                        yield from self._walk(below, name)
                    finally:
                        _close_folder(self._files, below)


class _Draft:
    """One object on its way: temporary name, bytes, final name. `undo` works at every moment."""

    def __init__(self, files: Files, folder: int, last: str, spare: Spare) -> None:
        self._files = files
        self._folder = folder
        self._spare = spare
        self._last = last
        self._temporary = f".{last[:200]}.{secrets.token_hex(8)}.tmp"
        self._descriptor = -1
        self._direct: Direct | None = None
        self._facts: os.stat_result | None = None
        self._publishing = False
        self.size = 0

    def begin(self, size: int) -> None:
        """Open the temporary file, unless the name is taken: better known before the bytes are written."""
        self._refuse_taken()
        self._descriptor = self._files.open(self._temporary, _NEW, 0o666, dir_fd=self._folder)
        self._facts = self._files.fstat(self._descriptor)
        if size >= LARGE:
            self._direct = past_cache(self._files, self._descriptor, self._spare)

    def write(self, chunk: memoryview) -> None:
        """Take all of the chunk, of which nothing is needed afterwards."""
        view = chunk.cast("B") if chunk.nbytes else chunk
        if self._direct is None:
            write_all(self._files, self._descriptor, view)
        else:
            self._direct.write(view)
        self.size += view.nbytes

    def publish(self) -> None:
        """Make the bytes durable, then the name, then the name durable."""
        files = self._files
        if self._direct is not None:
            self._direct.end()
        files.fsync(self._descriptor)
        descriptor, self._descriptor = self._descriptor, -1
        files.close(descriptor)
        self._publishing = True
        try:
            self._link()
        except FileExistsError:
            self._publishing = False
            raise
        _sync_folder(files, self._folder)

    def _link(self) -> None:
        names = {"src_dir_fd": self._folder, "dst_dir_fd": self._folder}
        try:
            self._files.link(self._temporary, self._last, **names, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # Without links, and with one writer per run, a look before the rename is the best there is.
            self._refuse_taken()
            self._files.rename(self._temporary, self._last, **names)
        else:
            self._files.unlink(self._temporary, dir_fd=self._folder)

    def _refuse_taken(self) -> None:
        with suppress(FileNotFoundError):
            self._files.stat(self._last, dir_fd=self._folder, follow_symlinks=False)
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self._last)

    def undo(self) -> None:
        """Leave nothing of this object, also if the name was given already: what raised was not stored."""
        files = self._files
        if self._descriptor >= 0:
            with suppress(OSError):
                files.close(self._descriptor)
        if self._publishing and self._facts is not None:
            with suppress(OSError):
                named = files.stat(self._last, dir_fd=self._folder, follow_symlinks=False)
                if os.path.samestat(named, self._facts):
                    files.unlink(self._last, dir_fd=self._folder)
        with suppress(OSError):
            files.unlink(self._temporary, dir_fd=self._folder)


class _Reader(io.FileIO):
    """A file whose read errors are store errors: a mounted drive can die in the middle of a file."""

    def __init__(self, descriptor: int, root: str, doing: str) -> None:
        self._root = root
        self._doing = doing
        super().__init__(descriptor, "rb")

    def readinto(self, buffer: Any) -> int:
        with explained(self._root, self._doing):
            return super().readinto(buffer)

    def readall(self) -> bytes:
        with explained(self._root, self._doing):
            return super().readall()

    def read(self, size: int | None = -1) -> bytes:
        with explained(self._root, self._doing):
            return super().read(-1 if size is None else size)


def _open_below(files: Files, folder: int, parts: Sequence[str], *, make: bool) -> int:
    """A descriptor of the folder `parts` below `folder`, which is closed. No link is followed.

    Raises:
        FileNotFoundError: it is not there (a file or link in its place counts so), and not to be made.
        NotADirectoryError: it is to be made, and a file or link is in its place.
    """
    for part in parts:
        try:
            below = _open_one(files, folder, part, make=make)
        except NotADirectoryError:
            if make:
                raise
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), part) from None
        finally:
            _close_folder(files, folder)
        folder = below
    return folder


def _open_one(files: Files, folder: int, part: str, *, make: bool) -> int:
    try:
        return files.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):  # another thread was faster
        files.mkdir(part, dir_fd=folder)
    _sync_folder(files, folder)
    return files.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)


def _make_folders(files: Files, path: Path) -> None:
    """Make the folder and its missing parents, durably."""
    try:
        files.mkdir(path)
    except FileNotFoundError:
        _make_folders(files, path.parent)
        files.mkdir(path)
    except FileExistsError:
        return
    parent = files.open(path.parent, _FOLDER)
    try:
        _sync_folder(files, parent)
    finally:
        _close_folder(files, parent)


def _close_folder(files: Files, folder: int) -> None:
    """Close a folder's descriptor. Nothing was written through it, so a failure loses nothing."""
    with suppress(OSError):
        files.close(folder)


def _sync_folder(files: Files, folder: int) -> None:
    """Make the names in the folder durable, on file systems that know such a thing."""
    try:
        files.fsync(folder)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise


def _is_deleted(files: Files, root: str, device: int | None) -> bool:
    """Of a root that is gone: is its disk, the one of that number, still there?"""
    for place in Path(root).parents:
        with suppress(FileNotFoundError):
            return files.stat(place).st_dev == device
    return False


def _gone(root: str) -> StoreUnavailable:
    return StoreUnavailable(
        problem=f"{root} was there and is gone: it was deleted or renamed, or its disk was unmounted. Nothing can be "
        "saved there until it is back.",
        remedy=f"Rename it back, or mount the disk again. If it is gone for good, create it again (mkdir -p {root}), "
        "and the next save writes everything there: colabkeep does not make it, since it may belong on another disk.",
    )


def _on_another_disk(root: str) -> StoreUnavailable:
    return StoreUnavailable(
        problem=f"{root} is on another disk than before, and nothing of this run is there: a disk was unmounted or "
        "exchanged. Nothing is read or written there.",
        remedy="Mount the disk again, and saving resumes. To use the one that is there now, run this cell again.",
    )


def open_url(url: str) -> DirectoryStore:
    """The directory store of a file:/// URL.

    Raises:
        UsageError: the URL names a host, or a path that does not start at the root.
    """
    parts = urlsplit(url)
    path = os.fsdecode(unquote_to_bytes(parts.path))  # as the folders of this machine are called, in any locale
    if parts.netloc not in {"", "localhost"} or not path.startswith("/"):
        raise UsageError(
            problem=f"{shown(url)} does not name a folder of this machine.",
            remedy="Write the path itself, or file:// followed by the absolute path: file:///content/checkpoints.",
        )
    return DirectoryStore(path)


def open_private(folder: str | os.PathLike[str]) -> DirectoryStore:
    """The store of a folder that colabkeep keeps for itself, which other users of the machine cannot read: copies of
    checkpoints on their way, and the addresses of uploads."""
    root = str(Path(folder).expanduser().absolute())
    return DirectoryStore(root, files=_private_files(root))


def _private_files(root: str) -> Files:
    """The real calls, for what only this user may read: below the folder `root` files are made 0600 and folders 0700,
    whatever the umask says, and folders of ours that are open to others are closed."""

    def open_it(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        descriptor = os.open(path, flags, mode & 0o700, dir_fd=dir_fd)
        if flags & os.O_DIRECTORY and (dir_fd is not None or os.fspath(path) == root):
            _close_to_others(descriptor)
        return descriptor

    def make(path: Any, *, dir_fd: int | None = None) -> None:
        os.mkdir(path, 0o700, dir_fd=dir_fd)

    return Files(open=open_it, mkdir=make)


def _close_to_others(folder: int) -> None:
    facts = os.fstat(folder)
    if facts.st_uid == os.geteuid() and facts.st_mode & 0o077:
        with suppress(OSError):  # a file system without permissions, or one that is read only: it works as it is
            os.fchmod(folder, 0o700)
