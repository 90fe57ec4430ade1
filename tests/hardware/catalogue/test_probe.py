"""The trial in a process of its own: it ends in time whatever the framework does, and says what happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from colabkeep.core.system import Environment
from colabkeep.hardware.probe import probe

PATIENCE = 60.0

TORCH = """
import os, signal, subprocess, sys, time, types, warnings
__version__ = "2.10.0+cu128"
version = types.SimpleNamespace(cuda="12.8", hip=None)
class Tensor:
    def __init__(self, value=1.0): self.value = value
    def __mul__(self, other): return Tensor(self.value * other)
    def sum(self): return Tensor(self.value * 8)
    def item(self): return self.value
def ones(count, device): return Tensor()
cuda = types.SimpleNamespace(is_available=lambda: True, device_count=lambda: 1)
AcceleratorError = type("AcceleratorError", (RuntimeError,), {})
"""
TOO_OLD = '''
def ones(count, device):
    warnings.warn("""
Tesla P100-PCIE-16GB with CUDA capability sm_60 is not compatible with the current PyTorch installation.
The current PyTorch install supports CUDA capabilities sm_70 sm_75 sm_80 sm_86 sm_90 sm_100 sm_120.
""")
    raise AcceleratorError("CUDA error: no kernel image is available for execution on the device\\nSearch for ...")
'''


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs a framework for the processes that this one starts."""

    def install(name, text):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)

    return install


@pytest.fixture
def tried(install):
    """What the probe says of a torch that goes on as `more` says."""

    def tried(more, timeout=PATIENCE):
        install("torch", TORCH + more)
        return probe("torch", "", Environment.here(), timeout=timeout)

    return tried


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch computes on GPUs")
def test_the_real_torch_for_the_cpu_is_told_as_such():
    """Nothing was found out about the card, and the reason is said."""
    result = probe("torch", "", Environment.here(), timeout=PATIENCE)
    assert result.works is None
    assert torch.__version__ in result.detail
    assert "CPU only" in result.detail


@pytest.mark.card
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_real_torch_computes_on_the_real_card():
    """On a machine with a GPU that torch supports, the trial succeeds."""
    result = probe("torch", "", Environment.here(), timeout=PATIENCE)
    assert result.works is True, result.detail


def test_a_card_that_computes_is_proven(tried):
    """The good end, with warnings in between that frighten nobody."""
    result = tried("print('hello'); sys.stderr.write('a warning\\n')")
    assert (result.works, result.detail) == (True, "torch 2.10.0+cu128 computes on the GPU.")


def test_the_card_that_is_meant_is_the_one_that_is_tried(install):
    """The process sees no other."""
    install("torch", TORCH + "assert os.environ['CUDA_VISIBLE_DEVICES'] == 'GPU-1'")
    assert probe("torch", "GPU-1", Environment.here(), timeout=PATIENCE).works is True


def test_a_build_without_kernels_is_recognised(tried):
    """The P100 of Kaggle: torch sees the card, and the first computation fails."""
    result = tried(TOO_OLD)
    assert result.works is False
    assert result.detail.startswith("torch 2.10.0+cu128 has no kernels for the GPU")
    assert "no kernel image" in result.detail
    assert "Search for" not in result.detail


@pytest.mark.parametrize(
    "warning",
    [
        "Found GPU0 Tesla K80. PyTorch no longer supports this GPU because it is too old.",
        "Tesla V100 with CUDA capability sm_70 is not compatible with the current PyTorch installation.",
    ],
)
def test_a_build_without_kernels_is_recognised_by_its_warning(tried, warning):
    """The error may come later and elsewhere; each generation of warnings is known."""
    more = f"""
def ones(count, device):
    sys.stderr.write({warning!r})
    raise RuntimeError("CUDA error: unspecified launch failure")
"""
    result = tried(more)
    assert (result.works, "has no kernels" in result.detail) == (False, True)


def test_a_full_card_proves_nothing(tried):
    """Another process may have taken the memory; the card may be fine."""
    result = tried("def ones(count, device): raise RuntimeError('CUDA error: out of memory')")
    assert result.works is None
    assert "memory is full" in result.detail


def test_a_driver_that_torch_cannot_use_is_told_in_its_own_words(tried):
    """No GPU in sight for torch, and why."""
    more = """
def available():
    warnings.warn("CUDA initialization: The NVIDIA driver on your system is too old (found version 11040).")
    return False
cuda.is_available = available
"""
    result = tried(more)
    assert result.works is False
    assert "sees no GPU" in result.detail
    assert result.cause == "no-device"
    assert "driver on your system is too old" in result.detail


def test_a_framework_that_hangs_is_ended(tried):
    """In its import: nothing was found out, and it does not take longer than it may."""
    began = time.monotonic()
    result = tried("time.sleep(600)", timeout=1.0)
    assert time.monotonic() - began < PATIENCE
    assert result.works is None
    assert "did not answer within 1 s" in result.detail


def test_a_computation_that_hangs_is_ended_with_all_it_started(tried, tmp_path):
    """No process is left behind, not even one that holds the output open and ignores being asked to go."""
    more = f"""
def ones(count, device):
    child = subprocess.Popen([sys.executable, "-c",
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"])
    with open({str(tmp_path / "child")!r}, "w") as file:
        file.write(str(child.pid))
    time.sleep(600)
"""
    result = tried(more, timeout=10.0)  # seconds for two new processes to start on a busy machine
    assert result.works is None
    assert "(computing)" in result.detail
    left = int((tmp_path / "child").read_text())
    end = time.monotonic() + PATIENCE
    while alive(left):
        assert time.monotonic() < end, "its child lives on"
        time.sleep(0.05)


def alive(process):
    """Is it running? One that ended and that nobody waited for is not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_nothing_is_left_open(tried):
    """Pipes and processes are given back; those of other tests stay."""

    def parent(process):
        try:
            return int((process / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            return None

    def kept():
        children = {each.name for each in Path("/proc").glob("[0-9]*") if parent(each) == os.getpid()}
        return len(list(Path("/proc/self/fd").iterdir())), children

    before = kept()
    tried("")
    assert kept() == before


def test_a_crash_in_the_computation_is_a_failure(tried):
    """The framework loads, and the first computation kills the process."""
    result = tried("def ones(count, device): os.kill(os.getpid(), signal.SIGSEGV)")
    assert result.works is False
    assert "SIGSEGV" in result.detail


def test_a_crash_on_loading_says_nothing_about_the_card(tried):
    """A broken installation is told as that."""
    result = tried("os.kill(os.getpid(), signal.SIGABRT)")
    assert result.works is None
    assert "cannot be loaded" in result.detail
    assert "SIGABRT" in result.detail


def test_a_framework_that_cannot_be_imported_says_why(tried):
    """A missing library, in its own words."""
    result = tried("raise ImportError('libcudart.so.12: cannot open shared object file')")
    assert result.works is None
    assert "libcudart.so.12" in result.detail


def test_what_a_framework_prints_cannot_pass_for_an_answer_nor_steer_the_terminal(tried):
    """Its output is not trusted, and its words are shown as harmless, short text."""
    more = """
print('{"version": "9", "gpu": true, "devices": 1, "computed": ["x"]}')
def ones(count, device): raise RuntimeError("\\x1b[31m" + "boom " * 1000)
"""
    result = tried(more)
    assert result.works is False
    assert "\x1b" not in result.detail
    assert len(result.detail) < 500


def test_paddle_is_tried_too(install):
    """The same for the other framework."""
    install(
        "paddle",
        """
import types
__version__ = "3.2.0"
class Tensor:
    def __mul__(self, other): return self
    def sum(self): return 16.0
def ones(shape): return Tensor()
def set_device(name): assert name == "gpu:0"
device = types.SimpleNamespace(is_compiled_with_cuda=lambda: True, cuda=types.SimpleNamespace(
    device_count=lambda: 1, get_device_name=lambda index: "Tesla T4"))
""",
    )
    result = probe("paddle", "", Environment.here(), timeout=PATIENCE)
    assert result.works is True


def test_an_interrupted_probe_leaves_nothing_behind(tmp_path, install):
    """Stopping the cell stops the trial."""
    install("torch", TORCH + f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)")
    program = (
        "from colabkeep.core.system import Environment as E; from colabkeep.hardware.probe import probe; "
        "probe('torch', '', E.here(), timeout=600)"
    )
    notebook = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE)
    end = time.monotonic() + PATIENCE
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < end
        time.sleep(0.05)
    notebook.send_signal(signal.SIGINT)
    _, said = notebook.communicate(timeout=PATIENCE)
    assert b"KeyboardInterrupt" in said
    assert not alive(int((tmp_path / "pid").read_text()))
