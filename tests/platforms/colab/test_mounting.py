"""`mount` brings Drive up, harms no Drive that is up, and says the next click when it cannot."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib import import_module
from multiprocessing import get_context

import pytest

from colabkeep.core.errors import MountError
from colabkeep.platforms.colab import drive, page
from colabkeep.testing.faults import raising
from tests.fakes.platforms.colab import fake_colab

BOUND = 30.0  # seconds; several times what any of these may take, for a call that hangs


def refused(platform, colab, timeout=BOUND) -> str:
    """The text of the error, after looking that it is one that helps."""
    with pytest.raises(MountError) as caught:
        platform.mount(colab.environment, timeout=timeout)
    assert isinstance(caught.value, OSError)
    assert len(caught.value.remedy) > 20
    return str(caught.value)


def mounts_asked(colab) -> list[str]:
    return [call for call in colab.calls if call.startswith("drive.mount")]


@pytest.mark.parametrize("front_end", ["answers", "late", "vscode"])
def test_a_user_who_agrees_has_a_home_in_drive(machine, platform, front_end):
    """One call, in the browser, in VS Code, and from a user who takes a moment."""
    colab = machine(front_end=front_end)
    home = platform.mount(colab.environment, timeout=BOUND)
    assert home == platform.home(colab.environment)
    assert home.persists is True
    (call,) = mounts_asked(colab)
    assert call.startswith("drive.mount(/content/drive, force_remount=False")


@pytest.mark.parametrize("point", ["/content/drive", "/content/gdrive"])
def test_a_healthy_drive_is_left_alone(machine, platform, point):
    """Wherever it is mounted, nobody is asked, nothing is mounted beside it, and no upload is killed."""
    colab = machine()
    colab.set_drive(point, "mounted")
    home = platform.mount(colab.environment, timeout=BOUND)
    assert home.folder == f"{colab.root}{point}/MyDrive/colabkeep"
    assert colab.calls == []
    assert colab.mounts == {point: "mounted"}


@pytest.mark.parametrize("point", ["/content/drive", "/content/gdrive"])
def test_a_dead_drive_comes_back_in_its_own_place(machine, platform, point):
    """Errno 107 after nine hours: a plain mount at the same place, never by force."""
    colab = machine()
    colab.set_drive(point, "dead")
    assert platform.mount(colab.environment, timeout=BOUND).persists is True
    assert colab.mounts == {point: "mounted"}
    (call,) = mounts_asked(colab)
    assert call.startswith(f"drive.mount({point}, force_remount=False")


def test_a_drive_that_hangs_is_not_killed(machine, platform, impatient):
    """It may still be uploading: the user is told, and Colab, which would kill it, is not asked."""
    colab = machine(drive="silent")
    text = refused(platform, colab)
    assert "does not answer" in text
    assert "flush_and_unmount" in text
    assert colab.calls == []


def test_a_drive_that_hangs_is_not_killed_for_a_dead_one(machine, platform, impatient):
    """Of two broken mounts the one whose program may live decides, in whichever order they stand."""
    for points in (("/content/drive", "/content/gdrive"), ("/content/gdrive", "/content/drive")):
        colab = machine()
        colab.set_drive(points[0], "silent")
        colab.set_drive(points[1], "dead")
        assert f"mounted at {points[0]} but does not answer" in refused(platform, colab)
        assert colab.calls == []


def test_a_drive_that_shows_no_files_is_not_killed(machine, platform):
    """Its program lives, and has not read the folder yet: nobody mounts over it, and its uploads go on."""
    colab = machine(drive="empty")
    text = refused(platform, colab, timeout=0.6)
    assert "does not answer (No such file or directory)" in text
    assert colab.calls == []
    assert colab.mounts == {"/content/drive": "empty"}


def test_a_drive_that_shows_no_files_yet_is_waited_for(machine, platform):
    """A moment later they are there, and nobody was asked."""
    colab = machine(drive="empty")
    soon = threading.Timer(0.4, colab.set_drive, ("/content/drive", "mounted"))
    soon.start()
    home = platform.mount(colab.environment, timeout=BOUND)
    soon.join()
    assert home.persists is True
    assert colab.calls == []


def test_outside_the_notebook_nobody_is_asked(machine, platform):
    """`!python train.py` gets the line for a cell, and not an AttributeError about None."""
    colab = machine(kind="process")
    text = refused(platform, colab)
    assert "program of its own" in text
    assert "colabkeep.mount()" in text
    assert colab.calls == []


def test_a_thread_does_not_ask(machine, platform):
    """Two threads that wait for Colab's answers hang each other; a healthy Drive is had from a thread too."""
    colab = machine()
    with ThreadPoolExecutor(1, thread_name_prefix="saver") as pool:
        assert "the thread 'saver_0'" in pool.submit(refused, platform, colab).result(BOUND)
        assert colab.calls == []
        colab.set_drive("/content/drive", "mounted")
        assert pool.submit(platform.mount, colab.environment, timeout=BOUND).result(BOUND).persists is True


def report_reachability(environment, queue) -> None:
    queue.put(page.why_unreachable(environment))


def test_a_child_process_does_not_ask(machine):
    """A forked loader worker inherits the shell's look, but the page answers its parent."""
    context = get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=report_reachability, args=(machine().environment, queue))
    child.start()
    child.join(BOUND)
    assert "child process" in queue.get()


@pytest.mark.parametrize(
    ("words", "problem", "remedy"),
    [
        ({"front_end": "refuses"}, "refused", "Connect to Google Drive"),
        ({"drivefs": "stops"}, "the permission was given, and then Drive's own program did not start", "new machine"),
        ({"drivefs": "times out"}, "the permission was given, and then Drive's own program", "new machine"),
        ({"drivefs": "is forbidden"}, "administrator", "another Google account"),
        ({"drivefs": "reads too long"}, "so many files", "into folders"),
        ({"on_import": raising(RuntimeError("broken pip"))}, "RuntimeError: broken pip", "Restart session"),
        ({"on_import": raising(ModuleNotFoundError("No module named 'google.colab'"))}, "cannot be", "Restart session"),
        ({"on_import": raising(SystemExit(3))}, "SystemExit: 3", "Restart session"),
    ],
    ids=lambda value: re.sub(r" at 0x\w+", "", str(value)),
)
def test_each_failure_has_its_own_next_click(machine, platform, words, problem, remedy):
    """What Colab raises for it, or does not raise, becomes a sentence and what to do."""
    colab = machine(**words)
    colab.pace = 0.001
    text = refused(platform, colab)
    assert problem in text
    assert remedy in text
    assert "nothing would outlive this machine" in text


def put_a_file(colab) -> None:
    colab.write("/content/drive", "x")


def put_a_link(colab) -> None:
    (colab.root / "content/drive").symlink_to(colab.account)


def put_files(colab) -> None:
    colab.write("/content/drive/MyDrive/model.pt", "40 hours of training")


def take_the_folder(colab) -> None:
    (colab.root / "content").rename(colab.root / "gone")


def take_the_address(colab) -> None:
    del colab.environ["TBE_EPHEM_CREDS_ADDR"]


@pytest.mark.parametrize(
    ("damage", "problem", "remedy"),
    [
        (put_a_file, "is a file", "!mv {point} {point}-file"),
        (put_a_link, "symbolic link", "!rm {point}"),
        (put_files, "not in Drive", "!mv {point} {point}-not-in-drive"),
        (take_the_folder, "folder around", "!mkdir -p"),
        (take_the_address, "TBE_EPHEM_CREDS_ADDR", "Disconnect and delete runtime"),
    ],
)
def test_what_stands_in_the_way_is_named(machine, platform, damage, problem, remedy):
    """Things that notebooks leave at the mount point, each with the line that clears it; the files are not deleted."""
    colab = machine()
    damage(colab)
    text = refused(platform, colab)
    assert problem in text
    assert remedy.format(point=colab.root / "content/drive") in text


def test_a_dead_mount_with_a_blank_in_its_name_can_be_cleared(machine, platform):
    """Colab itself would not mount there again: the way out is shown."""
    colab = machine()
    colab.set_drive("/content/my drive", "dead")
    assert f"!umount -f '{colab.root}/content/my drive'" in refused(platform, colab)


def swapped(monkeypatch, **functions) -> None:
    for name, function in functions.items():
        monkeypatch.setattr(import_module("google.colab.drive"), name, function)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (AttributeError("'NoneType' object has no attribute 'kernel'"), "in a cell of the notebook"),
        (OSError(5, "Input/output error"), "OSError: [Errno 5] Input/output error"),
        (ValueError("something {new} of 2027"), "ValueError: something {new} of 2027"),
        (ValueError("/root/.config/Google must be a directory if present"), "!mv ~/.config/Google"),
    ],
    ids=repr,
)
def test_an_error_nobody_foresaw_is_passed_on_in_words(machine, platform, monkeypatch, error, words):
    """Its type and its text are in the message, and it stays the cause."""
    colab = machine()
    swapped(monkeypatch, mount=lambda mountpoint, **options: raising(error)())
    assert words in refused(platform, colab)
    with pytest.raises(MountError) as caught:
        platform.mount(colab.environment, timeout=BOUND)
    assert caught.value.__cause__ is error


def test_the_stop_button_stops(machine, platform, monkeypatch):
    """KeyboardInterrupt is the user's, and is not made into advice."""
    colab = machine()
    swapped(monkeypatch, mount=lambda mountpoint, **options: raising(KeyboardInterrupt())())
    with pytest.raises(KeyboardInterrupt):
        platform.mount(colab.environment, timeout=BOUND)


@pytest.mark.parametrize("timeout", [0.0, -1.0, 0.2, float("nan"), 1.999, 60.0, float("inf")])
def test_colab_is_always_given_a_deadline(machine, platform, timeout):
    """Its own becomes none at all below 1000 ms, so it never gets less, and never more than the whole."""
    colab = machine()
    platform.mount(colab.environment, timeout=timeout)
    given = int(mounts_asked(colab)[0].split("timeout_ms=")[1].split(",")[0])
    assert 120_000 <= given <= 3_662_000, "Drive's own program keeps this time for the whole session"
    if timeout > 120.0:
        assert given > 1000 * timeout or timeout == float("inf"), "the alarm of the user's time rings first"


@pytest.mark.timeout(BOUND)
def test_a_permission_that_nobody_gives_is_not_waited_for_for_ever(machine, platform, monkeypatch):
    """The user's time, and Drive's own on top; and what to do in each front end."""
    monkeypatch.setattr(drive, "_TO_START", 0.3)
    monkeypatch.setattr(drive, "_SHORTEST", 0.2)
    text = refused(platform, machine(front_end="absent"), timeout=0.2)
    assert "the permission was not given in time" in text
    assert "VS Code" in text
    assert "colabkeep.mount(timeout=300)" in text


@pytest.mark.timeout(BOUND)
@pytest.mark.parametrize("words", [{"drivefs": "hangs"}, {"drivefs": "times out"}], ids=str)
def test_a_drive_that_does_not_come_up_is_ended(machine, platform, monkeypatch, words):
    """After the user's time, and Drive's own on top."""
    monkeypatch.setattr(drive, "_TO_START", 0.3)
    monkeypatch.setattr(drive, "_SHORTEST", 0.2)
    text = refused(platform, machine(**words), timeout=0.2)
    assert "Drive's own program" in text
    assert "take a new machine" in text


def test_the_time_given_is_the_users_alone(machine, platform, monkeypatch):
    """Whoever agrees in the last moment has a Drive, which needs longer than what was left of the time."""
    monkeypatch.setattr(drive, "_SHORTEST", 0.5)
    colab = machine()

    def slow(mountpoint, **options):
        time.sleep(2.2)
        colab.set_drive("/content/drive", "mounted")

    swapped(monkeypatch, mount=slow)
    assert platform.mount(colab.environment, timeout=2.0).persists is True


def test_a_drive_that_shows_its_files_late_is_waited_for_after_the_mount(machine, platform, monkeypatch):
    """Colab says that it is mounted, and My Drive appears a moment later."""
    colab = machine()
    soon = threading.Timer(0.6, colab.set_drive, ("/content/drive", "mounted"))

    def mount(mountpoint, **options):
        colab.set_drive("/content/drive", "empty")
        soon.start()

    swapped(monkeypatch, mount=mount)
    assert platform.mount(colab.environment, timeout=BOUND).persists is True
    soon.join()


@pytest.mark.timeout(BOUND)
def test_an_import_that_never_comes_back_is_ended(machine, platform):
    """The deadline holds for google.colab's own import too, and nobody blames the user for it."""
    text = refused(platform, machine(on_import=partial(threading.Event().wait)), timeout=2.0)
    assert "google.colab.drive: its import did not end within 0.5 s" in text
    assert "Restart session" in text
    assert "permission" not in text


def test_a_drive_that_comes_up_late_counts(machine, platform):
    """The call gave up, and Drive was there after all: the user hears of no failure."""
    colab = machine(drivefs="starts late")
    colab.pace = 0.001
    assert platform.mount(colab.environment, timeout=BOUND).persists is True


def test_a_mount_that_only_says_so_is_not_believed(machine, platform, monkeypatch):
    """Colab returns without an error, and no file of Drive is to be seen."""
    colab = machine()
    swapped(monkeypatch, mount=lambda mountpoint, **options: None)
    assert "cannot be seen" in refused(platform, colab)


def test_the_docker_runtime_keeps_its_own_disk(machine, platform):
    """Colab refuses Drive there at once, and so it is the container's folder, with what to know about it."""
    for kind_of_call in ({}, {"front_end": "absent"}):
        colab = machine(kind="local", **kind_of_call)
        home = platform.mount(colab.environment, timeout=BOUND)
        assert home == platform.home(colab.environment)
        assert home.persists is None
        assert not any("sent" in call for call in colab.calls)
        outside = replace(colab.environment, shell="")
        assert platform.mount(outside, timeout=BOUND) == platform.home(outside)


def test_enterprise_names_the_bucket_and_asks_nobody(machine, platform):
    """There is no Drive to wait for."""
    colab = machine(kind="enterprise")
    assert "bucket" in refused(platform, colab)
    assert colab.calls == []


def test_a_hosted_machine_that_lost_its_mark_can_still_mount(machine, platform, monkeypatch):
    """Should Google rename the mark, Colab's own answer decides."""
    colab = machine()
    (colab.root / "var/colab/hostname").rename(colab.root / "var/colab/name")
    swapped(monkeypatch, mount=lambda mountpoint, **options: colab.set_drive("/content/drive", "mounted"))
    assert platform.mount(colab.environment, timeout=BOUND).persists is True


def test_two_machines_share_one_drive(tmp_path, platform):
    """What the first kept in Drive, the next finds there."""
    with fake_colab(tmp_path) as first:
        folder = platform.mount(first.environment, timeout=BOUND).folder
        first.write(first.inside(folder) + "/note", "kept")
    with fake_colab(tmp_path) as second:
        assert second.root != first.root
        home = platform.mount(second.environment, timeout=BOUND)
        assert second.path(second.inside(home.folder) + "/note").read_text() == "kept"
