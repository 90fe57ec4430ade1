"""What the check withstands: tools that hang or talk nonsense, dead disks, odd clocks. It answers in bounded time."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import colabkeep
from colabkeep.core.system import Environment, SystemClock
from colabkeep.ui.check.facts import PATIENCE, gather
from tests.fakes.devices import FakeCard, fake_device_files, fake_mac, fake_pci_device

DEADLINE = 20.0  # seconds; four times the five that are promised, for a busy machine
TORCH = "torch 2.10.0+cu128"


@pytest.fixture
def in_time(world):
    """Runs a check in a thread, so that one that hangs fails its test instead of hanging it."""

    def run(environment: Environment):
        reports: list[object] = []
        thread = threading.Thread(target=lambda: reports.append(world.check(environment)), daemon=True)
        thread.start()
        thread.join(DEADLINE)
        assert not thread.is_alive(), "the check hangs"
        (report,) = reports
        return report

    return run


@pytest.fixture
def silent():
    """Makes a file that never answers: a pipe that nobody writes to. Readers are let go at the end."""
    made: list[Path] = []

    def make(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        made.append(path)

    yield make
    for path in made:
        os.close(os.open(path, os.O_RDWR))


def judged(report):
    told = report.to_dict()
    return told["accelerators"], told["verdict"], told["advice"][0]["code"]


@pytest.mark.parametrize("does", ["garbage", "empty", "truncated", "always localised", "fails", "lost", "endless"])
def test_nonsense_of_the_driver_s_tool_is_no_card_and_not_none(world, in_time, does):
    """No card is made up, and nobody is told that none is attached: it could not be told, and what to do is said."""
    world.install(TORCH)
    report = in_time(world.start("colab", ["Tesla T4"], does=does))
    assert judged(report) == ([], "keep", "accelerator-not-told")
    assert "nvidia-smi" in str(report)


@pytest.mark.parametrize("does", ["no driver", "no library", "no devices"])
def test_a_machine_without_a_driver_or_a_card_is_sent_to_enable_one(world, in_time, does):
    """The tool is in the images of sessions without a GPU, too; there its complaint means what it says."""
    world.install(TORCH)
    environment = world.start("colab", ["Tesla T4"], does=does)
    assert judged(in_time(environment)) == ([], "enable", "gpu-not-enabled")
    fake_device_files(environment.root, "nvidia0")
    report = in_time(environment)
    if does == "no devices":
        assert judged(report) == ([], "keep", "accelerator-not-told"), "the kernel shows a card"
    else:
        assert judged(report) == ([], "unusable", "gpu-not-usable"), "the kernel shows a card, and its driver is down"
        assert "exit code" in report.checkup.verdict.reason
        assert "Disconnect and delete runtime" in report.checkup.verdict.action


@pytest.mark.parametrize("does", ["hangs", "ignores SIGTERM", "hangs with a child", "closes and hangs"])
def test_a_driver_s_tool_that_hangs_is_given_up(world, in_time, does):
    """The rest of the report is there all the same, and a GPU that may be good is not called missing."""
    world.install(TORCH)
    report = in_time(world.start("kaggle", ["Tesla T4"], does=does))
    assert judged(report) == ([], "keep", "accelerator-not-told")
    assert report.to_dict()["storage"]["free_bytes"] > 0


def test_a_driver_updated_under_way_asks_for_a_new_machine(world):
    """The tool knows what is wrong, so the check says it, and the one thing that helps."""
    world.install(TORCH)
    report = world.check(world.start("colab", ["Tesla T4"], does="mismatch"))
    assert judged(report) == ([], "unusable", "gpu-not-usable")
    assert "different versions" in report.checkup.verdict.reason
    assert "Restart the machine" in report.checkup.verdict.action
    assert "Disconnect and delete runtime" in report.checkup.verdict.action


@pytest.mark.parametrize("value", ["", "-1", "NoDevFiles", "1", "7", "0,0", "all", "GPU-dead", "nan"])
def test_a_gpu_that_a_variable_hides_is_not_called_missing(world, value):
    """However the variable names no card: it is told as it is set, and nobody is sent to enable what is there."""
    world.install(TORCH)
    report = world.check(world.start("colab", ["Tesla T4"], environ={"CUDA_VISIBLE_DEVICES": value}))
    assert judged(report) == ([], "keep", "gpus-hidden")
    assert f"CUDA_VISIBLE_DEVICES={value!r}" in report.checkup.verdict.reason


@pytest.mark.parametrize("mark", ["/.dockerenv", "container=podman", "KUBERNETES_SERVICE_HOST=10.0.0.1"])
@pytest.mark.parametrize("installed", [TORCH, "torch 2.10.0+cpu"])
def test_a_container_that_was_handed_no_card_is_told_how_to_get_it(world, mark, installed):
    """A torch for GPUs in a container: the host may have one. A torch for the CPU was chosen, and nothing is said."""
    world.install(installed)
    name, _, value = mark.partition("=")
    environment = world.start("script", environ={} if mark.startswith("/") else {name: value})
    if mark.startswith("/"):
        environment.path(mark).touch()
    report = world.check(environment)
    if installed == TORCH:
        assert judged(report) == ([], "keep", "gpu-not-handed-over")
        assert "--gpus all" in str(report)
    else:
        assert judged(report) == ([], "keep", "no-gpu-here")


def test_an_apple_processor_has_a_gpu(world, tmp_path):
    """Nobody is told that there is none; how torch calls it is said."""
    world.install("torch 2.10.0")
    report = world.check(fake_mac(tmp_path / "mac"))
    (told,), word, code = judged(report)
    assert (told["kind"], told["name"], told["memory_bytes"]) == ("mps", "Apple M2 Pro GPU", 16 << 30)
    assert (word, code) == ("keep", "unknown-card")
    assert 'model.to("mps")' in str(report)
    assert "No GPU" not in str(report)


@pytest.mark.parametrize(
    ("installed", "word", "code"),
    [
        ("torch 2.10.0+xpu", "keep", "unknown-card"),
        ("torch 2.10.0+cpu", "unusable", "cpu-build"),
        (TORCH, "unusable", "cpu-build"),
    ],
)
def test_a_card_of_intels_needs_a_torch_for_it(world, installed, word, code):
    """It is found, and a torch that cannot use it is named with the one that can."""
    world.install(installed)
    environment = world.start("script")
    fake_device_files(environment.root, "dri/renderD128")
    fake_pci_device(environment.root, "0000:03:00.0", vendor="0x8086", device="0x56a0", kind="0x030000")
    report = world.check(environment)
    assert judged(report)[1:] == (word, code)
    assert ("whl/xpu" if word == "unusable" else 'model.to("xpu")') in report.checkup.verdict.action


def test_graphics_built_into_an_intel_processor_are_not_called_missing(world):
    """The bus does not tell whether they compute; a torch that was installed for them does."""
    world.install("torch 2.10.0+xpu")
    report = world.check(world.start("script"))
    assert judged(report) == ([], "keep", "accelerator-not-told")
    assert "torch.xpu.is_available()" in str(report)
    assert "No GPU" not in str(report)


def test_nothing_is_hidden_where_there_is_nothing(world):
    """A variable set on a machine without a GPU does not keep the way to get one from being said."""
    world.install(TORCH)
    report = world.check(world.start("colab", environ={"CUDA_VISIBLE_DEVICES": ""}))
    assert judged(report) == ([], "enable", "gpu-not-enabled")


def test_a_card_in_mig_mode_without_a_slice_is_named(world):
    """It is there and cannot be used: the card and the command are said, instead of "no GPU"."""
    world.install(TORCH)
    bare = FakeCard(name="NVIDIA A100-SXM4-40GB", memory_mib=40960, capability=(8, 0), divisible=True)
    report = world.check(world.start("script", [bare]))
    assert judged(report) == ([], "unusable", "gpu-not-usable")
    assert "NVIDIA A100-SXM4-40GB" in str(report)
    assert "nvidia-smi mig -cgi" in str(report)


def test_a_clock_that_never_answers_costs_only_the_session_s_time(world, in_time, silent):
    """A /proc file that blocks its reader: the card is judged, and it is said what could not be told."""
    world.install(TORCH)
    environment = world.start("colab", ["Tesla T4"])
    silent(environment.root / "proc/uptime")
    report = in_time(environment)
    assert report.to_dict()["verdict"] == "keep"
    assert report.to_dict()["session"] == {"used_s": None, "limit_s": None, "left_s": None, "confidence": "low"}
    assert "The check could not find out: the session's time (no answer in time)" in str(report)


def test_a_drive_that_never_answers_is_no_place_for_checkpoints(world, in_time):
    """A mount whose every look blocks: the card is judged, and checkpoints are said to be lost as things stand."""
    world.install(TORCH)
    report = in_time(world.start("colab", ["Tesla T4"], drive="silent"))
    assert (report.to_dict()["verdict"], report.to_dict()["storage"]["persistent"]) == ("keep", False)
    assert "colabkeep.mount()" in str(report)


def test_a_disk_that_never_says_how_full_it_is(world, in_time, monkeypatch):
    """The place of checkpoints is told, its free space is unknown."""
    world.install(TORCH)
    environment = world.start("kaggle", ["Tesla T4"])
    released = threading.Event()
    monkeypatch.setattr(os, "statvfs", lambda _: released.wait())
    report = in_time(environment)
    released.set()
    assert report.to_dict()["storage"]["url"].endswith("/kaggle/working/colabkeep-runs")
    assert report.to_dict()["storage"]["free_bytes"] is None


@pytest.mark.parametrize("part", ["find_platform", "installed_build", "session_time", "_free_bytes", "usable_cpus"])
def test_one_part_that_hangs_takes_nothing_else_with_it(world, monkeypatch, part):
    """Whatever hangs, the card is told, and all that does not depend on what hangs."""
    world.install(TORCH)
    environment = world.start("kaggle", ["Tesla T4"])
    released = threading.Event()
    monkeypatch.setattr(f"colabkeep.ui.check.facts.{part}", lambda *_, **__: released.wait())
    facts = gather(environment, SystemClock(), patience=PATIENCE / 2)
    released.set()
    assert facts.devices is not None
    assert [one.accelerator.name for one in facts.devices] == ["Tesla T4"]
    known = {
        "find_platform": facts.home is not None,
        "installed_build": facts.build is not None,
        "session_time": facts.session is not None,
        "_free_bytes": facts.free_bytes is not None,
        "usable_cpus": facts.cpus is not None,
    }
    assert [name for name, told in known.items() if not told] == (
        ["find_platform", "session_time", "_free_bytes"] if part == "find_platform" else [part]
    )
    assert all("no answer in time" in line for line in facts.unanswered)


def test_everything_hanging_at_once_is_still_one_deadline(world, in_time, silent):
    """Tool, clock and mounts block together: the deadlines do not add up."""
    world.install(TORCH)
    environment = world.start("colab", ["Tesla T4"], does="hangs", drive="silent")
    for name in ("uptime", "mounts", "stat", "self/stat", "self/status"):
        silent(environment.root / "proc" / name)
    begun = time.monotonic()
    report = in_time(environment)
    assert time.monotonic() - begun < 3 * PATIENCE
    assert report.to_dict()["advice"][-1]["code"] == "check-incomplete"


def test_a_dead_drive_is_reported_with_the_way_out(world):
    """Errno 107: checkpoints would not reach Drive, and the next line to type is said."""
    world.install(TORCH)
    report = world.check(world.start("colab", ["Tesla T4"], drive="dead"))
    assert report.to_dict()["storage"]["persistent"] is False
    assert "colabkeep.mount()" in str(report)


def test_a_platform_that_is_not_known_is_told_and_nothing_raised(world):
    """A misspelt COLABKEEP_PLATFORM is named with the names there are; the card is judged all the same."""
    world.install(TORCH)
    report = world.check(world.start("script", ["Tesla T4"], environ={"COLABKEEP_PLATFORM": "collab"}))
    assert report.to_dict()["platform"]["name"] == "unknown"
    assert report.to_dict()["verdict"] == "keep"
    assert "COLABKEEP_PLATFORM='collab'" in str(report)
    assert "kaggle" in str(report)


def test_a_machine_without_anything_has_a_report(world, tmp_path):
    """No root, no folder, no variables: everything unknown, nothing raised."""
    world.install()
    nowhere = Environment(environ={}, root=tmp_path / "no", folder=tmp_path / "no" / "where")
    report = world.check(nowhere)
    assert report.to_dict()["verdict"] == "keep"
    assert report.to_dict()["storage"]["free_bytes"] > 0, "of the disk that would hold it"


def test_a_google_colab_that_cannot_be_imported_is_not_imported(world, in_time):
    """The check asks nothing of Colab's package, so whatever an import of it would do does not happen."""
    imported = []
    world.install(TORCH)
    report = in_time(world.start("colab", ["Tesla T4"], on_import=lambda: imported.append(True)))
    assert report.to_dict()["platform"]["name"] == "colab"
    assert imported == []


def test_no_network_is_touched(world, monkeypatch):
    """Not a socket is opened, not a name looked up."""
    asked: list[object] = []
    world.install(TORCH)
    environment = world.start("colab", ["Tesla T4"], drive="mounted")
    for name in ("socket", "create_connection", "getaddrinfo", "gethostbyname"):
        monkeypatch.setattr(socket, name, lambda *words, name=name, **_: asked.append(name))
    assert world.check(environment).to_dict()["verdict"] == "keep"
    assert asked == []


POISONED = """
import sys
import torch
def poisoned(*_, **__):
    raise AssertionError("CUDA is initialised")
for name in ("_cuda_init", "_cuda_getDeviceCount", "_cuda_getArchFlags"):
    setattr(torch._C, name, poisoned)
torch.cuda._lazy_init = poisoned
import colabkeep
report = colabkeep.check()
print(report.to_dict()["verdict"], torch.cuda.is_initialized(), report.checkup.facts.unanswered)
"""
BARE = """
import sys
import colabkeep
print(colabkeep.check().to_dict()["verdict"], *({"torch", "paddle", "numpy", "google", "requests"} & set(sys.modules)))
"""


@pytest.mark.parametrize(("program", "said"), [(POISONED, "keep False ()"), (BARE, "keep")])
def test_no_framework_is_imported_and_cuda_is_left_alone(program, said, tmp_path):
    """Beside a loaded torch nothing of CUDA is called; where none is loaded, none is after the check."""
    environ = {**os.environ, "COLABKEEP_PLATFORM": "script", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, said), done.stderr


def test_a_part_that_fails_is_named_in_the_report(world, monkeypatch):
    """A bug in one part is a line for the user, not the end of the notebook."""
    world.install(TORCH)
    environment = world.start("kaggle", ["Tesla T4"])
    monkeypatch.setattr("colabkeep.ui.check.facts.usable_cpus", lambda _: 1 // 0)
    report = world.check(environment)
    assert "the CPUs (ZeroDivisionError" in str(report)
    assert report.to_dict()["verdict"] == "keep"


def test_nothing_is_written(world):
    """Looking leaves the machine as it was."""
    world.install(TORCH)
    environment = world.start("kaggle", ["Tesla T4"])
    before = sorted(environment.root.rglob("*"))
    world.check(environment)
    assert sorted(environment.root.rglob("*")) == before


def test_the_folder_of_the_notebook_may_be_gone(tmp_path):
    """A deleted current folder, as after `rm -rf` of a clone, is no reason to raise."""
    folder = tmp_path / "gone"
    folder.mkdir()
    program = f"import os, colabkeep; os.chdir({str(folder)!r}); os.rmdir({str(folder)!r}); print(colabkeep.check())"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "CPU" in done.stdout


def test_what_hangs_does_not_hold_up_the_end_of_the_process(tmp_path, silent):
    """A thread stuck in a dead mount is left behind: the program ends by itself, with its own status."""
    silent(tmp_path / "proc/uptime")
    program = f"""
from pathlib import Path
from colabkeep.ui.check.facts import gather
from colabkeep.core.system import SystemClock
from colabkeep.core.system import Environment
root = Path({str(tmp_path)!r})
print(gather(Environment(environ={{}}, root=root, folder=root), SystemClock(), patience=0.5).unanswered)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=DEADLINE
    )
    assert done.returncode == 0, done.stderr
    assert "the session's time (no answer in time)" in done.stdout


@pytest.mark.parametrize(
    "words", [{"probe": "yes"}, {"previous": "Tesla K80"}, {"previous": [1]}, {"previous": None}], ids=str
)
def test_arguments_that_cannot_be_meant_are_refused(words):
    """A name where a list belongs, and the like."""
    with pytest.raises(colabkeep.ColabKeepError) as caught:
        colabkeep.check(**words)
    assert isinstance(caught.value, ValueError)
    assert caught.value.remedy
