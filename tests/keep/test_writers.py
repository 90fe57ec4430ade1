"""Which files are open for writing is read from the system."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from colabkeep.keep.watch import open_for_writing


def place(path: Path) -> tuple[int, int]:
    facts = path.stat()
    return facts.st_dev, facts.st_ino


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")
def test_who_writes_is_seen_and_who_reads_is_not(tmp_path: Path) -> None:
    """In this process and in another one, and no longer than it is open."""
    names = ["mine", "read", "appended", "closed"]
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    files = {place(tmp_path / name): name for name in names}
    program = "import sys; file = open(sys.argv[1], 'ab'); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program, tmp_path / "appended"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with (tmp_path / "mine").open("r+b"), (tmp_path / "read").open("rb"):
            found = {files[at]: process for at, process in open_for_writing(files.keys()).items()}
        other.communicate()
    assert set(found) == {"mine", "appended"}
    assert found["appended"] == other.pid
    assert open_for_writing(files.keys()) == {}


def test_nothing_is_known_where_the_system_does_not_tell(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert open_for_writing({place(tmp_path / "file")}, proc=str(tmp_path / "none")) == {}
