"""How much memory there is to give, and the file that stands in for it."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from colabkeep.core.system import Environment
from colabkeep.frameworks.shared.host_memory import FreeMemory, free_memory, mapped_file

MB = 2**20
MEMINFO = "MemTotal:    12000 kB\nMemFree:   1 kB\nMemAvailable:    9000 kB\nSwapFree:   500 kB\n"


class Machine:
    """A machine of files below a folder."""

    def __init__(self, root: Path) -> None:
        self.environment = Environment(environ={}, root=root, folder=root)
        self.write("/proc/mounts", "overlay / overlay rw 0 0\n")

    def write(self, path: str, text: str) -> None:
        place = self.environment.path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def room(self) -> FreeMemory | None:
        return free_memory(self.environment)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_system_tells_what_it_has_to_give(machine: Machine) -> None:
    """What is free and what the system would drop for us count; what can be swapped is told apart."""
    machine.write("/proc/meminfo", MEMINFO)
    assert machine.room() == FreeMemory(9000 * 1024, 12000 * 1024, 500 * 1024)


@pytest.mark.parametrize(
    "text", ["", "MemTotal: 12000 kB\n", "MemAvailable: much kB\nMemTotal: 1 kB\n"], ids=["none", "half", "nonsense"]
)
def test_where_nobody_tells_nothing_is_known(machine: Machine, text: str) -> None:
    """Another system, or a sandbox: no figure is made up."""
    machine.write("/proc/meminfo", text)
    assert machine.room() is None


@pytest.mark.parametrize(
    ("folder", "limit", "usage", "files"),
    [
        ("/sys/fs/cgroup", "memory.max", "memory.current", ("inactive_file", "active_file", "file_dirty")),
        (
            "/sys/fs/cgroup/memory",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            ("total_inactive_file", "total_active_file", "total_writeback"),
        ),
    ],
    ids=["version 2", "version 1"],
)
def test_a_container_with_less_memory_than_its_machine_is_believed(
    machine: Machine, folder: str, limit: str, usage: str, files: tuple[str, str, str]
) -> None:
    """What a container may take counts there: beyond it, it is killed, however much its machine has. Files that were
    read, once or often, make room when it is asked for; those that must be written first do not."""
    machine.write("/proc/meminfo", MEMINFO)
    machine.write(f"{folder}/{limit}", "4000000\n")
    machine.write(f"{folder}/{usage}", "3000000\n")
    once, often, unwritten = files
    machine.write(f"{folder}/memory.stat", f"anon 5\n{once} 800000\n{often} 300000\n{unwritten} 100000\nother 7\n")
    assert machine.room() == FreeMemory(2000000, 4000000, 0)
    machine.write(f"{folder}/{limit}", "max\n" if limit == "memory.max" else f"{2**63 - 4096}\n")
    assert machine.room() == FreeMemory(9000 * 1024, 12000 * 1024, 500 * 1024)


@pytest.mark.parametrize(
    ("root", "line", "limit", "usage"),
    [
        ("/sys/fs/cgroup", "0::/user.slice/run.scope", "memory.max", "memory.current"),
        (
            "/sys/fs/cgroup/memory",
            "4:cpu,memory:/user.slice/run.scope",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
        ),
    ],
    ids=["version 2", "version 1"],
)
def test_of_containers_in_each_other_the_narrowest_counts(
    machine: Machine, root: str, line: str, limit: str, usage: str
) -> None:
    """A batch job's or a service's own share counts, and so does what others take of the share around it."""
    machine.write("/proc/meminfo", MEMINFO)
    machine.write("/proc/self/cgroup", f"1:name=systemd:/elsewhere\n{line}\n")
    for folder, most, used in (("/user.slice/run.scope", 4000000, 1000000), ("/user.slice", 6000000, 5500000)):
        machine.write(f"{root}{folder}/{limit}", f"{most}\n")
        machine.write(f"{root}{folder}/{usage}", f"{used}\n")
    assert machine.room() == FreeMemory(500000, 4000000, 0)
    machine.write(f"{root}/user.slice/{usage}", "2000000\n")
    assert machine.room() == FreeMemory(3000000, 4000000, 0)


def held_below(place: Path) -> list[Path]:
    """The descriptors of this process that lead to files below `place`."""
    found = [each for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    return [each for each in found if str(each.readlink()).startswith(str(place))]


def test_a_file_that_stands_in_for_memory_leaves_no_trace(machine: Machine) -> None:
    """It has no name, so that a killed process leaves nothing behind; and it is gone with the last who reads it."""
    place = machine.environment.path("/tmp")
    place.mkdir()
    file = mapped_file(machine.environment, MB)
    assert file is not None
    part = file.take(MB)
    assert part is not None
    part[:3] = b"abc"
    assert bytes(part[:4]) == b"abc\0"
    assert list(place.iterdir()) == []
    assert len(held_below(place)) == 1
    del file
    assert bytes(part[:4]) == b"abc\0", "what was taken keeps it"
    del part
    gc.collect()
    assert held_below(place) == []


def test_a_file_of_which_all_parts_are_gone_is_not_kept_by_who_might_take_more(machine: Machine) -> None:
    """A model that was let go gives its disk space back, though the next one may want some."""
    place = machine.environment.path("/tmp")
    place.mkdir()
    file = mapped_file(machine.environment, MB)
    assert file is not None
    assert file.left == MB
    part = file.take(1000)
    assert file.left == MB - 1024
    del part
    gc.collect()
    assert held_below(place) == []
    assert file.left == 0
    assert file.take(1) is None


def test_the_disk_has_all_of_the_file_from_the_start(machine: Machine) -> None:
    """A disk that fills up later cannot end the process in the middle of a copy."""
    place = machine.environment.path("/tmp")
    place.mkdir()
    file = mapped_file(machine.environment, MB)
    (held,) = held_below(place)
    assert held.stat().st_blocks * 512 >= MB
    del file


def test_parts_of_the_file_are_aligned_and_never_overlap(machine: Machine) -> None:
    """Kernels copy into them as into memory of torch's own; when it is used up it says so."""
    machine.environment.path("/tmp").mkdir()
    sizes = (1, 64, 65, 100)
    whole = 64 + 64 + 128 + 128
    file = mapped_file(machine.environment, whole)
    assert file is not None
    parts = [file.take(size) for size in sizes]
    for number, part in enumerate(parts):
        assert part is not None
        part[:] = bytes([number]) * len(part)
    assert [set(part or b"") for part in parts] == [{0}, {1}, {2}, {3}]
    assert file.take(64) is None


def test_a_folder_in_memory_or_behind_a_network_is_no_disk(machine: Machine) -> None:
    """Many machines keep /tmp in memory; there a file would take what there is too little of."""
    machine.environment.path("/tmp").mkdir()
    for kind in ("tmpfs", "fuse.drive", "nfs4"):
        machine.write("/proc/mounts", f"overlay / overlay rw 0 0\nsome /tmp {kind} rw 0 0\n")
        assert mapped_file(machine.environment, MB) is None
    machine.write("/proc/mounts", "tmpfs / tmpfs rw 0 0\nproc /proc proc rw 0 0\n/dev/sda1 /tmp ext4 rw 0 0\n")
    assert mapped_file(machine.environment, MB) is not None


def test_a_link_to_a_folder_in_memory_is_no_disk_either(machine: Machine) -> None:
    """Some images make /var/tmp a link to a /tmp that is kept in memory."""
    machine.environment.path("/tmp").mkdir()
    machine.environment.path("/var").mkdir()
    machine.environment.path("/var/tmp").symlink_to("../tmp")
    machine.write("/proc/mounts", "overlay / overlay rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n")
    assert mapped_file(machine.environment, MB) is None


def test_a_disk_without_room_for_checkpoints_besides_is_left_alone(machine: Machine) -> None:
    """The file is not worth a full disk, on which nothing could be saved; nor is a folder made that is not there."""
    assert mapped_file(machine.environment, MB) is None
    assert not machine.environment.path("/tmp").exists()
    machine.environment.path("/tmp").mkdir()
    space = os.statvfs(machine.environment.path("/tmp"))
    assert mapped_file(machine.environment, space.f_bavail * space.f_frsize // 2) is None
