"""A version is what was at rest: never a file in the middle of being written, and never nothing for ever."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from colabkeep.keep import watch as watch_module
from colabkeep.keep.tree import Patterns, scan
from colabkeep.keep.watch import Look, Watch


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Folder:
    """A watched folder, and a clock that is set."""

    def __init__(self, path: Path) -> None:
        self.path, self.time = path, Time()
        path.mkdir()
        self.watch = Watch(str(path), Patterns(), self.time)

    def look(self, after: float = 0.0, *, last: bool = False) -> Look:
        self.time.now += after
        return self.watch.look(last=last)

    def keep(self) -> None:
        """Everything that is there is of the last version."""
        self.look()
        look = self.look(after=4)
        assert look.version is not None
        self.watch.kept(look.version)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "out")


def test_what_has_come_to_rest_is_a_version(folder: Folder) -> None:
    """One look is not enough to know that nothing changes, and without a change there is no other version."""
    (folder.path / "last.bin").write_bytes(b"x")
    assert folder.look().waits == {"last.bin": "it is being written"}
    assert folder.look(after=1).version is None
    look = folder.look(after=3)
    assert look.version is not None
    assert set(look.version.entries) == {"last.bin"}
    folder.watch.kept(look.version)
    assert folder.look(after=10) == Look()


def test_files_that_are_written_in_turn_are_of_one_version(folder: Folder) -> None:
    """As of a folder checkpoint-500: the second one comes before the first has been at rest for long."""
    for name in ("model.bin", "optimizer.bin", "rng.bin"):
        (folder.path / name).write_bytes(b"x")
        assert folder.look(after=2).version is None
    look = folder.look(after=4)
    assert look.version is not None
    assert len(look.version.entries) == 3


def test_a_file_that_a_program_has_open_is_waited_for(folder: Folder) -> None:
    """Until it is closed, or has not changed for a minute."""
    with (folder.path / "last.bin").open("wb") as file:
        file.write(b"x")
        file.flush()
        folder.look()
        assert folder.look(after=10).waits == {"last.bin": f"the process {os.getpid()} has it open for writing"}
        assert folder.look(after=60).version is not None
    assert folder.look().version is not None


def test_a_log_is_never_waited_for(folder: Folder) -> None:
    with (folder.path / "train.log").open("ab", buffering=0) as log:
        for _ in range(3):
            log.write(b"a line\n")
            look = folder.look(after=1)
            assert look.version is not None
            assert look.only_logs
            folder.watch.kept(look.version)


def test_a_torn_file_is_waited_for_and_then_left_as_it_was(folder: Folder) -> None:
    """A program that died in the middle of its save leaves one: the last version has the whole one still."""
    path = folder.path / "state.json"
    path.write_text('{"epoch": 1}')
    folder.keep()
    whole = scan(str(folder.path)).entries["state.json"]
    path.write_text('{"epoch": 2')
    (folder.path / "best.bin").write_bytes(b"x")
    folder.look()
    assert "not whole JSON" in folder.look(after=10).waits["state.json"]
    look = folder.look(after=60)
    assert look.version is not None
    assert set(look.held) == {"state.json"}
    assert look.version.entries["state.json"] == whole
    assert "best.bin" in look.version.entries


def test_what_was_never_whole_is_kept_as_it_is_in_the_end(folder: Folder) -> None:
    """After a minute without a change: an archive that was downloaded in part would never be kept at all."""
    (folder.path / "part.json").write_text('{"epoch": 1')
    folder.look()
    assert folder.look(after=10).version is None
    assert folder.look(last=True).version is None
    look = folder.look(after=60)
    assert look.version is not None
    assert "part.json" in look.version.entries
    assert look.held == {}


def test_a_program_that_never_rests_does_not_keep_the_rest_from_being_kept(folder: Folder) -> None:
    """After five minutes: what it still writes is as it was, and it is said which file that is."""
    path = folder.path / "busy.bin"
    path.write_bytes(b"x")
    folder.keep()
    before = scan(str(folder.path)).entries["busy.bin"]
    (folder.path / "best.bin").write_bytes(b"x")
    for number in range(31):
        path.write_bytes(b"x" * number)
        look = folder.look(after=10)
        assert (look.version is None) == (number < 30)
    assert look.version is not None
    assert look.held == look.waits == {"busy.bin": "it is being written"}
    assert look.version.entries["busy.bin"] == before
    assert "best.bin" in look.version.entries


def test_at_the_end_nothing_is_waited_for_and_a_torn_file_is_not_taken(folder: Folder) -> None:
    path = folder.path / "state.json"
    path.write_text('{"epoch": 1}')
    folder.keep()
    path.write_text('{"epoch"')
    (folder.path / "late.bin").write_bytes(b"x")
    look = folder.look(last=True)
    assert look.version is not None
    assert set(look.version.entries) == {"state.json", "late.bin"}
    assert set(look.held) == {"state.json"}


def test_what_was_removed_is_a_change_too(folder: Folder) -> None:
    (folder.path / "old").mkdir()
    (folder.path / "old/epoch1.bin").write_bytes(b"x")
    (folder.path / "new.bin").write_bytes(b"x")
    folder.keep()
    (folder.path / "old/epoch1.bin").unlink()
    (folder.path / "old").rmdir()
    folder.look()
    look = folder.look(after=4)
    assert look.version is not None
    assert set(look.version.entries) == {"new.bin"}


def test_what_was_removed_before_a_session_is_not_waited_for(folder: Folder) -> None:
    (folder.path / "old.bin").write_bytes(b"x")
    (folder.path / "last.bin").write_bytes(b"x")
    folder.keep()
    kept = scan(str(folder.path))
    (folder.path / "old.bin").unlink()
    folder.watch = Watch(str(folder.path), Patterns(), folder.time)
    folder.watch.kept(kept)
    assert folder.look().waits == {"old.bin": "it is being written"}
    look = folder.look(after=4)
    assert look.version is not None
    assert set(look.version.entries) == {"last.bin"}


def test_a_program_that_begins_to_write_during_a_look_is_waited_for(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one version would have the new file of a checkpoint, and the other as the checkpoint before had it."""
    for number in (1, 2):
        for name in ("last.json", "optimizer.json"):
            (folder.path / name).write_text(f'{{"number": {number}}}')
        if number == 1:
            folder.keep()
    folder.look()
    whole = watch_module.incomplete

    def begins(path: str, told: bool = True) -> str:
        why = whole(path, told=told)
        if path.endswith("last.json"):
            (folder.path / "last.json").write_text('{"numb')
        return why

    monkeypatch.setattr(watch_module, "incomplete", begins)
    look = folder.look(after=4)
    assert look.version is None
    assert set(look.waits) == {"last.json"}
