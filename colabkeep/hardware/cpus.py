"""The processors that training may use, and how many loader workers they feed."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator

from colabkeep.core.system import Environment

_MOST_WORKERS = 4  # more seldom helps on the two to four processors of a free machine
_ROOM_OF_WORKER = 128 * 2**20  # bytes; a worker keeps two batches in there, and 64 photographs of 224² are 37 MiB
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def usable_cpus(environment: Environment) -> int:
    """How many processors this process may keep busy: those it may run on (its affinity), or fewer where its
    container is given less time than that (a cgroup quota, rounded up). At least 1.

    torch's own warning about too many workers looks at the affinity only.
    """
    return max(1, min([_affinity(environment), *map(math.ceil, _quotas(environment))]))


def advised_workers(environment: Environment) -> int:
    """How many loader workers training should have, for samples that are read or decoded. (Tensors that are in memory
    already are best served by none.) 0 where there is no room for what workers hand over: they would die of a "bus
    error"."""
    room = _shared_memory(environment)
    most = _MOST_WORKERS if room is None else min(_MOST_WORKERS, room // _ROOM_OF_WORKER)
    return min(usable_cpus(environment), most)


def _shared_memory(environment: Environment) -> int | None:
    """How many bytes /dev/shm may grow to; None if it is not there, or not told. Loader workers hand their batches
    over in it. A Docker container has 64 MiB unless told otherwise."""
    found = None
    for line in environment.text("/proc/mounts").splitlines():
        fields = line.split()
        if len(fields) > 3 and fields[1] == "/dev/shm":  # noqa: S108  nothing is written
            found = fields[3]  # a later mount hides an earlier one
    if found is None:
        return None
    size = re.search(r"(?:^|,)size=([0-9]{1,15})([kmg]?)(?:,|$)", found)
    if size:
        return int(size[1]) * _UNITS[size[2]]
    total = re.search(r"^MemTotal: +([0-9]{1,15}) kB$", environment.text("/proc/meminfo"), re.MULTILINE)
    return int(total[1]) * 1024 // 2 if total else None  # tmpfs takes half of the memory if nothing is said


def _affinity(environment: Environment) -> int:
    listed = re.search(r"^Cpus_allowed_list:\s*([0-9,-]+)$", environment.text("/proc/self/status"), re.MULTILINE)
    if listed:
        return sum(_length(part) for part in listed[1].split(","))
    # A sandbox whose /proc does not say it, or another system.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _length(part: str) -> int:
    first, _, last = part.partition("-")
    return int(last) - int(first) + 1 if last else 1


def _quotas(environment: Environment) -> Iterator[float]:
    """Processors' worth of time granted to the container, whose own group is mounted at the top, in both versions of
    cgroups."""
    for folder in ("/sys/fs/cgroup", "/sys/fs/cgroup/cpu"):
        quota, _, period = environment.text(f"{folder}/cpu.max", 64).partition(" ")
        yield from _share(quota, period)
        yield from _share(*(environment.text(f"{folder}/cpu.cfs_{name}_us", 64) for name in ("quota", "period")))


def _share(quota: str, period: str) -> Iterator[float]:
    """Quota over period, both in microseconds; nothing where there is no limit ("max", -1) or no sense."""
    if quota.strip().isdecimal() and period.strip().isdecimal() and int(period) > 0:
        yield int(quota) / int(period)
