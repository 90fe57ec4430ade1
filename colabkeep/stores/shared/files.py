"""The system calls of stores that are folders, in one table, with what their failures mean to a user; how long a
place has said nothing; and small files beside the objects for people to look at.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from colabkeep.core.errors import ColabKeepError, NameTaken, ObjectNotFound, StoreError, StoreFull, StoreUnavailable
from colabkeep.stores.base import check_name

__all__ = [
    "FOLDER",
    "OS_FILES",
    "SECONDS",
    "Files",
    "Silence",
    "close_folder",
    "explained",
    "make_folders",
    "open_below",
    "private_files",
    "sync_folder",
    "watched",
    "write_note",
]

# A test hands in another table and so stands between any two calls (`colabkeep.testing.faults`).


def _getxattr(path: str, name: str) -> bytes:
    """`os.getxattr`, which Python has on Linux only."""
    if sys.platform == "linux":
        return os.getxattr(path, name)
    raise OSError(errno.ENOTSUP, f"no attribute {name} here", path)


def _set_flags(descriptor: int, flags: int) -> None:
    """Set the status flags of an open file."""
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The calls, each with the signature of its namesake in `os` or `fcntl`."""

    open: Callable[..., int] = os.open
    close: Callable[[int], None] = os.close
    write: Callable[[int, Any], int] = os.write
    set_flags: Callable[[int, int], None] = _set_flags
    fsync: Callable[[int], None] = os.fsync
    fstat: Callable[[int], os.stat_result] = os.fstat
    stat: Callable[..., os.stat_result] = os.stat
    statvfs: Callable[..., os.statvfs_result] = os.statvfs
    link: Callable[..., None] = os.link
    rename: Callable[..., None] = os.rename
    unlink: Callable[..., None] = os.unlink
    mkdir: Callable[..., None] = os.mkdir
    scandir: Callable[..., Any] = os.scandir
    ftruncate: Callable[[int, int], None] = os.ftruncate
    pread: Callable[[int, int, int], bytes] = os.pread
    flock: Callable[[int, int], None] = fcntl.flock
    lockf: Callable[[int, int], None] = fcntl.lockf
    getxattr: Callable[[str, str], bytes] = _getxattr


OS_FILES = Files()
"""The real calls."""


def private_files(root: str) -> Files:
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


FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_PASSING = {
    errno.EIO,  # a mounted drive answers so while its network is away
    errno.ESTALE,
    errno.ENOTCONN,  # "transport endpoint is not connected": the mount's own process has died
    errno.ECONNABORTED,
    errno.ECONNRESET,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.ETIMEDOUT,
    errno.EAGAIN,
    errno.EBUSY,
    errno.ENODEV,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
}
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


@contextmanager
def explained(root: str, doing: str, *, missing: type[StoreError] = StoreUnavailable) -> Iterator[None]:
    """Turn an `OSError` of the operating system into the `StoreError` it means.

    `doing` completes "could not …"; `missing` is what it means that a file or folder is not there.
    """
    try:
        yield
    except ColabKeepError:
        raise
    except OSError as error:
        said = os.strerror(error.errno) if error.errno else str(error)
        kind = missing if error.errno == errno.ENOENT else _kind(error)
        problem, remedy = _WORDS[kind]
        raise kind(
            problem=problem.format(root=root, doing=doing, said=said), remedy=remedy.format(root=root)
        ) from error


def _kind(error: OSError) -> type[StoreError]:
    if error.errno in _FULL:
        return StoreFull
    if error.errno in _PASSING:
        return StoreUnavailable
    if error.errno == errno.EEXIST:
        return NameTaken
    return StoreError


_WORDS: Final[Mapping[type[StoreError], tuple[str, str]]] = MappingProxyType(
    {
        StoreFull: (
            "No space is left in {root}: could not {doing} ({said}). What was saved before is untouched.",
            "Free space in {root}, keep fewer checkpoints (keep_last=1), or choose another storage=; "
            "saving goes on as soon as there is room.",
        ),
        StoreUnavailable: (
            "{root} does not answer: could not {doing} ({said}). What was saved before is untouched.",
            "This often passes by itself. If not, look whether {root} still exists and can be listed; "
            "if it is a mounted drive, mount it again.",
        ),
        NameTaken: (
            "Could not {doing} in {root}: the name exists already. Its bytes are untouched.",
            "Names are written once: choose another name, or delete the old object first.",
        ),
        ObjectNotFound: (
            "Could not {doing}: there is no such object in {root}.",
            "Look at what is there with `colabkeep list`, and check that storage= names the right place.",
        ),
        StoreError: (
            "Could not {doing} in {root}: {said}.",
            "Check that {root} is an ordinary folder that you may write to, with no links in it (they are not "
            "followed, since they can lead out of it), or choose another storage=.",
        ),
    }
)


def open_below(files: Files, folder: int, parts: Sequence[str], *, make: bool) -> int:
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
            close_folder(files, folder)
        folder = below
    return folder


def _open_one(files: Files, folder: int, part: str, *, make: bool) -> int:
    try:
        return files.open(part, FOLDER | os.O_NOFOLLOW, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):  # another thread was faster
        files.mkdir(part, dir_fd=folder)
    sync_folder(files, folder)
    return files.open(part, FOLDER | os.O_NOFOLLOW, dir_fd=folder)


def make_folders(files: Files, path: Path) -> None:
    """Make the folder and its missing parents, durably."""
    try:
        files.mkdir(path)
    except FileNotFoundError:
        make_folders(files, path.parent)
        files.mkdir(path)
    except FileExistsError:
        return
    parent = files.open(path.parent, FOLDER)
    try:
        sync_folder(files, parent)
    finally:
        close_folder(files, parent)


def close_folder(files: Files, folder: int) -> None:
    """Close a folder's descriptor. Nothing was written through it, so a failure loses nothing."""
    with suppress(OSError):
        files.close(folder)


def sync_folder(files: Files, folder: int) -> None:
    """Make the names in the folder durable, on file systems that know such a thing."""
    try:
        files.fsync(folder)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise


SECONDS = 20.0
"""After so long it is told. Whoever trains hears of it within half a minute: it is looked for once a second."""


class Silence:
    """Asked by any thread, from any number of them. `monotonic` is the time in seconds."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._asked: dict[int, float] = {}  # thread → since when it asks
        self._heard = -math.inf  # when anything came back last
        self._given_up = False  # did somebody stop asking who had heard nothing for so long?

    @property
    def lasts(self) -> bool:
        """Is somebody asking, and has heard nothing for long? Or was, and nothing has come since?"""
        return self._given_up or any(map(self._is_long, list(self._asked.values())))

    @contextmanager
    def asking(self) -> Iterator[None]:
        """While this thread asks, all its attempts and the pauses between them included."""
        me = threading.get_ident()
        if me in self._asked:
            yield
            return
        self._asked[me] = since = self._monotonic()
        try:
            yield
        finally:
            self._given_up |= self._is_long(since)  # first: the silence is not over when nobody asks any more
            del self._asked[me]

    def heard(self) -> None:
        """Something came back, or went there."""
        self._heard = self._monotonic()
        self._given_up = False

    def _is_long(self, since: float) -> bool:
        return self._monotonic() - max(since, self._heard) > SECONDS


def watched(files: Files, silence: Silence) -> Files:
    """The same system calls; one that does not come back is a silence, one that fails is none."""

    def call(real: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        with silence.asking():
            try:
                return real(*args, **options)
            finally:
                silence.heard()

    return Files(**{one.name: partial(call, getattr(files, one.name)) for one in fields(files)})


# Objects are written once, notes again and again, so they lie outside of every run: in the store's folder itself, where
# no run's files are listed, copied behind, swept or verified.


_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


def write_note(folder: str, name: str, data: bytes) -> None:
    """Write `folder`/`name`, or replace it: who reads it sees the old bytes or the new ones, never a part.

    Not made durable: after a power cut it may be the one before. One process writes a note at a time; a killed one
    leaves a file with a dot in front, which the next one uses.

    Raises:
        UsageError: `name` is no single legal name.
        StoreError: it cannot be written; the old bytes stand.
    """
    target = Path(folder) / check_name(name).replace("/", "_")
    draft = target.with_name(f".{target.name}.new")
    with explained(folder, f"write {name!r}"):
        try:
            descriptor = os.open(draft, _NEW, 0o666)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            draft.replace(target)
        except BaseException:
            with suppress(OSError):
                draft.unlink()
            raise
