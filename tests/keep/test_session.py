"""A program's folder over several sessions and machines."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from colabkeep.api import keep_folder
from colabkeep.core.errors import RunBusy, UsageError
from colabkeep.core.events import Event, Noted, SaveCommitted


class Machine:
    """What a session leaves on a machine goes with `gone`; the storage stays."""

    def __init__(self, tmp_path: Path) -> None:
        self.storage, self.disk = tmp_path / "storage", tmp_path / "machine"
        self.folder = self.disk / "runs"
        self.disk.mkdir()
        self.heard: list[Event] = []

    def keep(self, **words: Any) -> Any:
        words = {
            "run_name": "r",
            "storage": str(self.storage),
            "callbacks": [self.heard.append],
            "progress": False,
            **words,
        }
        return keep_folder(self.folder, **words)

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def gone(self) -> None:
        shutil.rmtree(self.disk)
        self.disk.mkdir()

    def said(self, words: str) -> list[str]:
        return [event.text for event in self.heard if isinstance(event, Noted) and words in event.text]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "machine" / "cache"))
    return Machine(tmp_path)


def test_a_fresh_machine_gets_the_files_back(machine: Machine) -> None:
    """With their times, so that a program that looks for the newest file finds the same one."""
    with machine.keep() as kept:
        assert kept.restored is None
        (machine.folder / "weights").mkdir()
        (machine.folder / "weights/last.pt").write_bytes(b"epoch 1")
        os.utime(machine.folder / "weights/last.pt", ns=(1, 1_700_000_000_123_456_789))
    machine.gone()
    with machine.keep() as kept:
        assert (kept.restored.source, kept.restored.version, kept.restored.files) == ("storage", 1, 1)
        last = machine.folder / "weights/last.pt"
        assert last.read_bytes() == b"epoch 1"
        assert last.stat().st_mtime_ns == 1_700_000_000_123_456_789
        last.write_bytes(b"epoch 2")
    machine.gone()
    with machine.keep() as kept:
        assert kept.restored.version == 2
        assert (machine.folder / "weights/last.pt").read_bytes() == b"epoch 2"


def test_an_unchanged_folder_makes_no_version(machine: Machine) -> None:
    with machine.keep():
        (machine.folder / "last.pt").write_bytes(b"x")
    with machine.keep() as kept:
        assert kept.restored.source == "folder"
        assert kept.save()
    assert kept.version == 1


def test_versions_are_made_while_the_program_works(machine: Machine) -> None:
    with machine.keep(every=1) as kept:
        (machine.folder / "last.pt").write_bytes(b"x")
        end = time.monotonic() + 60
        while kept.version < 1 and time.monotonic() < end:
            time.sleep(0.1)
        assert kept.version == 1
        assert kept.durability.level == "local"
    (saved,) = (event for event in machine.heard if isinstance(event, SaveCommitted))
    assert saved.reason == "changed"


def test_a_restarted_kernel_goes_on_with_what_is_there(machine: Machine) -> None:
    """Whatever the program wrote after the last version is newer than it, and stays."""
    with machine.keep():
        (machine.folder / "last.pt").write_bytes(b"epoch 1")
    (machine.folder / "last.pt").write_bytes(b"epoch 2")
    with machine.keep() as kept:
        assert kept.restored.source == "folder"
        assert (machine.folder / "last.pt").read_bytes() == b"epoch 2"
    machine.gone()
    with machine.keep():
        assert (machine.folder / "last.pt").read_bytes() == b"epoch 2"


def test_other_files_are_never_overwritten(machine: Machine) -> None:
    with machine.keep():
        (machine.folder / "last.pt").write_bytes(b"epoch 1")
    machine.gone()
    machine.folder.mkdir()
    (machine.folder / "mine").write_bytes(b"dear")
    with pytest.raises(UsageError, match="overwrite"), machine.keep():
        pass
    assert machine.names() == ["mine"]
    with machine.keep(restore="overwrite"):
        assert machine.names() == ["last.pt"]
    (before,) = machine.disk.glob("runs.before-*")
    assert (before / "mine").read_bytes() == b"dear"
    assert machine.said(str(before))


def test_never_begins_with_what_is_there(machine: Machine) -> None:
    with machine.keep():
        (machine.folder / "last.pt").write_bytes(b"old")
    machine.gone()
    with machine.keep(restore="never") as kept:
        assert kept.restored is None
        assert machine.names() == []
        (machine.folder / "last.pt").write_bytes(b"new")
    machine.gone()
    with machine.keep():
        assert (machine.folder / "last.pt").read_bytes() == b"new"


def test_a_damaged_version_is_walked_back_from(machine: Machine) -> None:
    with machine.keep():
        (machine.folder / "last.pt").write_bytes(b"1" * 2_000_000)
    with machine.keep():
        (machine.folder / "last.pt").write_bytes(b"2" * 2_000_000)
    newest = max(
        machine.storage.rglob("blobs/*"), key=lambda path: (path.stat().st_size > 10**6, path.stat().st_mtime_ns)
    )
    newest.chmod(0o600)
    newest.write_bytes(newest.read_bytes()[:-1])
    machine.gone()
    with machine.keep() as kept:
        assert kept.restored.version == 1
        assert (machine.folder / "last.pt").read_bytes() == b"1" * 2_000_000
        assert [path.name for path in machine.disk.iterdir() if "colabkeep-" in path.name] == []


def test_an_error_of_the_program_passes_and_what_it_wrote_is_kept(machine: Machine) -> None:
    def program() -> None:
        with machine.keep():
            (machine.folder / "last.pt").write_bytes(b"x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        program()
    machine.gone()
    with machine.keep() as kept:
        assert kept.restored.version == 1


def test_a_second_one_is_told(machine: Machine, tmp_path: Path) -> None:
    """Of the same run, and of another run in the same folder."""
    with machine.keep():
        with pytest.raises(RunBusy, match="'r'"), machine.keep():
            pass
        with pytest.raises(RunBusy, match="keeps the folder"), machine.keep(run_name="other"):
            pass


def test_old_versions_go(machine: Machine) -> None:
    for number in range(4):
        with machine.keep(keep_last=2):
            (machine.folder / "last.pt").write_bytes(b"%d" % number)
    names = sorted(path.name for path in machine.storage.rglob("checkpoints/*.json"))
    assert [name[:12] for name in names] == ["000000000003", "000000000004"]


def test_what_is_left_out_is_said(machine: Machine) -> None:
    with machine.keep(exclude="cache"):
        os.mkfifo(machine.folder / "pipe")
        (machine.folder / "cache").mkdir()
        (machine.folder / "cache/x").write_bytes(b"x")
        (machine.folder / "y").write_bytes(b"y")
    assert machine.said("pipe is not kept: it is a pipe.")
    machine.gone()
    with machine.keep():
        assert machine.names() == ["y"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"restore": "maybe"}, "restore"),
        ({"keep_last": 0}, "keep_last"),
        ({"include": [3]}, "include"),
        ({"every": "soon"}, "every"),
    ],
)
def test_words_that_mean_nothing_are_refused(machine: Machine, words: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        machine.keep(**words)
    assert not machine.folder.exists()
