"""Random generators that a script owns, as parts of a run: they have a state, and other words for it."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

from colabkeep.frameworks.common.randomness import pack_python, unpack_python

__all__ = ["stateful"]


class _Generator:
    """One generator, in the words of everything else that has a state."""

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], object]) -> None:
        self.state_dict = read
        self.load_state_dict = write


def stateful(target: Any) -> Any:
    """`target`; or, where it is a generator of Python's, NumPy's or torch's, what tells and takes its state."""
    if hasattr(target, "state_dict"):
        return target
    if isinstance(target, random.Random) and not isinstance(target, random.SystemRandom):
        return _Generator(lambda: pack_python(target.getstate()), lambda state: target.setstate(unpack_python(state)))
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(target, numpy.random.Generator):
        target = target.bit_generator
    if numpy is not None and isinstance(target, numpy.random.BitGenerator):
        return _Generator(lambda: target.state, lambda state: setattr(target, "state", state))
    if numpy is not None and isinstance(target, numpy.random.RandomState):
        return _Generator(lambda: target.get_state(legacy=False), target.set_state)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(target, torch.Generator):
        return _Generator(target.get_state, target.set_state)
    return target
