"""Paddle's global random streams and generators, on every device that is in use: their state as plain values, and
back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from paddle.framework import core

from colabkeep.core.state import Tree
from colabkeep.frameworks.shared.rng import GlobalStreams, NumpyStream, PythonStream, Stream

# Paddle hands it out as an opaque object that tells itself to pickle as a tuple: device, seed, offset, and since
# version 3 the text of the CPU engine, which is a Mersenne twister of 312 words and a position.


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


def streams(*, reseed: bool | None = None) -> GlobalStreams:
    """Python's, NumPy's and Paddle's streams as one object with a state.

    `reseed`: keep the CPU generator by its seed alone (see `SeedStream`); None: only where there is no other way.
    """
    return GlobalStreams([PythonStream(), NumpyStream(), *paddle_streams(reseed=reseed)])


def paddle_streams(*, reseed: bool | None = None) -> Sequence[Stream]:
    """Those of Paddle itself: of the CPU and of the devices this build can use."""
    by_seed = not tells_position() if reseed is None else reseed
    found: list[Stream] = [SeedStream() if by_seed else PaddleStream()]
    found.append(DeviceStream("gpu", _count("cuda"), partial(_generator, "cuda")))
    found.append(DeviceStream("xpu", _count("xpu"), partial(_generator, "xpu")))
    found += [
        DeviceStream(kind, partial(_custom_count, kind), partial(_custom_generator, kind))
        for kind in core.get_all_custom_device_type()
    ]
    return found


class PaddleStream(Stream):
    """A Paddle generator, such as the one of the CPU. take 0.4, put 0.3, seed 4 µs."""

    name = "paddle"
    told = True  # generator.initial_seed()
    take: Callable[[], Any]
    read: Callable[[], Any]
    put: Callable[[Any], object]
    seed: Callable[[int], object]

    def __init__(self, generator: Any = None) -> None:
        generator = generator or cpu_generator()
        self.take = self.read = generator.get_state
        self.put, self.seed = generator.set_state, generator.manual_seed

    def write(self, state: Any) -> None:
        if isinstance(state, int):  # kept by a `SeedStream`
            self.seed(state)
        else:
            self.put(state)


class SeedStream(Stream):
    """The same generator in a Paddle that tells its seed and not its position (before version 3).

    Reading begins a new stream, unless the present one is at its beginning: the generator is seeded with a number
    made from its last seed, so that the seed is all there is to know. A session that goes on
    after a save and one that is resumed from it draw the same numbers. Since a run reads its streams after every step,
    they do not depend on when it saves either.
    """

    name = "paddle"

    def take(self) -> Tree:
        generator = cpu_generator()
        seed: int = generator.get_state().current_seed()
        next_number = generator.random()
        generator.manual_seed(seed)
        if generator.random() != next_number:
            seed = _following(seed)
        generator.manual_seed(seed)
        return seed

    def put(self, state: Any) -> None:
        cpu_generator().manual_seed(state if isinstance(state, int) else state.current_seed())


class DeviceStream(Stream):
    """The default generators of all devices of one kind.

    The state of a device that this machine lacks is kept, so that two GPUs, one, and two again go on.
    """

    def __init__(self, kind: str, count: Callable[[], int], generator: Callable[[int], Any]) -> None:
        self.name = kind
        self._count, self._generator = count, generator
        self.here = count() > 0
        self._absent: list[Any] = []

    def take(self) -> Tree:
        here = [self._generator(i).get_state() for i in range(self._count())]
        return here + self._absent[len(here) :] or None

    def put(self, state: Any) -> None:
        self._absent = list(state)
        for i, one in enumerate(state[: self._count()]):
            self._generator(i).set_state(one)


def _following(seed: int) -> int:
    """The seed after this one: any of 63 bits, so that a long run does not come back to an earlier one."""
    digest = hashlib.sha256(b"colabkeep %d" % seed).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def _count(kind: str) -> Callable[[], int]:
    built = getattr(core, f"is_compiled_with_{kind}")()
    return getattr(core, f"get_{kind}_device_count") if built else lambda: 0


def _generator(kind: str, index: int) -> Any:
    return getattr(core, f"default_{kind}_generator")(index)


def _custom_count(kind: str) -> int:
    return sum(name.partition(":")[0] == kind for name in core.get_available_custom_device())


def _custom_generator(kind: str, index: int) -> Any:
    return core.default_custom_device_generator(core.CustomPlace(kind, index))
