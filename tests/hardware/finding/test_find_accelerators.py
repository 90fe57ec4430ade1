"""`find_accelerators` asks one way after the other, in bounded time, and never starts CUDA."""

from __future__ import annotations

import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from colabkeep.hardware import find_accelerators
from colabkeep.testing.hardware import fake_device_files, fake_nvidia_smi, fake_nvml, fake_tpu, machine


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
    """With CUDA_VISIBLE_DEVICES="" the answer is none: no other way is asked until one contradicts."""
    fake_nvidia_smi(tmp_path / "usr/bin", ["Tesla T4"])
    card = SimpleNamespace(name="Tesla T4", total_memory=15828320256, major=7, minor=5)
    cuda = SimpleNamespace(is_initialized=lambda: True, device_count=lambda: 1, get_device_properties=lambda _: card)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip=None)))
    assert ways(machine(tmp_path, CUDA_VISIBLE_DEVICES="")) == []


def test_a_tpu_machine_with_a_broken_program_still_has_its_tpu(tmp_path):
    """Trouble with one family of devices does not hide another."""
    fake_nvidia_smi(tmp_path / "usr/bin", ["Tesla T4"], does="no driver")
    fake_tpu(tmp_path, "v5e")
    assert ways(machine(tmp_path)) == [("TPU v5 lite", "tpu")]


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
from colabkeep.vocabulary.environment import Environment

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
