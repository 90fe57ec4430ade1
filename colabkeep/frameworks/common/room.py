"""How much memory this machine has to give, and where its disk can stand in for it.

Linux tells; of other systems nothing is known, and they swap.
"""

from __future__ import annotations

import mmap
import os
import re
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from colabkeep.frameworks.common.containers import container_limits
from colabkeep.vocabulary.environment import Environment

__all__ = ["MappedFile", "MemoryRoom", "mapped_file", "memory_room"]

_FOLDERS = ("/var/tmp", "/tmp")  # noqa: S108  # files without a name are made there; the first is kept off memory
_ELSEWHERE = ("tmpfs", "ramfs", "nfs", "cifs", "smb", "fuse")  # beginnings of kinds: in memory, or behind a network
_LEFT_FREE = 2  # times the file: the checkpoints that are made of it go to a disk too, mostly to this one
_ALIGNED = 64  # bytes, as torch aligns what it allocates


class MemoryRoom(NamedTuple):
    """Bytes: what can be taken without swapping, what there is in all, and what can be swapped out."""

    available: int
    total: int
    swap: int


def memory_room(environment: Environment) -> MemoryRoom | None:
    """What the machine has to give now, or the narrowest of its containers if that has less; None if nobody tells.

    Pages that nobody has touched yet are not missing in these figures.
    """
    told = re.findall(r"^(\w+): +([0-9]{1,15}) kB$", environment.text("/proc/meminfo"), re.MULTILINE)
    facts = {name: int(kilobytes) * 1024 for name, kilobytes in told}
    if not {"MemAvailable", "MemTotal"} <= facts.keys():
        return None
    room = MemoryRoom(facts["MemAvailable"], facts["MemTotal"], facts.get("SwapFree", 0))
    machine = room.total  # a group without a limit tells more than that
    for limit, used in container_limits(environment):
        if limit < machine:
            room = MemoryRoom(min(room.available, max(0, limit - used)), min(room.total, limit), 0)
    return room


class MappedFile:
    """Memory whose pages the kernel can write out to a file: one without a name, gone with the process.

    What is taken of it keeps it alive; when all of that is gone, so is the file.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._untouched: mmap.mmap | None = memory  # until something is taken of it
        self._memory = weakref.ref(memory)
        self._taken = 0

    @property
    def left(self) -> int:
        """Bytes that can be taken still."""
        memory = self._memory()
        return 0 if memory is None else len(memory) - _aligned(self._taken)

    def take(self, size: int) -> memoryview | None:
        """The next `size` bytes, aligned; None if it has not so many."""
        memory, start = self._memory(), _aligned(self._taken)
        if memory is None or start + size > len(memory):
            return None
        self._taken, self._untouched = start + size, None
        return memoryview(memory)[start : self._taken]

    @staticmethod
    def size_for(sizes: Iterator[int]) -> int:
        """How large it must be for parts of these sizes, in bytes."""
        return sum(map(_aligned, sizes))


def mapped_file(environment: Environment, size: int) -> MappedFile | None:
    """`size` bytes in a file on this machine's own disk; None where there is no room for it and for checkpoints."""
    for folder in _FOLDERS:
        place = environment.path(folder)
        if _kind(environment, place).startswith(_ELSEWHERE):
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


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _kind(environment: Environment, place: Path) -> str:
    """The kind of file system that `place` lies on, wherever links lead; "" if nobody tells."""
    root, real = os.path.realpath(environment.root), os.path.realpath(place)
    folder = "/" + os.path.relpath(real, root) if Path(real).is_relative_to(root) else real
    found = ("", "")
    for line in environment.text("/proc/mounts").splitlines():
        fields = line.split()
        if len(fields) > 2 and f"{folder}/".startswith(f"{fields[1].rstrip('/')}/") and len(fields[1]) >= len(found[0]):
            found = fields[1], fields[2]
    return found[1]
