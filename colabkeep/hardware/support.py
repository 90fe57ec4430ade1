"""Whether the installed framework can use a card: drivers, kernels, the official torch wheels, and which build is
installed.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from colabkeep.hardware.base import Accelerator, Build
from colabkeep.hardware.catalogue import capability_of

# From CUDA 11 on a driver runs every build of its own major version and of those before (NVIDIA, "CUDA Compatibility",
# minor version compatibility, 2026). CUDA's own compatibility package can lift that on data-centre cards; whether it is
# there, only a trial tells.


_LEAST: Mapping[int, str] = {11: "450.80", 12: "525.60", 13: "580.65"}
"""The oldest driver for Linux, by CUDA's major version (release notes of CUDA 11.8, 12.9 and 13.0)."""

_VERSION = re.compile(r"(\d{1,6})(?:\.(\d{1,6}))?")


def needed_driver(cuda: str) -> str | None:
    """The oldest driver that runs builds for this CUDA ("13.0"); None where that is not known."""
    major = _VERSION.match(cuda)
    return None if major is None else _LEAST.get(int(major[1]))


def runs_on(driver: str | None, cuda: str | None) -> bool | None:
    """Does this driver ("550.54.15") run builds for this CUDA? None where that is not known."""
    least = None if cuda is None else needed_driver(cuda)
    here = None if driver is None else _VERSION.match(driver)
    return None if least is None or here is None else _numbers(here[0]) >= _numbers(least)


def _numbers(version: str) -> tuple[int, int]:
    major, _, minor = version.partition(".")
    return int(major), int(minor or 0)


# CUDA code is compiled for compute capabilities. Machine code ("sm_86") runs on its own capability and on later ones of
# the same major number; portable code ("compute_90", PTX) is compiled on first use for anything later. Torch's own
# check compares major numbers only and its install hint lags the builds, so neither is believed (read in torch 2.11 to
# 2.15).


Capability = tuple[int, int]

_CODE = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")
_TEGRA = frozenset({(5, 3), (6, 2), (7, 2), (8, 7), (10, 1), (11, 0)})
"""Chips on boards of their own, whose machine code no card shares (NVIDIA's CUDA programming guide)."""

_DROPPED: tuple[tuple[int, Capability], ...] = ((13, (7, 5)), (12, (5, 0)), (11, (3, 5)))
"""The lowest capability that a CUDA toolkit of this major version can compile for (its release notes)."""


def supports(build: Build, accelerator: Accelerator) -> bool | None:
    """Can `build` compute on `accelerator`, with the driver that is here? None where what is known does not tell; then
    a probe does.

    Portable code counts, at the price of a slow first call.
    """
    made = is_made_for(build, accelerator)
    if accelerator.kind == "cuda" and runs_on(accelerator.driver, build.cuda) is False:
        return False
    capability = capability_of(accelerator)
    if not made or build.cuda is None or capability is None:
        return False if made is False else None
    known = has_kernels(build.architectures or (), capability)
    return False if known is None and _was_dropped(build.cuda, capability) else known


def is_made_for(build: Build, accelerator: Accelerator) -> bool | None:
    """Is `build` one for this kind of accelerator, whatever cards it has kernels for? None where that is not known."""
    if accelerator.kind not in ("cuda", "rocm"):
        return None
    if (build.cuda if accelerator.kind == "cuda" else build.hip) is not None:
        return True
    if build.cuda is None and build.hip is None and build.known_from == "unknown":
        return None
    # What else than CUDA a Paddle without it was made for is not told.
    return None if accelerator.kind == "rocm" and build.framework == "paddle" and build.cuda is None else False


def has_kernels(architectures: Iterable[str], capability: Capability) -> bool | None:
    """Is there code among `architectures` ("sm_75", "compute_120", …) that runs on `capability`?

    None if there are none (which torch also says when it sees no device), or some that we cannot read.
    """
    codes = list(architectures)
    read = [match for match in map(_CODE.fullmatch, codes) if match is not None]
    if any(_runs(match, capability) for match in read):
        return True
    return False if codes and len(read) == len(codes) else None


def _runs(code: re.Match[str], capability: Capability) -> bool:
    made_for = int(code[2]), int(code[3])
    if code[4] == "a":  # for this very chip only
        return made_for == capability
    if code[1] == "compute" and not code[4]:
        return made_for <= capability
    if _TEGRA & {made_for, capability}:
        return made_for == capability
    return made_for[0] == capability[0] and made_for[1] <= capability[1]


def _was_dropped(cuda: str, capability: Capability) -> bool:
    major = cuda.split(".", maxsplit=1)[0]
    return major.isdigit() and any(int(major) >= toolkit and capability < floor for toolkit, floor in _DROPPED)


# Read from the build scripts of the releases (pytorch/builder up to 2.5, pytorch/pytorch `.ci/manywheel` after that)
# and their release matrices (pytorch pull requests 164471, 175253, 182849, 187075, 194367, 197555), autumn 2026. Where
# release notes and wheel differ, the wheel is right: 2.8 still has 7.0.

Python = tuple[int, int]

_TO_AMPERE = "37 50 60 70 75 80 86"
_TO_HOPPER = "50 60 70 75 80 86 90"
_WITH_KEPLER = "37 50 60 70 75 80 86 90"
_FROM_VOLTA = "70 75 80 86 90 100 120"
_FROM_TURING = "75 80 86 90 100 120"
_PORTABLE = f"{_FROM_TURING} compute_120"
_CU129 = f"{_FROM_VOLTA} compute_120"
"""By the build script, and `get_arch_list` of 2.9.1. The matrices leave cu129 out; its index has it to 2.13."""
_LATER = f"{_FROM_TURING} …"  # whether 7.0 is still in it is not known


@dataclass(frozen=True, slots=True)
class _Release:
    """`default` is the wheel that a bare `pip install torch` gives; `wheels` has the codes of each by its tag."""

    series: str
    default: str
    wheels: Mapping[str, str]


_RELEASES = (
    _Release("1.13", "cu117", {"cu116": _TO_AMPERE, "cu117": _TO_AMPERE}),
    _Release("2.0", "cu117", {"cu117": _TO_AMPERE, "cu118": _WITH_KEPLER}),
    _Release("2.1", "cu121", {"cu118": _WITH_KEPLER, "cu121": _TO_HOPPER}),
    _Release("2.2", "cu121", {"cu118": _WITH_KEPLER, "cu121": _TO_HOPPER}),
    _Release("2.3", "cu121", {"cu118": _WITH_KEPLER, "cu121": _TO_HOPPER}),
    _Release("2.4", "cu121", {"cu118": _WITH_KEPLER, "cu121": _TO_HOPPER, "cu124": _TO_HOPPER}),
    _Release("2.5", "cu124", {"cu118": _WITH_KEPLER, "cu121": _TO_HOPPER, "cu124": _TO_HOPPER}),
    _Release("2.6", "cu124", {"cu118": _WITH_KEPLER, "cu124": _TO_HOPPER, "cu126": _TO_HOPPER}),
    _Release("2.7", "cu126", {"cu118": _WITH_KEPLER, "cu126": _TO_HOPPER, "cu128": _FROM_TURING}),
    _Release("2.8", "cu128", {"cu126": _TO_HOPPER, "cu128": _FROM_VOLTA, "cu129": _CU129}),
    _Release("2.9", "cu128", {"cu126": _TO_HOPPER, "cu128": _FROM_VOLTA, "cu129": _CU129, "cu130": _PORTABLE}),
    _Release("2.10", "cu128", {"cu126": _TO_HOPPER, "cu128": _FROM_VOLTA, "cu129": _CU129, "cu130": _PORTABLE}),
    _Release("2.11", "cu130", {"cu126": _TO_HOPPER, "cu128": _FROM_TURING, "cu129": _LATER, "cu130": _FROM_TURING}),
    _Release("2.12", "cu130", {"cu126": _TO_HOPPER, "cu129": _LATER, "cu130": _FROM_TURING, "cu132": _FROM_TURING}),
    _Release("2.13", "cu130", {"cu126": _TO_HOPPER, "cu129": _LATER, "cu130": _FROM_TURING, "cu132": _FROM_TURING}),
    _Release("2.14", "cu130", {"cu126": _TO_HOPPER, "cu130": _FROM_TURING, "cu132": _FROM_TURING}),
    _Release("2.15", "cu132", {"cu130": _FROM_TURING, "cu132": _FROM_TURING}),
)
_PYTHONS: Mapping[str, tuple[int, int]] = {
    "1.13": (7, 11),
    "2.2": (8, 12),
    "2.5": (9, 13),
    "2.9": (10, 14),
    "2.15": (11, 15),
}
"""The first and the last Python 3 that a series and those after it have wheels for (package index, November 2026)."""

_ARM: Mapping[str, str] = {"cu126": "80 90", "cu130": "80 90 100 110 120", "cu132": "80 90 100 110 120"}


def architectures(version: str, machine: str) -> tuple[str, ...] | None:
    """What the official wheel of this `version` ("2.11.0+cu128") has kernels for on a `machine` ("x86_64").

    None for any other: a version without the wheels' tag was compiled by somebody else, for what they chose.
    """
    release, _, tag = version.partition("+")
    series = ".".join(release.split(".")[:2])
    if not release.replace(".", "").isdigit():  # nightly and source builds: "2.9.0.dev2025", "2.5.0a0"
        return None
    wheels = next((known.wheels for known in _RELEASES if known.series == series), {})
    codes = wheels.get(tag)
    if codes is not None and machine == "aarch64":
        codes = _ARM.get(tag)
    elif machine != "x86_64":
        codes = None
    return None if codes is None else _names(codes)


def wheels_for(capability: Capability, driver: str | None = None, python: Python | None = None) -> str:
    """One sentence: the newest official torch wheel with kernels for cards of this capability, and how to get it. Where
    a `driver` or a `python` is told, one that runs there; where none does, what it would take."""
    card = f"cards with compute capability {capability[0]}.{capability[1]}"
    known = _wheels_with(capability)
    if not known:
        return f"No official torch wheel from {_RELEASES[0].series} to {_RELEASES[-1].series} has kernels for {card}."
    running = _running_wheels(capability, driver)
    if not running:
        least = needed_driver(_cuda(known[0][1]))
        return (
            f"No official torch wheel with kernels for {card} runs on driver {driver}: they need driver {least} or "
            "newer."
        )
    fitting = [(series, tag) for series, tag in running if python is None or _is_for(python, series)]
    series, tag = (fitting or running)[-1]
    runs = "" if running[-1] == known[-1] else f" and runs on driver {driver}"
    if python is not None and not fitting:
        first, last = _pythons(series)
        return (
            f"The newest official torch wheel that has kernels for {card}{runs} is {series} for {tag}, which is made "
            f"for Python 3.{first} to 3.{last}, and this is {python[0]}.{python[1]}: in an environment with Python "
            f"3.{last} run {_install(series, tag)}."
        )
    if python is not None and fitting[-1] != running[-1]:
        major, minor = python
        drives = f" and runs on driver {driver} and Python {major}.{minor}"
        runs = drives if runs else f" and fits Python {major}.{minor}"
    return (
        f"The newest official torch wheel that has kernels for {card}{runs} is {series} for {tag}: "
        f"{_install(series, tag)}."
    )


def has_wheel(capability: Capability, driver: str | None = None) -> bool:
    """Is there an official torch wheel for cards of this capability that this driver can run?"""
    return bool(_running_wheels(capability, driver))


def wheels_in_short(capability: Capability) -> str:
    """The same in a few characters, for a table: "all", "to 2.7; cu126 to 2.14", "since 2.8"."""
    default = [known.series for known in _RELEASES if _has(known, known.default, capability)]
    wheels = _wheels_with(capability)
    if not default:
        return f"{wheels[-1][1]} to {wheels[-1][0]}" if wheels else "none"
    if _RELEASES[-1].series in default:
        return "all" if default[0] == _RELEASES[0].series else f"since {default[0]}"
    series, tag = wheels[-1]
    return f"to {default[-1]}" if series == default[-1] else f"to {default[-1]}; {tag} to {series}"


def _wheels_with(capability: Capability) -> list[tuple[str, str]]:
    """(series, tag) of every wheel that has kernels for it, the newest last."""
    return [(known.series, tag) for known in _RELEASES for tag in sorted(known.wheels) if _has(known, tag, capability)]


def _running_wheels(capability: Capability, driver: str | None) -> list[tuple[str, str]]:
    """Those of them that this driver runs, as far as is known."""
    return [(series, tag) for series, tag in _wheels_with(capability) if runs_on(driver, _cuda(tag)) is not False]


def _has(release: _Release, tag: str, capability: Capability) -> bool:
    # Portable code is not counted on: few wheels carry it, and it is to leave them for its size.
    codes = [code for code in _names(release.wheels[tag]) if code.startswith("sm_")]
    return has_kernels(codes, capability) is True


def _is_for(python: Python, series: str) -> bool:
    first, last = _pythons(series)
    return (3, first) <= python <= (3, last)


def _pythons(series: str) -> tuple[int, int]:
    order = [release.series for release in _RELEASES]
    return [told for since, told in _PYTHONS.items() if order.index(since) <= order.index(series)][-1]


def _cuda(tag: str) -> str:
    """ "cu128" → "12.8"."""
    return f"{tag[2:-1]}.{tag[-1]}"


def _install(series: str, tag: str) -> str:
    # Without force, pip finds the request "already satisfied" by any build of that version, such as one for the CPU.
    return (
        f'pip install --force-reinstall "torch=={series}.*" --index-url https://download.pytorch.org/whl/{tag} '
        "(packages made for the notebook's own torch may no longer fit)"
    )


def _names(codes: str) -> tuple[str, ...]:
    return tuple(code if not code.isdigit() else f"sm_{code}" for code in codes.split())


def installed_build(framework: str) -> Build | None:
    """The build of `framework` ("torch" or "paddle") that `import` gives here; None if there is none.

    Imports nothing, and never initialises CUDA. Of a build without CUDA it is known that it has kernels for no card of
    NVIDIA's.
    """
    folder = _folder(framework)
    if folder is None:
        return None
    version, cuda, hip, stated = _version(framework, folder)
    codes: tuple[str, ...] | None = None
    known_from: Literal["loaded", "table", "stated", "unknown"] = "unknown"
    if version and cuda is None:
        codes, known_from = (), "table"
    elif version and framework == "torch" and (told := _told()) is not None:
        codes, known_from = told, "loaded"
    elif version and framework == "torch" and (made := architectures(version, _machine())) is not None:
        codes, known_from = made, "table"
    elif stated:
        codes, known_from = stated, "stated"
    return Build(
        framework=framework,
        version=version or "unknown",
        cuda=cuda,
        architectures=codes,
        known_from=known_from,
        hip=hip if cuda is None else None,
    )


_FILES: Mapping[str, tuple[str, ...]] = {
    "torch": ("version.py",),
    "paddle": ("version/__init__.py", "version.py"),  # a folder since Paddle 2.3
}
_FLAGS = re.compile(r"NVCC architecture flags:(.*)")
_CODE_IN_TEXT = re.compile(r"(?:sm|compute)_\w+(?=[,;\]\s]|$)")


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
    codes = [code for part in re.findall(r"code=(\[[^\]]*\]|[^;\s]*)", line[1]) for code in _CODE_IN_TEXT.findall(part)]
    return tuple(dict.fromkeys(codes)) or None


def _machine() -> str:
    """The processor the wheels for Linux were made for; "" on another system."""
    return os.uname().machine if sys.platform == "linux" else ""
