"""`find_accelerators` asks one way after the other, in bounded time, and never starts CUDA."""

from __future__ import annotations

import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from colabkeep.hardware import find_accelerators
from colabkeep.hardware.base import Hidden, Trouble
from colabkeep.hardware.nvidia import MISMATCH
from colabkeep.testing.hardware import machine
from tests.fakes.devices import fake_device_files, fake_nvidia_smi, fake_nvml, fake_pci_device, fake_tpu


def ways(environment, timeout=30.0):
    return [(one.name, one.found_by) for one in find_accelerators(environment, timeout=timeout)]


def test_the_library_is_asked_first(tmp_path, monkeypatch):
    """It is the quickest; the program is not started when the library has told."""
    fake_device_files(tmp_path, "nvidiactl")
    fake_nvidia_smi(tmp_path / "usr/bin", ["Tesla P100-PCIE-16GB"])
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(["Tesla T4"]))
    assert ways(machine(tmp_path)) == [("Tesla T4", "nvml")]


@pytest.mark.parametrize("trouble", ["absent", "broken", "failing", "hanging"])
def test_the_program_is_asked_when_the_library_is_in_trouble(tmp_path, monkeypatch, trouble):
    """Not installed, installed for something else, failing, or never answering: the card is found all the same."""
    module = {
        "absent": None,
        "broken": SimpleNamespace(),
        "failing": fake_nvml(fails="nvmlInit", error="LibRmVersionMismatch"),
        "hanging": fake_nvml(hangs="nvmlInit"),
    }[trouble]
    fake_device_files(tmp_path, "nvidiactl")
    fake_nvidia_smi(tmp_path / "usr/bin", ["Tesla T4"])
    monkeypatch.setitem(sys.modules, "pynvml", module)
    assert ways(machine(tmp_path), timeout=6.0) == [("Tesla T4", "nvidia-smi")]


def test_a_framework_in_use_is_asked_last(tmp_path, monkeypatch):
    """Where the driver's tools are missing, a torch that has started CUDA tells what it sees, and no other."""
    card = SimpleNamespace(name="Tesla T4", total_memory=15828320256, major=7, minor=5)
    cuda = SimpleNamespace(is_initialized=lambda: False, device_count=lambda: 1, get_device_properties=lambda _: card)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip=None)))
    assert ways(machine(tmp_path)) == []
    cuda.is_initialized = lambda: True
    assert ways(machine(tmp_path)) == [("Tesla T4", "loaded")]
    fake_nvidia_smi(tmp_path / "usr/bin", ["Tesla T4"])
    assert ways(machine(tmp_path)) == [("Tesla T4", "nvidia-smi")]


def test_no_visible_card_is_the_last_word(tmp_path, monkeypatch):
    """With CUDA_VISIBLE_DEVICES="" the answer is that: no other way is asked until one contradicts."""
    fake_nvidia_smi(tmp_path / "usr/bin", ["Tesla T4"])
    card = SimpleNamespace(name="Tesla T4", total_memory=15828320256, major=7, minor=5)
    cuda = SimpleNamespace(is_initialized=lambda: True, device_count=lambda: 1, get_device_properties=lambda _: card)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip=None)))
    hidden = Hidden(variable="CUDA_VISIBLE_DEVICES", value="", count=1)
    assert find_accelerators(machine(tmp_path, CUDA_VISIBLE_DEVICES=""), timeout=30.0) == hidden


def test_a_tpu_machine_with_a_broken_program_still_has_its_tpu(tmp_path):
    """Trouble with one family of devices does not hide another."""
    for does in ("no driver", "garbage"):
        fake_tpu(tmp_path / does, "v5e")
        fake_nvidia_smi(tmp_path / does / "usr/bin", ["Tesla T4"], does=does)
        assert ways(machine(tmp_path / does)) == [("TPU v5 lite", "tpu")]


def test_what_nobody_could_tell_is_not_nothing(tmp_path, monkeypatch):
    """A driver's tool in trouble is told, whatever the other ways do not find; no driver at all is no GPU."""
    fake_nvidia_smi(tmp_path / "usr/bin", ["Tesla T4"], does="mismatch")
    fake_device_files(tmp_path, "kfd")  # AMD's door, with no card of theirs behind it
    assert find_accelerators(machine(tmp_path), timeout=30.0) == MISMATCH
    fake_nvidia_smi(tmp_path / "usr/bin", ["Tesla T4"], does="no driver")
    assert find_accelerators(machine(tmp_path), timeout=30.0) == ()
    fake_device_files(tmp_path, "nvidiactl")
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(["Tesla T4"], fails="nvmlInit"))
    assert isinstance(find_accelerators(machine(tmp_path), timeout=30.0), Trouble)


@pytest.mark.parametrize("does", ["no driver", "no library", "no devices"])
@pytest.mark.parametrize("sign", ["its device file", "the bus"])
def test_a_card_that_the_kernel_shows_is_a_second_witness(tmp_path, does, sign):
    """A driver that is down on a machine with a card is trouble, though its tool says that there is none."""
    fake_nvidia_smi(tmp_path / "usr/bin", ["Tesla T4"], does=does)
    assert find_accelerators(machine(tmp_path), timeout=30.0) == ()
    if sign == "the bus":
        fake_pci_device(tmp_path, "0000:00:04.0", vendor="0x10de", device="0x1eb8", kind="0x030200")
    else:
        fake_device_files(tmp_path, "nvidia0", "nvidiactl")
    told = find_accelerators(machine(tmp_path), timeout=30.0)
    assert isinstance(told, Trouble)
    assert ("0000:00:04.0" if sign == "the bus" else "/dev/nvidia0") in told.problem


def test_a_device_file_without_any_tool_is_a_card_that_nobody_names(tmp_path):
    """A slim container that was handed the card computes on it; it is not told that it has none."""
    fake_device_files(tmp_path, "nvidia0")
    assert isinstance(find_accelerators(machine(tmp_path)), Trouble)


def test_the_bus_of_the_host_is_no_card_of_a_container(tmp_path):
    """One that was not handed the card is shown it all the same, and so is a laptop without a driver."""
    fake_pci_device(tmp_path, "0000:00:04.0", vendor="0x10de", device="0x1eb8", kind="0x030200")
    assert find_accelerators(machine(tmp_path)) == ()
    fake_nvidia_smi(tmp_path / "other/usr/bin", [], does="no driver")
    fake_pci_device(tmp_path / "other", "0000:00:04.1", vendor="0x10de", device="0x10f8", kind="0x040300")
    assert find_accelerators(machine(tmp_path / "other"), timeout=30.0) == (), "its sound is not a card"


@pytest.mark.parametrize("part", ["import", "framework"])
def test_libraries_that_hang_are_given_up(tmp_path, monkeypatch, part):
    """A package that hangs while it is imported, and a framework whose driver died, do not hang the notebook."""
    released = threading.Event()
    fake_device_files(tmp_path, "nvidiactl")
    if part == "import":
        monkeypatch.setattr("colabkeep.hardware.nvidia.import_module", lambda _: released.wait())
    else:
        cuda = SimpleNamespace(is_initialized=lambda: True, device_count=released.wait)
        monkeypatch.setitem(sys.modules, "pynvml", None)
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip=None)))
    answers = []
    asking = threading.Thread(
        target=lambda: answers.append(find_accelerators(machine(tmp_path), timeout=0.5)), daemon=True
    )
    asking.start()
    asking.join(10.0)
    released.set()
    assert [type(answer) for answer in answers] == [Trouble]


def test_a_package_that_ends_its_thread_tells_nothing(tmp_path, monkeypatch):
    """A broken pynvml may even exit; the next way is asked at once."""
    fake_device_files(tmp_path, "nvidiactl")
    fake_nvidia_smi(tmp_path / "usr/bin", ["Tesla T4"])
    monkeypatch.setattr("colabkeep.hardware.nvidia.import_module", lambda _: sys.exit("broken"))
    assert ways(machine(tmp_path)) == [("Tesla T4", "nvidia-smi")]


def test_a_process_that_may_have_no_more_threads_is_no_error(tmp_path, monkeypatch):
    """Asking the library needs one; the program does not."""
    fake_device_files(tmp_path, "nvidiactl")
    fake_nvidia_smi(tmp_path / "usr/bin", ["Tesla T4"])
    monkeypatch.setattr("colabkeep.core.timeouts.Thread.start", lambda _: _refuse())
    assert ways(machine(tmp_path)) == [("Tesla T4", "nvidia-smi")]


def _refuse():
    raise RuntimeError("can't start new thread")


def test_everything_hanging_at_once_is_given_up(tmp_path, monkeypatch):
    """The time limit holds for all ways of asking together; what needs no asking is found even then."""
    fake_device_files(tmp_path, "nvidiactl")
    fake_nvidia_smi(tmp_path / "usr/bin", ["Tesla T4"], does="ignores SIGTERM")
    fake_tpu(tmp_path, "v5e")
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(hangs="nvmlDeviceGetCount"))
    answers = []
    asking = threading.Thread(target=lambda: answers.append(ways(machine(tmp_path), timeout=1.0)), daemon=True)
    asking.start()
    asking.join(10.0)
    assert answers == [[("TPU v5 lite", "tpu")]]


PROGRAM = """
import sys
from pathlib import Path
from colabkeep.hardware import find_accelerators
from colabkeep.core.system import Environment

def look():
    here = Environment.here()
    find_accelerators(here)
    found = find_accelerators(Environment(environ={"PATH": "/usr/bin"}, root=Path(sys.argv[1]), folder=here.folder,
                                          modules=here.modules))
    assert [one.name for one in found] == ["Tesla T4"], found

look()
assert not {"torch", "paddle", "jax", "tensorflow", "numpy"} & {name.partition(".")[0] for name in sys.modules}

import torch
started = []
def start(*arguments, **named):
    started.append(arguments)
    raise AssertionError("CUDA was started")
torch.cuda._lazy_init = start
for name in ("_cuda_init", "_cuda_getDeviceCount", "_cuda_setDevice", "_cuda_getDevice", "_cuda_getArchFlags"):
    setattr(torch._C, name, start)
torch.cuda.is_available = torch.cuda.get_device_properties = torch.cuda.mem_get_info = torch.cuda.device_count = start
look()
assert not torch.cuda.is_initialized()
assert started == [], started
"""


def test_cuda_is_not_started_and_torch_not_imported(tmp_path):
    """Before torch is imported it stays unimported; after that, none of its calls that start CUDA is made."""
    fake_nvidia_smi(tmp_path / "usr/bin", ["Tesla T4"])
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], check=False, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
