"""The shared memory that Paddle's loader workers leave behind when they are killed.

A worker hands each array over in a file of /dev/shm named `paddle_<its pid>_<number>`, and whoever reads it last
removes it (Paddle, mmap_allocator.cc). After a SIGKILL nobody does, until the machine restarts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["free_segments"]

_FOLDER = Path("/dev/shm")  # noqa: S108 - where Linux keeps it; other systems have no such workers
_NAME = re.compile(r"paddle_(\d{1,9})_[0-9_]+")
_BLOCK = 512  # bytes, whatever the file system's own


def free_segments(folder: Path = _FOLDER, owner: int | None = None) -> int:
    """Remove the segments of dead processes of this user (or of `owner`, a user id). Gives the bytes freed.

    A living process is never robbed: names are listed before anyone is asked for life, so a name belongs to the
    process seen dead after it, not to a later one with the same pid, whose names end in other numbers. A pid that is
    taken again keeps the old segments until it is free. Whoever has a segment mapped keeps its memory.
    """
    mine = os.getuid() if owner is None and hasattr(os, "getuid") else owner
    return sum(_remove(path) for path, pid in list(_segments(folder, mine)) if not _alive(pid))


def _segments(folder: Path, owner: int | None) -> Iterator[tuple[Path, int]]:
    if not folder.is_dir():
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            match = _NAME.fullmatch(entry.name)
            if match and entry.is_file(follow_symlinks=False) and _owner(entry) == owner:
                yield Path(entry.path), int(match[1])


def _owner(entry: os.DirEntry[str]) -> int | None:
    try:
        return entry.stat(follow_symlinks=False).st_uid
    except FileNotFoundError:  # read and removed in the meantime
        return None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _zombie(pid)


def _zombie(pid: int) -> bool:
    """Has it ended, and nobody asked for its exit status? Containers often lack the init process that would."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] == "Z"


def _remove(path: Path) -> int:
    try:
        size = path.stat().st_blocks * _BLOCK
        path.unlink()
    except FileNotFoundError:
        return 0
    return size
