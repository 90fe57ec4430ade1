"""On a machine with a card. These need a real one; they are not run by CI."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

from colabkeep.core.system import Environment
from colabkeep.hardware.nvidia import find_nvidia

pytestmark = [
    pytest.mark.card,
    pytest.mark.skipif(
        not isinstance(find_nvidia(Environment.here(), 30.0) or None, Sequence),
        reason="needs a CUDA device",
    ),
]

PROGRAM = """
import ctypes
from colabkeep.hardware import find_accelerators
from colabkeep.hardware.others import find_loaded
from colabkeep.core.system import Environment

found = find_accelerators(Environment.here(), timeout=30.0)
assert found[0].found_by == "nvidia-smi"
not_initialised = 3  # CUDA_ERROR_NOT_INITIALIZED
assert ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(ctypes.c_int())) == not_initialised

import torch
find_accelerators(Environment.here(), timeout=30.0)
assert not torch.cuda.is_initialized()
torch.cuda.init()
by_torch = find_loaded(Environment.here(), 30.0)
assert [(one.name, one.capability) for one in by_torch] == [(one.name, one.capability) for one in found]
assert all(0.9 < mine.memory_bytes / its.memory_bytes <= 1 for mine, its in zip(by_torch, found, strict=True))
"""


def test_all_ways_tell_the_same_and_cuda_is_not_started():
    """The driver itself says that nobody has initialised it; afterwards torch names the same cards."""
    ran = subprocess.run([sys.executable, "-c", PROGRAM], check=False, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stderr
