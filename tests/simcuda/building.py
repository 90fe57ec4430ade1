"""The library behind the simulated device: built once for each torch, Python and source, and kept.

`python -m tests.simcuda.building` builds it where it is not kept yet, and prints where it lies: in the folder that
SIMCUDA_CACHE names, or else in the user's folder for caches.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import torch

__all__ = ["NAME", "TRIED", "library", "obstacle"]

TRIED = "2.13.0"  # the library is bound to what torch does not promise to keep: with another one, try it first
NAME = "simcuda_c"

_SOURCE = Path(__file__).with_name("simcuda.cpp")
_INCLUDED = Path(__file__).with_name("nccl.hpp")
_TORCH = Path(torch.__file__).parent
_HEADERS = Path(sysconfig.get_paths()["include"])
_FLAGS = ("-O1", "-g0", "-w", "-std=c++20", "-fPIC", "-shared", f"-DTORCH_EXTENSION_NAME={NAME}")


def obstacle() -> str | None:
    """Why there can be no simulated device here, in a sentence; None: nothing is in the way."""
    version, _, build = torch.__version__.partition("+")
    if torch.version.cuda is not None or torch.version.hip is not None:
        return f"this torch ({torch.__version__}) is built for real GPUs. Install its CPU build: torch=={TRIED}+cpu"
    if version != TRIED:
        return (
            f"torch here is {version}{'+' * bool(build)}{build}, and the simulation was tried with {TRIED} only. Try "
            "tests/simcuda/test_device.py with it, and put its version into tests/simcuda/building.py."
        )
    if shutil.which("g++") is None:
        return "there is no C++ compiler: apt-get install g++"
    if not (_HEADERS / "Python.h").is_file():
        return f"{_HEADERS}/Python.h is missing: apt-get install python3-dev, or what your Python's headers are called"
    return None


def library() -> Path:
    """The library, built now if it is not kept (20 seconds on a quiet core).

    Raises:
        RuntimeError: `obstacle` says why it cannot be built, or the compiler did.
    """
    path = _cache() / f"{NAME}-{_digest()}.so"
    if path.is_file():
        return path
    if (reason := obstacle()) is not None:
        raise RuntimeError(f"The simulated GPU cannot be had: {reason}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        fresh = Path(folder) / "fresh.so"
        done = subprocess.run(_command(fresh), capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"The simulated GPU cannot be built; the compiler says:\n{done.stderr[-4000:]}")
        fresh.replace(path)  # of two who build at once, either's is good
    return path


def _cache() -> Path:
    if told := os.environ.get("SIMCUDA_CACHE"):
        return Path(told)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "colabkeep-simcuda"


def _digest() -> str:
    bound = [torch.__version__, sys.implementation.cache_tag, sysconfig.get_platform(), *_FLAGS]
    sources = _SOURCE.read_bytes() + _INCLUDED.read_bytes()
    return hashlib.sha256("\n".join(map(str, bound)).encode() + sources).hexdigest()[:16]


def _command(target: Path) -> list[str]:
    includes = [_TORCH / "include", _TORCH / "include/torch/csrc/api/include", _HEADERS]
    return [
        "g++",
        *_FLAGS,
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *(f"-isystem{path}" for path in includes),
        str(_SOURCE),
        f"-o{target}",
        f"-L{_TORCH / 'lib'}",
        *("-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"),
    ]


if __name__ == "__main__":
    print(library())
