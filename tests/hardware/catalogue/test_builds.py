"""The installed build of a framework, read without importing it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from colabkeep.hardware.support import installed_build

ASK = """
import json, sys
from dataclasses import asdict
{before}
from colabkeep.hardware.support import installed_build
build = installed_build({framework!r})
print(json.dumps([None if build is None else asdict(build), sorted(sys.modules)]))
"""
CONFIG = """PyTorch built with:
  - GCC 13.3
  - C++ Version: 201703
  - CUDA Runtime 12.8
  - NVCC architecture flags: {flags}
  - CuDNN 91.0.2
    - Built with CuDNN 90.8
"""
FLAGS = ";".join(
    f"-gencode;arch={arch},code={code}"
    for arch, code in (("compute_75", "sm_75"), ("compute_90", "sm_90a"), ("compute_120", "compute_120"))
)


@pytest.fixture
def asked(tmp_path):
    """Asks a new process for the build of a framework, of which `files` are installed there."""

    def ask(framework, files, before=""):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n" + ASK.format(
            framework=framework, before=before
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        build, modules = json.loads(done.stdout.splitlines()[-1])
        return build, modules

    return ask


def torch_files(version, cuda, init="", annotated=True):
    words = ": Optional[str]" if annotated else ""
    text = f"from typing import Optional\n__version__ = {version!r}\ncuda{words} = {cuda!r}\nhip{words} = None\n"
    return {"torch/__init__.py": init or "raise SystemExit('torch was imported')", "torch/version.py": text}


def test_the_torch_of_this_machine_is_recognised():
    """The real one, loaded in this process: its version, and that it was made for the CPU only or for which CUDA."""
    build = installed_build("torch")
    assert build.version == torch.__version__
    assert build.cuda == torch.version.cuda
    if build.cuda is None:
        assert build.architectures == ()


def test_the_torch_of_this_machine_is_read_without_loading_it(asked):
    """The same answer in a process that never loads it."""
    build, modules = asked("torch", {})
    assert build["version"] == torch.__version__
    assert build["cuda"] == torch.version.cuda
    assert "torch" not in modules


@pytest.mark.parametrize("annotated", [True, False])
def test_an_official_wheel_is_known_by_its_version(asked, annotated):
    """Nothing is imported: the package would end the process."""
    build, modules = asked("torch", torch_files("2.11.0+cu128", "12.8", annotated=annotated))
    assert (build["version"], build["cuda"], build["known_from"]) == ("2.11.0+cu128", "12.8", "table")
    assert "torch" not in modules
    if sys.platform == "linux":
        assert set(build["architectures"]) >= {"sm_90"}


def test_a_build_of_ones_own_is_not_guessed(asked):
    """Its version is told, its architectures are not known."""
    build, _ = asked("torch", torch_files("2.11.0a0+gitdeadbee", "13.0"))
    assert (build["cuda"], build["architectures"], build["known_from"]) == ("13.0", None, "unknown")


def loaded_torch(show):
    """A torch that was loaded, and ends the process when it is asked in a way that touches CUDA."""
    return f"""
import types
from . import version
def _refused(*_, **__):
    raise SystemExit("CUDA was touched")
__version__ = version.__version__
__config__ = types.SimpleNamespace(show=lambda: {show!r})
_C = types.SimpleNamespace(_cuda_getArchFlags=_refused)
cuda = types.SimpleNamespace(get_arch_list=_refused, is_available=_refused, is_initialized=lambda: False)
"""


def test_a_loaded_torch_is_asked_without_touching_cuda(asked):
    """What it was compiled for wins over the table, and forked processes may still use the GPU."""
    files = torch_files("2.11.0+cu128", "12.8", loaded_torch(CONFIG.format(flags=FLAGS)))
    build, _ = asked("torch", files, before="import torch")
    assert build["known_from"] == "loaded"
    assert build["architectures"] == ["sm_75", "sm_90a", "compute_120"]


def test_a_loaded_torch_that_says_nothing_is_looked_up(asked):
    """No flags in its description: the version decides."""
    files = torch_files("2.11.0+cu128", "12.8", loaded_torch("PyTorch built with:\n  - GCC 13.3\n"))
    build, _ = asked("torch", files, before="import torch")
    assert build["known_from"] == "table"


def test_a_half_loaded_torch_does_no_harm(asked):
    """While another thread imports it, hardly anything is there."""
    build, _ = asked("torch", torch_files("2.11.0+cu128", "12.8", "x = 1"), before="import torch")
    assert build["known_from"] == "table"


def test_a_build_for_amd_is_recognised(asked):
    """Its cards are computed on through HIP; CUDA has none."""
    files = torch_files("2.9.1+rocm6.3", None)
    files["torch/version.py"] = (
        files["torch/version.py"]
        .replace("= None\n", "= '6.3.42134'\n")
        .replace("cuda: Optional[str] = '6.3.42134'", "cuda: Optional[str] = None")
    )
    build, _ = asked("torch", files)
    assert (build["cuda"], build["hip"]) == (None, "6.3.42134")
    assert asked("torch", torch_files("2.11.0+cu128", "12.8"))[0]["hip"] is None


@pytest.mark.parametrize("file", ["paddle/version/__init__.py", "paddle/version.py"])
def test_paddle_is_recognised(asked, file):
    """Its CUDA version is known, its architectures are not; "False" is its way to say that it has no CUDA."""
    text = "full_version    = '3.2.0'\nmajor = '3'\ncuda_version    = {!r}\nistaged = True\n"
    files = {"paddle/__init__.py": "raise SystemExit('paddle was imported')", file: text.format("12.6")}
    build, _ = asked("paddle", files)
    assert build == {
        "framework": "paddle",
        "version": "3.2.0",
        "cuda": "12.6",
        "architectures": None,
        "known_from": "unknown",
        "hip": None,
    }
    build, _ = asked("paddle", {file: text.format("False")})
    assert (build["cuda"], build["architectures"]) == (None, [])


@pytest.mark.parametrize("damage", ["", "this is not Python (", "\udcff", None])
def test_a_framework_whose_version_cannot_be_read_is_still_there(asked, damage):
    """A broken installation is not a reason to fail."""
    files = torch_files("2.11.0+cu128", "12.8")
    if damage is None:
        del files["torch/version.py"]
    else:
        files["torch/version.py"] = damage.replace("\udcff", "\\xff = = 3")
    build, _ = asked("torch", files)
    assert (build["version"], build["cuda"], build["known_from"]) == ("unknown", None, "unknown")


WITHOUT_PADDLE = """
import os, colabkeep.hardware.support
sys.path[:] = [place for place in sys.path if not os.path.isdir(os.path.join(place, "paddle", "version"))]
"""


def test_a_framework_that_is_not_installed(asked):
    """Neither a missing package nor a stray folder or file of that name is taken for one."""
    assert asked("paddle", {}, before=WITHOUT_PADDLE)[0] is None
    assert asked("paddle", {"paddle/notes.txt": "an empty folder of mine"}, before=WITHOUT_PADDLE)[0] is None
    assert asked("paddle", {"paddle.py": "print('a script of mine')"})[0] is None
    assert asked("paddle", {}, before="sys.modules['paddle'] = None")[0] is None


def test_no_module_of_the_package_asks_torch_for_its_flags(asked):
    """The one call that looks harmless and spoils forking is nowhere in the code that users run."""
    import colabkeep.hardware

    folder = Path(colabkeep.hardware.__file__).parent
    for file in folder.rglob("*.py"):
        assert "_cuda_getArchFlags(" not in file.read_text(encoding="utf-8"), file
