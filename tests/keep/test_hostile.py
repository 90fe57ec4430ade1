"""What a folder must withstand: files that cannot be read, tables from a stranger, full disks, killed programs, and
places that are none for it.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from colabkeep.core.errors import RunBusy, UsageError
from colabkeep.core.events import SaveFailing
from colabkeep.core.system import Environment
from colabkeep.keep import content as content_module
from colabkeep.keep.command import run_program
from colabkeep.keep.content import read_table
from colabkeep.keep.session import was_cut_off
from colabkeep.keep.tree import Patterns, scan
from colabkeep.keep.watch import Watch
from colabkeep.stores.colab_drive.store import MountedStore
from colabkeep.ui.cli import main
from tests.keep.test_session import Machine, machine
from tests.keep.test_watch import Folder, Time

__all__ = ["machine"]  # the fixture

BIG = b"x" * 3_000_000


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """As a disk on which there is no more room than that: writes fail with EFBIG."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


@contextmanager
def nobody(folder: Path) -> Iterator[None]:
    """A user who is not root, for whom no permission is too little."""
    if os.geteuid():
        yield
        return
    os.chown(folder, 65534, 65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_file_that_cannot_be_read_does_not_keep_the_rest_from_being_kept() -> None:
    """It is named; the others are kept, after the time in which nothing was at rest."""
    home = Path(tempfile.mkdtemp(dir="/tmp"))  # TMPDIR may be in a folder that only its owner may enter
    try:
        with nobody(home):
            (home / "secret.bin").write_bytes(b"x")
            (home / "secret.bin").chmod(0)
            (home / "train.log").write_bytes(b"x")
            (home / "last.bin").write_bytes(b"x")
            watch = Watch(str(home), Patterns(), time := Time())
            watch.look()
            time.now += 4
            look = watch.look()
            assert look.waits == {"secret.bin": "it cannot be read: Permission denied"}
            time.now += 400
            look = watch.look()
            assert look.version is not None
            assert set(look.version.entries) == {"last.bin", "train.log"}
            assert set(look.held) == {"secret.bin"}
    finally:
        shutil.rmtree(home)


def test_a_file_that_became_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """Opening one for reading waits for a writer, who may never come."""
    folder = Folder(tmp_path / "out")
    (folder.path / "state.json").write_text("{}")
    folder.look()
    found = scan(str(folder.path))
    (folder.path / "state.json").unlink()
    os.mkfifo(folder.path / "state.json")
    assert set(folder.watch._torn(found, ["state.json"])) <= {"state.json"}


def test_a_torn_file_of_a_new_folder_leaves_that_folder_out(tmp_path: Path) -> None:
    """A checkpoint-500 without its weights would be taken for the newest one by the program that reads it."""
    folder = Folder(tmp_path / "out")
    (folder.path / "checkpoint-400").mkdir()
    (folder.path / "checkpoint-400/trainer_state.json").write_text("{}")
    folder.keep()
    (folder.path / "checkpoint-500/deep").mkdir(parents=True)
    (folder.path / "checkpoint-500/deep/scheduler.bin").write_bytes(b"x")
    (folder.path / "checkpoint-500/trainer_state.json").write_text('{"step": 5')
    (folder.path / "late.bin").write_bytes(b"x")
    look = folder.look(last=True)
    assert look.version is not None
    assert set(look.version.entries) == {"checkpoint-400", "checkpoint-400/trainer_state.json", "late.bin"}
    assert set(look.held) == {"checkpoint-500/trainer_state.json"}


def test_a_database_and_its_journal_are_of_one_state(tmp_path: Path) -> None:
    """Pages of a newer write-ahead log in an older database would be damage."""
    folder = Folder(tmp_path / "out")
    (folder.path / "a.db").write_bytes(b"SQLite format 3\0" + b"\0" * 84)
    (folder.path / "a.db-wal").write_bytes(b"old")
    folder.keep()
    old = scan(str(folder.path)).entries
    (folder.path / "a.db").write_bytes(b"SQLite f")
    (folder.path / "a.db-wal").write_bytes(b"newer")
    (folder.path / "late.bin").write_bytes(b"x")
    look = folder.look(last=True)
    assert look.version is not None
    assert look.version.entries["a.db"] == old["a.db"]
    assert look.version.entries["a.db-wal"] == old["a.db-wal"]


@pytest.mark.parametrize(
    "row",
    [
        {"kind": "folder", "places": [[1, 0, 0, 0]]},
        {"kind": "link", "target": "x", "size": 5, "places": [[1, 0, 0, 5]]},
        {"kind": "file", "size": 5, "same_as": "a", "places": [[1, 0, 0, 5]]},
        {"kind": "file", "size": 5, "places": [[2, 0, 0, 5]]},
        {"kind": "file", "size": 5, "places": [[0, 0, 0, 5]]},
        {"kind": "file", "size": 5, "places": [[1, 0, 1, 5]]},
        {"kind": "file", "size": 5, "places": [[1, -1, 0, 5]]},
        {"kind": "file", "size": 5, "places": [[1, 0, 0]]},
        {"kind": "file", "size": 5, "places": 3},
    ],
)
def test_a_table_that_puts_bytes_where_none_belong_is_refused(row: dict[str, Any]) -> None:
    common = {"mode": 0o644, "mtime": 0}
    rows = [{"path": "a", "kind": "file", **common}, {"path": "x", **common, **row}]
    with pytest.raises(ValueError, match="is not said rightly"):
        read_table(memoryview(zlib.compress(json.dumps(rows).encode())), 2)


def test_a_table_that_grows_when_it_is_unpacked_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gigabyte of blanks is a megabyte when it is sent."""
    monkeypatch.setattr(content_module, "_TABLE_LIMIT", 2**20)
    data = zlib.compress(b"[" + b" " * 2**21 + b"]")
    with pytest.raises(ValueError, match="too long"):
        read_table(memoryview(data), 1)


def test_a_full_disk_at_the_start_leaves_the_folder_as_it_was(machine: Machine) -> None:
    """It is said, no older version is taken in its place, and with room it goes on."""
    with machine.keep(settle=0.2) as kept:
        (machine.folder / "last.bin").write_bytes(b"small")
        assert kept.save()
        (machine.folder / "last.bin").write_bytes(BIG)
    machine.gone()
    with no_file_above(2_000_000), pytest.raises(UsageError, match="the disk is full"), machine.keep():
        pass
    assert [path.name for path in machine.disk.iterdir() if path.name != "cache"] == ["runs"]
    assert machine.names() == []
    with machine.keep() as kept:
        assert kept.restored.version == 2
        assert (machine.folder / "last.bin").read_bytes() == BIG


def test_a_full_storage_is_told_and_the_next_version_is_made(machine: Machine) -> None:
    with machine.keep(settle=0.2) as kept:
        (machine.folder / "last.bin").write_bytes(b"small")
        assert kept.save()
        (machine.folder / "last.bin").write_bytes(BIG)
        with no_file_above(2_000_000):
            assert not kept.save(timeout=3)
            end = time.monotonic() + 60
            while not any(isinstance(event, SaveFailing) for event in machine.heard) and time.monotonic() < end:
                time.sleep(0.05)
        assert any(isinstance(event, SaveFailing) for event in machine.heard)
        assert kept.version == 1
        assert kept.save(timeout=60)
    machine.gone()
    with machine.keep():
        assert (machine.folder / "last.bin").read_bytes() == BIG


def test_what_a_machine_left_that_died_while_putting_back_goes(machine: Machine) -> None:
    """And nothing that is only called like it."""
    with machine.keep():
        (machine.folder / "last.bin").write_bytes(b"x")
    machine.gone()
    for name in (".runs.colabkeep-0123abcd", ".runs.colabkeep-mine", ".runs2.colabkeep-0123abcd"):
        (machine.disk / name).mkdir()
        (machine.disk / name / "x").write_bytes(b"x")
    with machine.keep():
        assert machine.names() == ["last.bin"]
    left = {path.name for path in machine.disk.iterdir()} - {"cache"}
    assert left == {"runs", ".runs.colabkeep-mine", ".runs2.colabkeep-0123abcd"}


def test_the_working_directory_may_be_the_folder(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths lead to what was put back, and not to the folder that was there before."""
    with machine.keep():
        (machine.folder / "last.bin").write_bytes(b"x")
    machine.gone()
    machine.folder.mkdir()
    monkeypatch.chdir(machine.folder)
    with machine.keep():
        assert Path("last.bin").read_bytes() == b"x"


def test_a_folder_that_somebody_keeps_is_not_moved_away(machine: Machine) -> None:
    with machine.keep(run_name="other"):
        (machine.folder / "last.bin").write_bytes(b"other")
    machine.gone()
    with machine.keep():
        (machine.folder / "last.bin").write_bytes(b"mine")
        with pytest.raises(RunBusy, match="keeps the folder"), machine.keep(run_name="other", restore="overwrite"):
            pass
        assert (machine.folder / "last.bin").read_bytes() == b"mine"


def test_the_files_of_an_older_machine_are_not_taken_for_newer_than_what_another_one_kept(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training went on elsewhere; here the files of then are still there."""
    with machine.keep():
        (machine.folder / "last.bin").write_bytes(b"epoch 1")
    disk = machine.disk
    machine.disk = tmp_path / "machine2"
    machine.folder = machine.disk / "runs"
    monkeypatch.setenv("XDG_CACHE_HOME", str(machine.disk / "cache"))
    with machine.keep():
        (machine.folder / "last.bin").write_bytes(b"epoch 2")
    machine.disk, machine.folder = disk, disk / "runs"
    monkeypatch.setenv("XDG_CACHE_HOME", str(disk / "cache"))
    (machine.folder / "last.bin").write_bytes(b"epoch 1, and more")
    with pytest.raises(UsageError, match="made elsewhere"), machine.keep():
        pass
    assert (machine.folder / "last.bin").read_bytes() == b"epoch 1, and more"
    with machine.keep(restore="overwrite"):
        assert (machine.folder / "last.bin").read_bytes() == b"epoch 2"


@pytest.mark.parametrize("storage", ["machine/runs/store", "machine/runs", "machine"])
def test_a_folder_that_would_hold_its_own_versions_is_refused(machine: Machine, tmp_path: Path, storage: str) -> None:
    with pytest.raises(UsageError, match="contains the storage"), machine.keep(storage=str(tmp_path / storage)):
        pass


def test_a_folder_on_the_mounted_drive_is_refused(machine: Machine, tmp_path: Path) -> None:
    """Its files would be in the mount's cache only, and still be there on the next machine, whole or not."""
    store, machine.folder = MountedStore(tmp_path / "drive/MyDrive/colabkeep"), tmp_path / "drive/MyDrive/runs"
    with pytest.raises(UsageError, match="mounted Drive"), machine.keep(storage=store):
        pass
    assert not machine.folder.exists()


def test_a_folder_on_a_mounted_drive_is_refused_wherever_its_versions_go(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what the table of mounts says, also where the storage is another one."""
    root = tmp_path / "root"
    (root / "proc").mkdir(parents=True)
    (root / "proc/mounts").write_text("overlay / overlay rw 0 0\ndrive /content/drive fuse.drive rw 0 0\n")
    here = Environment(environ={}, root=root, folder=root / "content")
    monkeypatch.setattr(Environment, "here", classmethod(lambda cls: here))
    machine.folder = root / "content/drive/MyDrive/runs"
    with pytest.raises(UsageError, match="on the mounted Drive"), machine.keep():
        pass
    assert not machine.folder.exists()
    machine.folder = root / "content/runs"
    with machine.keep():
        pass


def test_a_whole_disk_is_no_folder_to_keep(machine: Machine) -> None:
    machine.folder = Path("/proc")
    with pytest.raises(UsageError, match="is a mount"), machine.keep():
        pass


PROGRAM = """
import os, signal, sys, time
with open(sys.argv[1] + "/last.bin", "wb") as file:
    file.write(b"half")
    file.flush()
    if sys.argv[2] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    file.write(b" and half")
sys.exit(3)
"""


@pytest.mark.parametrize("how", ["killed", "ended"])
def test_what_a_killed_program_was_writing_is_no_version(machine: Machine, how: str) -> None:
    """Of its format nobody can tell whether it is whole. Its status is passed on."""
    with machine.keep(settle=0.2) as kept:
        (machine.folder / "last.bin").write_bytes(b"whole")
        assert kept.save()
        status = run_program(kept, [sys.executable, "-c", PROGRAM, str(machine.folder), how])
    assert status == (137 if how == "killed" else 3)
    assert bool(machine.said("The program was killed while it wrote")) == (how == "killed")
    machine.gone()
    with machine.keep():
        expected = b"whole" if how == "killed" else b"half and half"
        assert (machine.folder / "last.bin").read_bytes() == expected


def test_which_ends_are_in_the_middle() -> None:
    """A program that answers a signal may save, and then ends in order."""
    ends = {0: False, 1: False, 143: False, 130: False, -signal.SIGINT: False}
    ends |= {-signal.SIGKILL: True, -signal.SIGTERM: True, -signal.SIGSEGV: True, 137: True, 139: True}
    assert {status: was_cut_off(status) for status in ends} == ends


def test_what_a_killed_session_left_is_no_version_until_the_program_writes_it_anew(tmp_path: Path) -> None:
    """It is at rest, for it is dead; and half of it may be of one checkpoint and half of another."""
    folder = Folder(tmp_path / "out")
    (folder.path / "last.bin").write_bytes(b"1")
    folder.keep()
    kept = scan(str(folder.path))
    (folder.path / "last.bin").write_bytes(b"2, half of i")
    folder.watch = Watch(str(folder.path), Patterns(), folder.time)
    folder.watch.kept(kept)
    folder.watch.left(scan(str(folder.path)))
    folder.look()
    assert folder.look(after=10).version is None
    (folder.path / "args.yaml").write_text("epochs: 3")
    folder.look(after=10)
    assert folder.look(after=10).version is None
    (folder.path / "last.bin").write_bytes(b"2, all of it")
    folder.look()
    assert folder.look(after=10).version is not None


def test_jumps_of_the_wall_clock_and_times_in_the_future_change_nothing(machine: Machine) -> None:
    """Whether a file rests is told by how it is seen, never by the time that it bears."""
    folder = Folder(machine.disk / "out")
    path = folder.path / "last.bin"
    for year in (1971, 2099, 1985):
        path.write_bytes(b"%d" % year)
        os.utime(path, (0, (year - 1970) * 31_557_600))
        assert folder.look().waits
        look = folder.look(after=4)
        assert look.version is not None
        folder.watch.kept(look.version)


def test_a_very_deep_folder_is_kept(tmp_path: Path) -> None:
    """Deeper than Python calls functions."""
    deep = tmp_path / "out"
    for _ in range(600):
        deep = deep / "d"
    deep.mkdir(parents=True)
    (deep / "x").write_bytes(b"x")
    assert len(scan(str(tmp_path / "out")).entries) == 601


def test_names_that_are_not_utf_8_come_back_and_can_be_shown(
    machine: Machine, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Names are bytes to the system; what a terminal cannot show is shown as a sign in their place."""
    name = os.fsdecode(b"w\xff\xe8.bin")
    with machine.keep(progress=True):
        (machine.folder / name).write_bytes(b"x")
        os.mkfifo(machine.folder / os.fsdecode(b"p\xff"))
    assert machine.said("is not kept: it is a pipe")
    machine.gone()
    with machine.keep():
        assert machine.names() == [name]
    storage = ["--storage", str(machine.storage)]
    for words in (["list"], ["show", "r"], ["verify", "r"], ["export", "r", str(tmp_path / "exported")]):
        assert main([*words, *storage]) == 0
    assert ".bin" in capfd.readouterr().out
    assert [path.name for path in (tmp_path / "exported").iterdir()] == [name]
