"""A lock that the operating system lets go the moment its process dies, children or not.

Two kinds of lock are needed, because each has the other's flaw:

* A POSIX record lock (`lockf`) belongs to the *process*. A forked child (a loader's worker that outlives its
  killed parent) does not have it, so it is free at once. But it never refuses its own process, and closing
  *any* descriptor of the file in the process drops it.
* A BSD lock (`flock`) belongs to the *open file*. It refuses a second holder in the same process, but
  forked children share it and would keep it.

So `.<name>.<pid>.holder` is flocked first: it settles the matter inside this process, and no other process ever
asks for it, for the number is part of the name. Only then is `.<name>.lock` opened and record-locked: it
settles the matter between processes.

Invariant: within one process only the one who has the holder file opens the lock file, so there is no other
descriptor whose closing could drop the lock. (A program that copies the hidden lock file from the very process
that holds it breaks this; the fencing number of a run is the second line of defence.)

A process that is killed leaves its holder file behind. It is removed, under its own flock, by the next
one who gets the lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Callable
from contextlib import suppress

from colabkeep.core.errors import StoreBusy, StoreUnavailable
from colabkeep.stores.base import Lock
from colabkeep.stores.shared.files import Files

_NEW = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_OLD = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_HELD = {errno.EAGAIN, errno.EACCES}
_CANNOT_LOCK = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
_TEXT_BYTES = 4096


class FileLock(Lock):
    """A held lock: three descriptors that live as long as it is held."""

    def __init__(self, files: Files, *, folder: int, mark: int, lock: int, last: str) -> None:
        self._files = files
        self._folder = folder
        self._mark = mark
        self._lock = lock
        self._last = last
        self._pid = os.getpid()
        self._held = True

    def release(self) -> None:
        """Let go. In a forked child, which never had the lock, it only closes the copies."""
        if not self._held:
            return
        self._held = False
        files = self._files
        try:
            if os.getpid() == self._pid:
                # The lock file first: whoever gets the holder file may open the lock file, and no
                # descriptor of ours may be closed after that.
                with suppress(OSError):
                    files.ftruncate(self._lock, 0)
                files.close(self._lock)
                # Only the flock counts, not whether the file exists: a holder file that cannot be removed is
                # removed by the next holder.
                with suppress(OSError):
                    files.unlink(_mark_name(self._last, self._pid), dir_fd=self._folder)
                files.flock(self._mark, fcntl.LOCK_UN)  # children share the open file: closing is not enough
            else:
                files.close(self._lock)
        finally:
            files.close(self._mark)
            files.close(self._folder)


class _CannotLock(Exception):
    """The file system knows no such lock."""


def take(files: Files, folder: int, last: str, holder: str) -> FileLock | None:
    """Lock `last` in the folder; None where the file system knows no locks.

    Raises:
        StoreBusy: a live process, perhaps this one, holds it.
        OSError: anything else.
    """
    text = holder.encode()[:_TEXT_BYTES]
    try:
        mark = _take_mark(files, folder, last)
        try:
            _write_text(files, mark, text)
            return _take_lock(files, folder, last, mark, text)
        except BaseException:
            with suppress(OSError):
                files.unlink(_mark_name(last, os.getpid()), dir_fd=folder)
            files.close(mark)
            raise
    except _CannotLock:
        return None


def _mark_name(last: str, pid: int) -> str:
    return f".{last}.{pid}.holder"


def _take_mark(files: Files, folder: int, last: str) -> int:
    """Open and flock this process's holder file."""
    name = _mark_name(last, os.getpid())
    for _ in range(100):  # each further round means that somebody removed the file in just this moment
        mark = files.open(name, _NEW, 0o666, dir_fd=folder)
        try:
            if not _locked(files.flock, mark):
                raise _busy(last, _read_text(files, mark), "this very process")
            if _is_named(files, folder, name, mark):
                return mark
        except _CannotLock:
            with suppress(OSError):
                files.unlink(name, dir_fd=folder)
            files.close(mark)
            raise
        except BaseException:
            files.close(mark)
            raise
        files.close(mark)
    raise StoreUnavailable(
        problem=f"The lock {last!r} could not be taken: its file {name} vanishes again and again.",
        remedy="Run the cell again; if it stays so, choose a storage= on another disk.",
    )


def _take_lock(files: Files, folder: int, last: str, mark: int, text: bytes) -> FileLock:
    """Open and record-lock the lock file. Called only by the one who has the holder file."""
    lock = files.open(f".{last}.lock", _NEW, 0o666, dir_fd=folder)
    try:
        if not _locked(files.lockf, lock):
            raise _busy(last, _read_text(files, lock), "another process")
        _write_text(files, lock, text)
        _remove_old_marks(files, folder, last)
        kept = files.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    except BaseException:
        files.close(lock)
        raise
    return FileLock(files, folder=kept, mark=mark, lock=lock, last=last)


def _remove_old_marks(files: Files, folder: int, last: str) -> None:
    """Remove the holder files of dead processes: those whose flock is to be had."""
    pattern = re.compile(rf"\.{re.escape(last)}\.\d+\.holder")
    mine = _mark_name(last, os.getpid())
    with files.scandir(folder) as entries:
        names = [entry.name for entry in entries if pattern.fullmatch(entry.name) and entry.name != mine]
    for name in names:
        # Tidying only: a mark that cannot be opened or removed harms nobody.
        with suppress(OSError, _CannotLock):
            mark = files.open(name, _OLD, dir_fd=folder)
            try:
                if _locked(files.flock, mark) and _is_named(files, folder, name, mark):
                    files.unlink(name, dir_fd=folder)
            finally:
                files.close(mark)


def _is_named(files: Files, folder: int, name: str, descriptor: int) -> bool:
    try:
        named = files.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(named, files.fstat(descriptor))


def _locked(lock: Callable[[int, int], None], descriptor: int) -> bool:
    try:
        lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            return False
        if error.errno in _CANNOT_LOCK:
            raise _CannotLock from error
        raise
    return True


def _write_text(files: Files, descriptor: int, text: bytes) -> None:
    # A full disk must not stop a training that could free it by pruning: the lock holds without its text.
    with suppress(OSError):
        files.ftruncate(descriptor, 0)
        files.write(descriptor, text)


def _read_text(files: Files, descriptor: int) -> str:
    try:
        return files.pread(descriptor, _TEXT_BYTES, 0).decode(errors="replace").strip("\0\n ")
    except OSError:
        return ""


def _busy(last: str, holder: str, who: str) -> StoreBusy:
    return StoreBusy(
        problem=f"{last!r} is held by {who}" + (f": {holder}" if holder else "."),
        remedy="Let that one finish, or stop it; the lock is free the moment its process ends.",
        holder=holder,
    )
