"""Shared memory is taken from the dead only, and from nobody else's dead."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from colabkeep.frameworks.paddle.reading import free_segments


@pytest.fixture(scope="module")
def dead() -> int:
    """The pid of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


def segment(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(bytes(100_000))
    return path


def test_segments_of_dead_processes_are_freed_and_counted(tmp_path: Path, dead: int) -> None:
    """Both forms of name that Paddle has used."""
    paths = [segment(tmp_path, f"paddle_{dead}_{rest}") for rest in ("7_3425666161", "2756100893")]
    assert free_segments(tmp_path) >= 200_000
    assert not any(path.exists() for path in paths)
    assert free_segments(tmp_path) == 0


def test_a_process_that_ended_and_was_never_asked_for_its_status_is_dead(tmp_path: Path) -> None:
    """The workers of a killed trainer stay so in a container whose first process does not care for orphans."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        left = segment(tmp_path, f"paddle_{process.pid}_0_1")
        assert free_segments(tmp_path) >= 100_000
    assert not left.exists()


def test_what_is_not_a_dead_process_of_this_user_is_left_alone(
    tmp_path: Path, dead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Living processes (though nobody knows whose pid it was before), other programs, other users, odd files."""
    kept = [
        segment(tmp_path, f"paddle_{os.getpid()}_0_1"),
        segment(tmp_path, "paddle_1_0_1"),
        segment(tmp_path, f"torch_{dead}_0_1"),
        segment(tmp_path, f"paddle_{dead}_0_1.txt"),
        segment(tmp_path, f"my_paddle_{dead}_0_1"),
        segment(tmp_path, "paddle_0_1"),
        segment(tmp_path, f"paddle_{10**12}_1"),
    ]
    link = tmp_path / f"paddle_{dead}_0_2"
    link.symlink_to(kept[0])
    (tmp_path / f"paddle_{dead}_0_3").mkdir()
    assert free_segments(tmp_path) == 0
    assert all(path.exists() for path in [*kept, link])
    others, me = segment(tmp_path, f"paddle_{dead}_0_4"), os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    assert free_segments(tmp_path) == 0
    assert others.exists()


def test_a_machine_without_such_a_folder_has_nothing_to_free(tmp_path: Path) -> None:
    """Elsewhere than on Linux."""
    assert free_segments(tmp_path / "none") == 0
