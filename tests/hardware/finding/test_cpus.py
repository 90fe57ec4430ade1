"""Processors are counted as the container grants them."""

from __future__ import annotations

import os

import pytest

from colabkeep.core.system import Environment
from colabkeep.hardware.cpus import advised_workers, usable_cpus
from tests.fakes.devices import machine


def write(root, files):
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return machine(root)


def cpus(root, allowed, **files):
    files = {"/proc/self/status": f"Name:\tpython\nCpus_allowed_list:\t{allowed}\nMems_allowed:\t1\n", **files}
    return usable_cpus(write(root, files))


@pytest.mark.parametrize(("allowed", "number"), [("0-1", 2), ("0", 1), ("0-3,8,10-11", 7)])
def test_only_processors_it_may_run_on_count(tmp_path, allowed, number):
    """The affinity of the process, not what the machine has."""
    assert cpus(tmp_path, allowed) == number


@pytest.mark.parametrize(
    ("files", "number"),
    [
        ({"/sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),
        ({"/sys/fs/cgroup/cpu.max": "150000 100000\n"}, 2),  # one and a half keep two workers busy
        ({"/sys/fs/cgroup/cpu.max": "10000 100000\n"}, 1),
        ({"/sys/fs/cgroup/cpu.max": "1000000 100000\n"}, 8),
        ({"/sys/fs/cgroup/cpu.max": "max 100000\n"}, 8),
        ({"/sys/fs/cgroup/cpu.max": "nonsense"}, 8),
        ({"/sys/fs/cgroup/cpu.max": "200000 0\n"}, 8),
        ({"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "250000\n", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, 8),
    ],
)
def test_a_containers_quota_counts(tmp_path, files, number):
    """Both versions of cgroups, rounded up, no limit and nonsense are none."""
    assert cpus(tmp_path, "0-7", **files) == number


def test_a_sandbox_that_tells_nothing_is_asked_otherwise(tmp_path):
    """Without /proc the system call tells."""
    assert usable_cpus(machine(tmp_path)) == len(os.sched_getaffinity(0))


def test_the_real_machine_is_counted():
    """On the machine this test runs on: at least one, at most what the process may run on."""
    assert 1 <= usable_cpus(Environment.here()) <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("allowed", "workers"), [("0-1", 2), ("0-3", 4), ("0-15", 4), ("0", 1)])
def test_workers_fit_the_processors(tmp_path, allowed, workers):
    """Two on Colab, one for a single processor, never more than four."""
    cpus(tmp_path, allowed)
    assert advised_workers(machine(tmp_path)) == workers


@pytest.mark.parametrize(
    ("mounts", "workers"),
    [
        ("shm /dev/shm tmpfs rw,nosuid,nodev,noexec,relatime,size=65536k 0 0\n", 0),  # Docker's own size
        ("tmpfs /dev/shm tmpfs rw,size=262144k 0 0\n", 2),
        ("tmpfs /dev/shm tmpfs rw,size=2g 0 0\n", 4),
        ("tmpfs /dev/shm tmpfs rw,size=1048576 0 0\n", 0),
        ("tmpfs /dev/shm tmpfs rw,nosuid,nodev 0 0\n", 3),  # half of the memory
        ("tmpfs /dev/shm tmpfs rw,size=2g 0 0\nshm /dev/shm tmpfs rw,size=64m 0 0\n", 0),
        (f"tmpfs /dev/shm tmpfs rw,size={'9' * 5000} 0 0\n", 3),
        ("tmpfs /run/shm tmpfs rw,size=2m 0 0\nshort\n", 4),
        ("", 4),
    ],
)
def test_workers_fit_the_shared_memory(tmp_path, mounts, workers):
    """They hand their batches over in /dev/shm, and die where it is too small for that: then none is advised."""
    meminfo = f"MemTotal:       {768 << 10} kB\nMemFree: 1 kB\n"
    cpus(tmp_path, "0-7", **{"/proc/mounts": mounts, "/proc/meminfo": meminfo})
    assert advised_workers(machine(tmp_path)) == workers
