"""Accelerators: which ones this machine has, what they are worth, and whether the installed framework can use them."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from colabkeep.core.system import Environment
from colabkeep.hardware.base import Accelerator, Answer, Hidden, Trouble
from colabkeep.hardware.nvidia import find_nvidia
from colabkeep.hardware.others import ROWS, find_apple, find_listed, find_loaded

_Finder: TypeAlias = Callable[[Environment, float], Answer]

_FINDERS: tuple[_Finder, ...] = (find_nvidia, find_loaded, *(partial(find_listed, row) for row in ROWS), find_apple)
_SHARE = 0.8  # of the time that is left, for each: if one hangs, the next ones still have some


def find_accelerators(environment: Environment, *, timeout: float = 2.0) -> tuple[Accelerator, ...] | Hidden | Trouble:
    """The accelerators that a framework started in `environment` would see, in the order of their index; () when
    there are none. `Trouble` where some seem to be here and nobody could tell which; `Hidden` where a variable
    leaves none to this process. `timeout`: seconds, for all ways of asking together.

    CUDA is not initialised, nothing is imported, and nothing is raised for what the machine is like. Of several ways
    to find devices of one kind, the first that finds some is believed.
    """
    end = time.monotonic() + timeout
    found: list[Accelerator] = []
    reasons: list[Hidden | Trouble] = []
    for find in _FINDERS:
        answer = find(environment, _SHARE * max(0.0, end - time.monotonic()))
        if isinstance(answer, Hidden | Trouble):
            reasons.append(answer)
        else:
            known = {one.kind for one in found}
            found += [one for one in answer if one.kind not in known]
    if found:
        return tuple(found)
    return next((reason for reason in reasons if isinstance(reason, Trouble)), next(iter(reasons), ()))
