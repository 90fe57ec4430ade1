"""What memory the containers that this process runs in may take: a notebook's image, a batch job, a service of systemd.

Linux limits them by control groups, which lie in each other; the narrowest counts. Source: kernel.org,
"Control Group v2" and "Memory Resource Controller" (version 1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

from colabkeep.vocabulary.environment import Environment

__all__ = ["container_limits"]


class _Version(NamedTuple):
    """Where a version of control groups keeps its figures, and what they are called."""

    folder: str
    controller: str  # as /proc/self/cgroup names it
    limit: str
    usage: str
    cached: tuple[str, ...]
    unwritten: tuple[str, ...]


_VERSIONS = (
    _Version(
        "/sys/fs/cgroup",
        "",
        "memory.max",
        "memory.current",
        ("active_file", "inactive_file"),
        ("file_dirty", "file_writeback"),
    ),
    _Version(
        "/sys/fs/cgroup/memory",
        "memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_active_file", "total_inactive_file"),
        ("total_dirty", "total_writeback"),
    ),
)


def container_limits(environment: Environment) -> Iterator[tuple[int, int]]:
    """Of each group that has a limit: this, and what it uses but for files that the kernel can drop at once."""
    for version in _VERSIONS:
        for folder in _groups(environment, version):
            most, used = (environment.text(f"{folder}/{name}", 64).strip() for name in (version.limit, version.usage))
            if most.isdecimal() and used.isdecimal():
                yield int(most), int(used) - _droppable(environment.text(f"{folder}/memory.stat"), version)


def _groups(environment: Environment, version: _Version) -> Iterator[str]:
    """The folders of our own group and of those around it, as far as they are mounted; the outermost always."""
    own = PurePosixPath("/")
    for line in environment.text("/proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if version.controller in controllers.split(",") and ".." not in PurePosixPath(path).parts:
            own = PurePosixPath("/", path)
    for group in (own, *own.parents):
        yield f"{version.folder}{group}".rstrip("/")


def _droppable(stat: str, version: _Version) -> int:
    """Bytes of cached files, read once or often, but for what must be written first."""
    told = {name: int(size) for name, size in re.findall(r"^(\w+) ([0-9]{1,18})$", stat, re.MULTILINE)}
    cached, unwritten = (sum(told.get(name, 0) for name in names) for names in (version.cached, version.unwritten))
    return max(0, cached - unwritten)
