"""Whether Google Drive is mounted on this machine, where, and whether it answers. Asks nobody but the kernel."""

from __future__ import annotations

import errno
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from stat import S_ISDIR

from colabkeep.vocabulary.environment import Environment

__all__ = ["DRIVE_POINT", "Drive", "find_drive", "is_only_a_folder"]

DRIVE_POINT = "/content/drive"
"""Where everybody mounts it, and where it is mounted here if it is not yet."""

_TYPE = "fuse.drive"  # in the mount table; drive.py of googlecolab/colabtools looks for it as well (2026-04)
_SPELLINGS = ("MyDrive", "My Drive")  # both exist; the one without a blank is preferred
_PATIENCE = 2.0  # seconds; a look at a mount whose program hangs would never come back
_GONE = (errno.ENOTCONN, errno.ECONNABORTED, errno.ESHUTDOWN)
_OCTAL = re.compile(r"\\([0-7]{3})")  # how the mount table writes blanks


@dataclass(frozen=True, slots=True, kw_only=True)
class Drive:
    """A mounted Drive. `folder`: the user's own files on it; None when `trouble` says why they cannot be seen.
    `listed`: the mount table says that it is a Drive (False: it only looks like one)."""

    point: str
    folder: str | None
    trouble: OSError | None
    listed: bool

    @property
    def gone(self) -> bool:
        """Has the program behind the mount ended ("transport endpoint is not connected")? Then mounting again
        cannot kill an upload: there is none."""
        return self.trouble is not None and self.trouble.errno in _GONE

    @property
    def empty(self) -> bool:
        """Does its program answer that the user's folder is not there, as it does until it has read that folder?"""
        return self.trouble is not None and self.trouble.errno == errno.ENOENT


def find_drive(environment: Environment) -> Drive | None:
    """The mounted Drive; None if there is none. Of several, a healthy one, else one whose program may still live."""
    table = _mount_table(environment)
    points = dict.fromkeys(point for point, kind in reversed(table) if kind == _TYPE)
    if points:
        drives = [_visit(environment, point, listed=True) for point in points]
        # One that hangs before one that is gone: only the former can still hold uploads.
        return min(drives, key=lambda drive: (drive.folder is None, drive.gone))
    # A table that cannot be read, or that calls the type something else one day, must not hide a Drive that is there.
    if not table or any(point == DRIVE_POINT for point, _ in table):
        drive = _visit(environment, DRIVE_POINT, listed=False)
        return drive if drive.folder is not None else None
    return None


def is_only_a_folder(environment: Environment) -> bool:
    """Is there a folder called MyDrive on this machine's own disk, made by a program that wrote to a Drive which
    was not mounted? Asked where `find_drive` found none."""
    return environment.is_dir(f"{DRIVE_POINT}/{_SPELLINGS[0]}")


def _mount_table(environment: Environment) -> list[tuple[str, str]]:
    """Mount points and types, in the order of mounting."""
    lines = (line.split() for line in environment.text("/proc/mounts").splitlines())
    return [(_OCTAL.sub(lambda code: chr(int(code[1], 8)), words[1]), words[2]) for words in lines if len(words) > 2]


def _visit(environment: Environment, point: str, *, listed: bool) -> Drive:
    trouble: OSError | None = None
    for spelling in _SPELLINGS:
        folder = f"{point}/{spelling}"
        trouble = _look(environment.path(folder))
        if trouble is None:
            return Drive(point=point, folder=folder, trouble=None, listed=listed)
        if trouble.errno != errno.ENOENT:
            break
    return Drive(point=point, folder=None, trouble=trouble, listed=listed)


def _look(folder: Path) -> OSError | None:
    """What is wrong with a folder, found out on a thread that may hang for ever."""
    seen: SimpleQueue[OSError | None] = SimpleQueue()
    threading.Thread(target=lambda: seen.put(_stat(folder)), daemon=True, name="colabkeep-look").start()
    try:
        return seen.get(timeout=_PATIENCE)
    except Empty:
        return TimeoutError(errno.ETIMEDOUT, f"no answer within {_PATIENCE:g} seconds", str(folder))


def _stat(folder: Path) -> OSError | None:
    try:
        is_folder = S_ISDIR(folder.stat().st_mode)
    except OSError as error:
        return error
    return None if is_folder else NotADirectoryError(errno.ENOTDIR, "not a folder", str(folder))
