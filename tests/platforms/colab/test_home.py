"""Where checkpoints would go on Colab is said truly: also where Drive is broken, or only looks as if it were there."""

from __future__ import annotations

import time

import pytest

from colabkeep.stores import open_store
from colabkeep.stores.base import BytesSource


def test_with_drive_a_local_disk_stands_in_front_of_it(machine, platform):
    """Both are opened as one store; what is put there arrives in the user's Drive and is on the next machine."""
    first = machine(drive="mounted")
    home = platform.home(first.environment)
    assert (home.persists, home.remedy) == (True, "")
    assert home.folder == str(first.root / "content/drive/MyDrive/colabkeep")
    store = open_store(home.storage)
    store.put("run/note", BytesSource(b"kept"))
    end = time.monotonic() + 30
    while not list(first.account.rglob("note~*")) and time.monotonic() < end:
        time.sleep(0.01)
    store.close()
    assert (first.root / "content/colabkeep-local/run/note").read_bytes() == b"kept"

    second = machine(drive="mounted")
    with open_store(platform.home(second.environment).storage).get("run/note") as file:
        assert file.read() == b"kept"


def test_without_drive_nothing_is_promised(machine, platform):
    """The place that vanishes is called that, with the line to type; a program outside the notebook is told where."""
    home = platform.home(machine().environment)
    assert home.persists is False
    assert "deleted with this machine" in home.reason
    assert "colabkeep.mount()" in home.remedy
    assert "this cell again" in home.remedy
    assert "this program again" in platform.home(machine(kind="process").environment).remedy


def test_a_program_outside_the_notebook_uses_the_drive_that_is_mounted(machine, platform):
    """`!python train.py` needs no browser when a cell has mounted Drive before."""
    assert platform.home(machine(kind="process", drive="mounted").environment).persists is True


def test_a_drive_mounted_elsewhere_is_found(machine, platform):
    """Old notebooks mount at /content/gdrive, and some at a name with a blank: checkpoints go there."""
    for point in ("/content/gdrive", "/content/my drive"):
        colab = machine()
        colab.set_drive(point, "mounted")
        home = platform.home(colab.environment)
        assert (home.folder, home.persists) == (f"{colab.root}{point}/MyDrive/colabkeep", True)


def test_the_older_spelling_of_my_drive_is_found(machine, platform):
    """Where only "My Drive" exists, it is used."""
    colab = machine(drive="mounted")
    (colab.root / "content/drive/MyDrive").unlink()
    assert platform.home(colab.environment).folder == str(colab.root / "content/drive/My Drive/colabkeep")


@pytest.mark.parametrize("state", ["dead", "silent"])
def test_a_broken_drive_is_no_home(machine, platform, impatient, state):
    """Dead or hanging: it is said that it cannot be reached, and nobody waits for it for long."""
    home = platform.home(machine(drive=state).environment)
    assert home.persists is False
    assert "cannot be reached" in home.reason
    assert "drive" not in home.storage.removeprefix("/").split("/")
    assert "colabkeep.mount()" in home.remedy


def test_a_healthy_drive_is_found_beside_a_dead_one(machine, platform):
    """A second mount leaves a dead entry of the first in the table; the living one is used, wherever it stands."""
    for points in (("/content/drive", "/content/gdrive"), ("/content/gdrive", "/content/drive")):
        colab = machine()
        colab.set_drive(points[0], "mounted")
        colab.set_drive(points[1], "dead")
        assert platform.home(colab.environment).folder == f"{colab.root}{points[0]}/MyDrive/colabkeep"


def test_a_folder_called_my_drive_is_not_drive(machine, platform):
    """A program that made /content/drive/MyDrive itself has written to a disk that vanishes. It is told."""
    colab = machine()
    colab.write("/content/drive/MyDrive/model.pt", "40 hours of training")
    home = platform.home(colab.environment)
    assert home.persists is False
    assert "ordinary folder" in home.reason
    assert home.storage == str(colab.root / "content/colabkeep-local")


@pytest.mark.parametrize("table", ["", "\x00\xff garbage\n", "drive /content/drive fuse rw 0 0\n"])
def test_a_drive_that_the_table_does_not_name_is_used_and_doubted(machine, platform, table):
    """No mount table, a garbled one, or another word for the type: used, since it is there, but not vouched for."""
    colab = machine(drive="mounted")
    colab.write("/proc/mounts", table)
    home = platform.home(colab.environment)
    assert home.folder == str(colab.root / "content/drive/MyDrive/colabkeep")
    assert home.persists is None
    assert "drive.google.com" in home.remedy


def test_enterprise_and_the_docker_runtime_say_what_lasts_there(machine, platform):
    """Enterprise keeps nothing by itself; a container keeps until it is removed. Each names its way out."""
    enterprise = platform.home(machine(kind="enterprise").environment)
    assert enterprise.persists is False
    assert "bucket" in enterprise.remedy
    local = platform.home(machine(kind="local").environment)
    assert local.persists is None
    assert "docker run -v" in local.remedy
