"""`find_accelerators` asks one way after the other, in bounded time, and never starts CUDA."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from colabkeep.core.system import Environment
from colabkeep.hardware import find_accelerators
from colabkeep.hardware.base import Hidden, Trouble
from colabkeep.hardware.nvidia import MISMATCH
from tests.fakes.devices import fake_device_files, fake_nvidia_smi, fake_pci_device, fake_tpu, machine


def ways(environment, timeout=30.0):
    return [(one.name, one.found_by) for one in find_accelerators(environment, timeout=timeout)]


def fake_torch(**cuda):
    card = SimpleNamespace(name="Tesla T4", total_memory=15828320256, major=7, minor=5)
    calls = {"is_initialized": lambda: True, "device_count": lambda: 1, "get_device_properties": lambda _: card}
    unused = SimpleNamespace(is_initialized=lambda: False)
    return SimpleNamespace(
        cuda=SimpleNamespace(**{**calls, **cuda}), xpu=unused, version=SimpleNamespace(hip=None), __name__="torch"
    )


@pytest.mark.parametrize("root", ["", "missing"])
def test_a_machine_without_anything_has_nothing(tmp_path, root):
    """No folder, no variable, not even a root: nothing is found, and nothing raised."""
    assert find_accelerators(Environment(environ={}, root=tmp_path / root, folder=tmp_path)) == ()


@pytest.mark.parametrize("place", ["dev", "sys", "sys/bus/pci/devices", "usr", "usr/bin/nvidia-smi", "proc"])
@pytest.mark.parametrize("strange", ["a file", "a folder", "a loop", "a closed folder"])
def test_strange_files_are_no_device(tmp_path, place, strange):
    """A file where a folder belongs, a folder where a program does, a loop of links, no permission."""
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    if strange == "a file":
        path.write_bytes(b"\xff\x00\n")
    elif strange == "a loop":
        path.symlink_to(path)
    else:
        path.mkdir(mode=0o755 if strange == "a folder" else 0)
    try:
        assert find_accelerators(machine(tmp_path)) == ()
    finally:
        if not path.is_symlink():
            path.chmod(0o755)


def test_a_framework_in_use_is_asked_last(tmp_path, monkeypatch):
    """Where the driver's tools are missing, a torch that has started CUDA tells what it sees, and no other."""
    monkeypatch.setitem(sys.modules, "torch", fake_torch(is_initialized=lambda: False))
    assert ways(machine(tmp_path)) == []
    monkeypatch.setitem(sys.modules, "torch", fake_torch())
    assert ways(machine(tmp_path)) == [("Tesla T4", "torch")]
    assert ways(Environment(environ={}, root=tmp_path, folder=tmp_path)) == [], "a test's machine stays its own"
    fake_nvidia_smi(tmp_path / "usr/bin", ["Tesla T4"])
    assert ways(machine(tmp_path)) == [("Tesla T4", "nvidia-smi")]
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    assert ways(machine(tmp_path / "bare")) == [], "half imported"


def test_intels_cards_are_known_by_a_torch_that_uses_them(tmp_path, monkeypatch):
    """It tells names and memory, and those that are built into a processor or lie behind Windows."""
    card = SimpleNamespace(name="Intel(R) Arc(TM) Graphics", total_memory=30 << 30)
    torch = fake_torch(is_initialized=lambda: False)
    torch.xpu = SimpleNamespace(
        is_initialized=lambda: True, device_count=lambda: 1, get_device_properties=lambda _: card
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    (one,) = find_accelerators(machine(tmp_path))
    assert (one.kind, one.name, one.memory_bytes) == ("xpu", card.name, 30 << 30)


def test_a_tpu_machine_with_a_broken_program_still_has_its_tpu(tmp_path):
    """Trouble with one kind of devices does not hide another."""
    for does in ("no driver", "garbage"):
        fake_tpu(tmp_path / does, "v5e")
        fake_nvidia_smi(tmp_path / does / "usr/bin", ["Tesla T4"], does=does)
        assert ways(machine(tmp_path / does)) == [("TPU v5 lite", "kernel")]


def test_what_nobody_could_tell_is_not_nothing(tmp_path):
    """A driver's tool in trouble is told, whatever the other ways do not find; no driver at all is no GPU."""
    fake_nvidia_smi(tmp_path / "usr/bin", ["Tesla T4"], does="mismatch")
    fake_device_files(tmp_path, "kfd")  # AMD's door, with no card of theirs behind it
    assert find_accelerators(machine(tmp_path), timeout=30.0) == MISMATCH
    fake_nvidia_smi(tmp_path / "usr/bin", ["Tesla T4"], does="no driver")
    assert find_accelerators(machine(tmp_path), timeout=30.0) == ()


def test_hidden_cards_are_told_where_nothing_is_left(tmp_path):
    """And where something is, that is told."""
    fake_nvidia_smi(tmp_path / "usr/bin", ["Tesla T4"])
    hidden = Hidden(variable="CUDA_VISIBLE_DEVICES", value="", count=1)
    assert find_accelerators(machine(tmp_path, CUDA_VISIBLE_DEVICES=""), timeout=30.0) == hidden
    fake_tpu(tmp_path, "v5e")
    assert ways(machine(tmp_path, CUDA_VISIBLE_DEVICES="")) == [("TPU v5 lite", "kernel")]


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


def test_everything_hanging_at_once_is_given_up(tmp_path, monkeypatch):
    """The time limit holds for all ways of asking together; what needs no asking is found even then."""
    released = threading.Event()
    fake_nvidia_smi(tmp_path / "usr/bin", ["Tesla T4"], does="ignores SIGTERM")
    monkeypatch.setitem(sys.modules, "torch", fake_torch(device_count=released.wait))
    answers = []

    def ask():
        answers.append(find_accelerators(machine(tmp_path), timeout=0.5))
        fake_tpu(tmp_path, "v5e")
        answers.append(ways(machine(tmp_path), timeout=0.5))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(20.0)
    released.set()
    assert isinstance(answers[0], Trouble)
    assert answers[1:] == [[("TPU v5 lite", "kernel")]]


def test_a_process_that_may_have_no_more_threads_is_no_error(tmp_path, monkeypatch):
    """Asking a framework needs one; the program does not."""
    fake_nvidia_smi(tmp_path / "usr/bin", ["Tesla T4"])
    monkeypatch.setitem(sys.modules, "torch", fake_torch())

    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", refuse)
    assert ways(machine(tmp_path)) == [("Tesla T4", "nvidia-smi")]


def test_no_network_is_touched(tmp_path, monkeypatch):
    """On any machine."""
    fake_nvidia_smi(tmp_path / "usr/bin", ["Tesla T4"])
    fake_tpu(tmp_path, "v5e")
    opened = []
    monkeypatch.setattr(socket.socket, "__init__", lambda *arguments, **_: opened.append(arguments))
    assert len(ways(machine(tmp_path))) == 2
    assert opened == []


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


@pytest.mark.torch
def test_cuda_is_not_started_and_torch_not_imported(tmp_path):
    """Before torch is imported it stays unimported; after that, none of its calls that start CUDA is made."""
    fake_nvidia_smi(tmp_path / "usr/bin", ["Tesla T4"])
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], check=False, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
