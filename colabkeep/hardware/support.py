"""Does a framework's build have kernels for a card?

CUDA code is compiled for compute capabilities. Machine code ("sm_86") runs on its own capability and on later ones of
the same major number; portable code ("compute_90", PTX) is compiled on first use for anything later. Torch's own check
compares major numbers only and its install hint lags the builds, so neither is believed (read in torch 2.11 to 2.15).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from colabkeep.hardware.base import Accelerator, Build
from colabkeep.hardware.catalogue import capability_of
from colabkeep.hardware.drivers import runs_on

__all__ = ["has_kernels", "is_made_for", "supports"]

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
