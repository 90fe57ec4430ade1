"""Which files a process of this machine has open for writing, as Linux tells it."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator

__all__ = ["open_for_writing"]

_PROC = "/proc"


def open_for_writing(files: Collection[tuple[int, int]], proc: str = _PROC) -> dict[tuple[int, int], int]:
    """Those of `files` (device, inode) that some process can write to now, each with the process's number.

    Processes of other users cannot be looked into, and are not seen. Empty where the system has no /proc (macOS):
    nothing is known there.
    """
    found: dict[tuple[int, int], int] = {}
    for process in _numbers(proc):
        for descriptor in _numbers(f"{proc}/{process}/fd"):
            try:
                facts = os.stat(f"{proc}/{process}/fd/{descriptor}")
                place = facts.st_dev, facts.st_ino
                if place in files and _may_write(f"{proc}/{process}/fdinfo/{descriptor}"):
                    found.setdefault(place, process)
            except OSError:  # closed, or gone, meanwhile
                continue
    return found


def _numbers(folder: str) -> Iterator[int]:
    try:
        with os.scandir(folder) as entries:
            yield from sorted(int(entry.name) for entry in entries if entry.name.isdigit())
    except OSError:  # another user's process, one that has ended, or a system without /proc
        return


def _may_write(info: str) -> bool:
    with open(info, encoding="ascii") as lines:
        for line in lines:
            if line.startswith("flags:"):
                return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return False
