"""The state of a Paddle generator as plain values, and back.

Paddle hands it out as an opaque object that tells itself to pickle as a tuple: device, seed, offset, and since
version 3 the text of the CPU engine, which is a Mersenne twister of 312 words and a position.
"""

from __future__ import annotations

from typing import Any

from paddle.framework import core

from colabkeep.vocabulary.state import Tree

__all__ = ["GeneratorState", "cpu_generator", "plain_state", "revived_state", "tells_position"]

GeneratorState: Any = core.GeneratorState
_CPU = -1  # what a state has as its device
_WHOLE = 4  # entries of a state that has the engine


def cpu_generator() -> Any:
    """The generator behind `paddle.rand()` on the CPU."""
    return core.default_cpu_generator()


def tells_position() -> bool:
    """Does this Paddle tell where in its stream the CPU generator is? Those before version 3 tell the seed only."""
    return len(cpu_generator().get_state().__getstate__()) >= _WHOLE


def plain_state(state: Any) -> Tree | None:
    """A state as plain values; None if it does not tell its position, so that its numbers could not be continued."""
    told = state.__getstate__()
    if len(told) < _WHOLE and told[0] == _CPU:
        return None
    device, seed, offset = told[:3]
    return {"device": device, "seed": seed, "offset": offset, "engine": bytes(told[3]) if told[3:] else None}


def revived_state(plain: Tree) -> Any:
    """The object of a state told by `plain_state`, also by one of another version.

    A device's generator is its seed and offset; what is known of an engine beside them is used where it can be.
    """
    seed, engine = plain["seed"], plain["engine"]
    told: tuple[Any, ...] = (plain["device"], seed, plain["offset"])
    whole = core.Generator().get_state().__getstate__()
    if len(whole) >= _WHOLE:
        told = (*told, list(_engine_of(seed) if engine is None else engine))
    state = GeneratorState.__new__(GeneratorState)
    state.__setstate__(told)
    return state


def _engine_of(seed: int) -> bytes:
    generator = core.Generator()
    generator.manual_seed(seed)
    return bytes(generator.get_state().__getstate__()[_WHOLE - 1])
