"""Accelerators: what came, what it is worth, and whether the installed framework can use it.

`find_accelerators` asks the finders below, one line each. Finders of one family look for the same devices: the first
that can tell is believed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from importlib import import_module

from colabkeep.hardware.base import Accelerator, Finder
from colabkeep.vocabulary.environment import Environment

__all__ = ["find_accelerators"]


@dataclass(frozen=True, slots=True)
class _Part:
    """`finder` is "module:class"; `share`: how much of the time that is left it may take. Finders that only look at
    files take none."""

    finder: str
    share: float = 1.0


_FAMILIES = (
    (
        _Part("colabkeep.hardware.nvml:NvmlFinder", share=0.5),  # the rest is for the next one, if the library hangs
        _Part("colabkeep.hardware.nvidia_smi:NvidiaSmiFinder"),
        _Part("colabkeep.hardware.loaded:LoadedFinder"),
        _Part("colabkeep.hardware.rocm:RocmFinder"),
    ),
    (_Part("colabkeep.hardware.tpu:TpuFinder"),),
    (_Part("colabkeep.hardware.xpu:XpuFinder"),),
    (_Part("colabkeep.hardware.npu:NpuFinder"),),
)


def find_accelerators(environment: Environment, *, timeout: float = 2.0) -> tuple[Accelerator, ...]:
    """The accelerators that a framework started in `environment` would see, in the order of their index; () when
    there are none, or none can be seen. `timeout`: seconds, for all ways of asking together.

    CUDA is not initialised, nothing is imported that may do so, and nothing is raised for what the machine is like.
    """
    end = time.monotonic() + timeout
    return tuple(accelerator for family in _FAMILIES for accelerator in _first_answer(family, environment, end))


def _first_answer(family: tuple[_Part, ...], environment: Environment, end: float) -> tuple[Accelerator, ...]:
    for part in family:
        module, _, kind = part.finder.partition(":")
        finder: Finder = getattr(import_module(module), kind)()
        left = max(0.0, end - time.monotonic())
        found = finder.find(environment, timeout=left * part.share)
        if found is not None:
            return tuple(found)
    return ()
