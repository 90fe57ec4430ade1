"""Which build of a framework is installed here, without importing it: torch takes seconds to load, and may never be
wanted. One that is loaded already is asked, without touching CUDA."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from colabkeep.hardware.base import Build
from colabkeep.hardware.wheels import architectures

__all__ = ["installed_build"]


def installed_build(framework: str) -> Build | None:
    """The build of `framework` ("torch" or "paddle") that `import` gives here; None if there is none.

    Imports nothing, and never initialises CUDA. Of a build without CUDA it is known that it has kernels for no card of
    NVIDIA's.
    """
    folder = _folder(framework)
    if folder is None:
        return None
    version, cuda, hip, stated = _version(framework, folder)
    if not version:
        return Build(framework=framework, version="unknown", cuda=None, architectures=None, known_from="unknown")
    if cuda is None:
        return Build(framework=framework, version=version, cuda=None, architectures=(), known_from="table", hip=hip)
    if framework == "torch":
        if (told := _told()) is not None:
            return Build(framework=framework, version=version, cuda=cuda, architectures=told, known_from="loaded")
        if (made := architectures(version, _machine())) is not None:
            return Build(framework=framework, version=version, cuda=cuda, architectures=made, known_from="table")
    if stated:
        return Build(framework=framework, version=version, cuda=cuda, architectures=stated, known_from="stated")
    return Build(framework=framework, version=version, cuda=cuda, architectures=None, known_from="unknown")


_FILES: Mapping[str, tuple[str, ...]] = {
    "torch": ("version.py",),
    "paddle": ("version/__init__.py", "version.py"),  # a folder since Paddle 2.3
}
_FLAGS = re.compile(r"NVCC architecture flags:(.*)")
_CODE = re.compile(r"(?:sm|compute)_\w+(?=[,;\]\s]|$)")


def _folder(framework: str) -> Path | None:
    """Where the package lies that is loaded, or would be."""
    file = getattr(sys.modules.get(framework), "__file__", None)
    if file is None and framework not in sys.modules:
        spec = importlib.util.find_spec(framework)
        file = spec.origin if spec is not None and spec.submodule_search_locations is not None else None
    return None if file is None else Path(file).parent


def _version(framework: str, folder: Path) -> tuple[str, str | None, str | None, tuple[str, ...]]:
    """Version, CUDA version, HIP version and architectures, read in the text of the package's version file; "", None
    and () if there is none to read."""
    for name in _FILES[framework]:
        try:
            facts = _constants((folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError, SyntaxError):
            continue
        version = facts.get("__version__", facts.get("full_version"))
        cuda, hip = facts.get("cuda", facts.get("cuda_version")), facts.get("hip")
        return str(version or ""), _known(cuda), _known(hip), _stated(facts.get("compiled_cuda_archs"))
    return "", None, None, ()


def _stated(archs: object) -> tuple[str, ...]:
    """What Paddle 3 says it was compiled for: [70, 75, 80]. Portable code that may lie beside it is not told."""
    codes = tuple(f"sm_{arch}" for arch in archs if str(arch).isdigit()) if isinstance(archs, list) else ()
    return (*codes, "…") if codes else ()


def _known(version: object) -> str | None:
    return None if version in (None, "", "False") else str(version)  # "False" is Paddle's None


def _constants(source: str) -> dict[str, object]:
    """The constants, and lists of them, that a module of plain assignments gives names to."""
    found: dict[str, object] = {}
    for node in ast.parse(source).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
            found[target.id] = value.value
        elif isinstance(target, ast.Name) and isinstance(value, ast.List):
            found[target.id] = [one.value for one in value.elts if isinstance(one, ast.Constant)]
    return found


def _told() -> tuple[str, ...] | None:
    """What the loaded torch says it was compiled for; None if none is loaded or it does not say.

    Its description of itself is asked. `torch.cuda.get_arch_list` starts the driver up to torch 2.12, and what lies
    behind it (`_cuda_getArchFlags`) marks every process forked later as unfit for CUDA (torch/csrc/cuda/Module.cpp,
    `poison_fork`), which would break training on two GPUs from a notebook.
    """
    show = getattr(getattr(sys.modules.get("torch"), "__config__", None), "show", None)
    line = _FLAGS.search(show()) if callable(show) else None
    if line is None:
        return None
    # "-gencode;arch=compute_75,code=sm_75;…": what is behind code= lies in the build, what is behind arch= does not.
    codes = [code for part in re.findall(r"code=(\[[^\]]*\]|[^;\s]*)", line[1]) for code in _CODE.findall(part)]
    return tuple(dict.fromkeys(codes)) or None


def _machine() -> str:
    """The processor the wheels for Linux were made for; "" on another system."""
    return os.uname().machine if sys.platform == "linux" else ""
