"""What killed loader workers left in the temporary folder is removed, and nothing that anybody uses."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

import colabkeep
from colabkeep.frameworks.torch.data import TorchData, remove_dead_listeners

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody says who listens"),
]

TRAINER = """
import sys, time, torch
from torch.utils.data import DataLoader, TensorDataset
from colabkeep.frameworks.torch.data import TorchData

class Slow(TensorDataset):
    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.rand(4)

loader = DataLoader(Slow(torch.arange(10**6)), 2, num_workers=2, multiprocessing_context="fork")
opened = TorchData().open(loader, seed=1, epoch=0, batches=0, samples=0, state=None)
for number, batch in enumerate(opened):
    if number == 3:
        print("loading", flush=True)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A temporary folder with a short name: that of a socket has a hundred letters at most."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def later(seconds: float = 3600.0) -> float:
    return time.time() + seconds


def folders(place: Path) -> list[Path]:
    return sorted(place.glob("pymp-*"))


def test_the_folders_of_a_killed_training_go_when_the_next_one_begins(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A living training's workers keep theirs; after SIGKILL, a minute later, they are swept."""
    environ = {**os.environ, "TMPDIR": str(place), "PYTHONPATH": str(Path(colabkeep.__file__).parents[1])}
    command = [sys.executable, "-W", "ignore", "-c", TRAINER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == "loading\n"
        left = folders(place)
        assert len(left) == 2
        assert remove_dead_listeners(place, later) == 0
        assert folders(place) == left
        os.kill(trainer.pid, signal.SIGKILL)
    wait_until_nobody_listens(left)
    assert remove_dead_listeners(place) == 0  # too young
    for folder in left:
        os.utime(folder, (0, 0))
    monkeypatch.setattr("tempfile.tempdir", str(place))
    where = {"seed": 1, "epoch": 0, "batches": 0, "samples": 0, "state": None}
    TorchData().open(DataLoader(range(4)), **where)
    assert folders(place) == left  # nothing is swept where no worker is started
    TorchData().open(DataLoader(range(4), num_workers=1), **where)
    assert folders(place) == []


def wait_until_nobody_listens(left: list[Path]) -> None:
    while any(str(folder) in Path("/proc/net/unix").read_text() for folder in left):
        time.sleep(0.02)


def dead(place: Path, name: str = "pymp-abcd_123", listener: str = "listener-abcd_123") -> Path:
    """A folder with a socket that nobody listens to."""
    folder = place / name
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / listener))
    return folder


def test_only_what_is_surely_dead_is_removed(place: Path) -> None:
    """Anything else in the folder, another name, a link, an empty folder, a live socket: all of that stays."""
    gone = dead(place)
    kept = [dead(place, "pymp-not-random"), dead(place, "pymp-00000002"), dead(place, "pymp-00000003")]
    (kept[1] / "notes.txt").write_text("mine")
    (place / "pymp-00000004").mkdir()
    (place / "pymp-00000005").symlink_to(kept[2])
    (place / "pymp-00000006").write_text("no folder")
    live = place / "pymp-00000007"
    live.mkdir()
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as deaf:
        server.bind(str(live / "listener-abcd_123"))
        server.listen()
        deaf.bind(str(kept[2] / "listener-99999999"))  # not listening yet: the kernel lists it
        assert remove_dead_listeners(place, later) == 1
        assert not gone.exists()
        assert len(folders(place)) == 7
        assert live.exists()


def test_a_system_that_does_not_say_who_listens_is_left_alone(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the kernel's list nothing is removed."""
    monkeypatch.setattr("colabkeep.frameworks.torch.data._BOUND", place / "absent")
    folder = dead(place)
    assert remove_dead_listeners(place, later) == 0
    assert folder.exists()
