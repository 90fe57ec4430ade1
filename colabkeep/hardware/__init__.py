"""Accelerators: what came, what it is worth, and whether the installed framework can use it.

`find_accelerators` asks the finders below, one line each. Finders of one family look for the same devices: the first
that tells of any is believed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from importlib import import_module

from colabkeep.core.system import Environment
from colabkeep.hardware.base import Accelerator, Answer, Finder, Hidden, Trouble

__all__ = ["find_accelerators"]


@dataclass(frozen=True, slots=True)
class _Part:
    """`finder` is "module:class"; `share`: how much of the time that is left it may take. Finders that only look at
    files take none."""

    finder: str
    share: float = 1.0


_FAMILIES = (
    (
        _Part("colabkeep.hardware.nvidia:NvmlFinder", share=0.5),  # the rest is for the next ones, if the library hangs
        _Part("colabkeep.hardware.nvidia:NvidiaSmiFinder", share=0.9),
        _Part("colabkeep.hardware.loaded:LoadedFinder"),
        _Part("colabkeep.hardware.others:RocmFinder"),
        _Part("colabkeep.hardware.nvidia:NvidiaTraces"),
    ),
    (_Part("colabkeep.hardware.others:TpuFinder"),),
    (_Part("colabkeep.hardware.loaded:LoadedXpuFinder"), _Part("colabkeep.hardware.others:XpuFinder")),
    (_Part("colabkeep.hardware.others:NpuFinder"),),
    (_Part("colabkeep.hardware.others:MpsFinder"),),
)


def find_accelerators(environment: Environment, *, timeout: float = 2.0) -> tuple[Accelerator, ...] | Hidden | Trouble:
    """The accelerators that a framework started in `environment` would see, in the order of their index; () when
    there are none. `Trouble` where some are here, it seems, and nobody could tell which; `Hidden` where a variable
    leaves none to this process. `timeout`: seconds, for all ways of asking together.

    CUDA is not initialised, nothing is imported that may do so, and nothing is raised for what the machine is like.
    """
    end = time.monotonic() + timeout
    answers = [_believed(family, environment, end) for family in _FAMILIES]
    found = tuple(one for answer in answers if not isinstance(answer, Hidden | Trouble) for one in answer)
    if found:
        return found
    untold = next((answer for answer in answers if isinstance(answer, Trouble)), None)
    return untold or next((answer for answer in answers if isinstance(answer, Hidden)), ())


def _believed(family: tuple[_Part, ...], environment: Environment, end: float) -> Answer:
    """What the first finder says that tells of a device, hidden or not; else the first trouble; else nothing."""
    trouble: Trouble | None = None
    for part in family:
        module, _, kind = part.finder.partition(":")
        finder: Finder = getattr(import_module(module), kind)()
        left = max(0.0, end - time.monotonic())
        answer = finder.find(environment, timeout=left * part.share)
        if isinstance(answer, Trouble):
            trouble = trouble or answer
        elif isinstance(answer, Hidden) or answer:
            return answer
    return trouble or ()
