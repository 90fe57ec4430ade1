"""How much memory this machine has to give, and where its disk can stand in for it.

Linux tells; of other systems nothing is known, and they swap.
"""

from __future__ import annotations

import mmap
import os
import re
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

from colabkeep.vocabulary.environment import Environment

__all__ = ["MappedFile", "Room", "mapped_file", "memory_room"]

_FOLDERS = ("/var/tmp", "/tmp")  # noqa: S108  # files without a name are made there; the first is kept off memory
_ELSEWHERE = ("tmpfs", "ramfs", "nfs", "cifs", "smb", "fuse")  # beginnings of kinds: in memory, or behind a network
_LEFT_FREE = 2  # times the file: the checkpoints that are made of it go to a disk too, mostly to this one
_ALIGNED = 64  # bytes, as torch aligns what it allocates


class Room(NamedTuple):
    """Bytes: what can be taken without swapping, what there is in all, and what can be swapped out."""

    available: int
    total: int
    swap: int


def memory_room(environment: Environment) -> Room | None:
    """What the machine has to give now, or its container if that has less; None if nobody tells.

    Pages that nobody has touched yet are not missing in these figures.
    """
    told = re.findall(r"^(\w+): +([0-9]{1,15}) kB$", environment.text("/proc/meminfo"), re.MULTILINE)
    facts = {name: int(kilobytes) * 1024 for name, kilobytes in told}
    if not {"MemAvailable", "MemTotal"} <= facts.keys():
        return None
    room = Room(facts["MemAvailable"], facts["MemTotal"], facts.get("SwapFree", 0))
    for limit, used in _limits(environment):
        if limit < room.total:
            room = Room(min(room.available, max(0, limit - used)), limit, 0)
    return room


def _limits(environment: Environment) -> Iterator[tuple[int, int]]:
    """Of a container, whose own group is mounted there: its limit, and what it uses but for files that can be
    dropped. Both versions of cgroups."""
    for folder, limit, usage, droppable in (
        ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        most, used = (environment.text(f"{folder}/{name}", 64).strip() for name in (limit, usage))
        if most.isdecimal() and used.isdecimal():
            files = re.search(
                rf"^{droppable} ([0-9]{{1,18}})$", environment.text(f"{folder}/memory.stat"), re.MULTILINE
            )
            yield int(most), int(used) - (int(files[1]) if files else 0)


class MappedFile:
    """Memory whose pages the kernel can write out to a file: one without a name, gone with the process.

    What is taken of it keeps it alive.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._taken = 0

    def take(self, size: int) -> memoryview | None:
        """The next `size` bytes, aligned; None if it has not so many."""
        start = -(-self._taken // _ALIGNED) * _ALIGNED
        if start + size > len(self._memory):
            return None
        self._taken = start + size
        return memoryview(self._memory)[start : self._taken]

    @staticmethod
    def size_for(sizes: Iterator[int]) -> int:
        """How large it must be for parts of these sizes, in bytes."""
        return sum(-(-size // _ALIGNED) * _ALIGNED for size in sizes)


def mapped_file(environment: Environment, size: int) -> MappedFile | None:
    """`size` bytes in a file on this machine's own disk; None where there is no room for it and for checkpoints."""
    for folder in _FOLDERS:
        place = environment.path(folder)
        if _kind(environment, folder).startswith(_ELSEWHERE):
            continue
        try:
            space = os.statvfs(place)
            if space.f_bavail * space.f_frsize < (1 + _LEFT_FREE) * size:
                continue
            with tempfile.TemporaryFile(dir=place) as file:
                # All of it at once: a page that finds the disk full later would end the process (SIGBUS).
                os.posix_fallocate(file.fileno(), 0, size)
                return MappedFile(mmap.mmap(file.fileno(), size))
        except OSError:  # not there, not ours to write to, or filled by somebody else meanwhile: the next folder
            continue
    return None


def _kind(environment: Environment, folder: str) -> str:
    """The kind of file system that `folder` lies on; "" if nobody tells."""
    found = ("", "")
    for line in environment.text("/proc/mounts").splitlines():
        fields = line.split()
        if len(fields) > 2 and f"{folder}/".startswith(f"{fields[1].rstrip('/')}/") and len(fields[1]) >= len(found[0]):
            found = fields[1], fields[2]
    return found[1]
