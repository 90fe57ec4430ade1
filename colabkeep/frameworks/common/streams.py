"""Random streams: found, seeded, put aside and put back, without drawing from them.

A *stream* is anything random numbers come from: Python's `random`, NumPy's legacy generator, a
framework's, and any generator object that a data set, transform or sampler holds. Prices below
were measured on one core of a small cloud machine.
"""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from colabkeep.frameworks.common.walk import reachable

if TYPE_CHECKING:
    import numpy as np

__all__ = ["NEUTRAL", "Aside", "Kinds", "Recogniser", "Stream", "Streams"]

_SPREAD = 0x9E3779B97F4A7C15  # odd, so that the low 32 bits of its multiples differ: generators that take 32 do too
_MASK = 2**63 - 1
_FIRST_FOUND = 16  # salts below belong to the global streams


class Stream(Protocol):
    """One source of random numbers."""

    def take(self) -> Any:
        """Its state, taken out. The stream MUST be `put` or seeded before anyone draws from it again."""
        ...

    def put(self, taken: Any) -> None:
        """Continue exactly where `taken` was."""
        ...

    def seed(self, seed: int) -> None:
        """Start anew; `seed` has 63 bits."""
        ...


Recogniser: TypeAlias = Callable[[object], "Stream | None"]


@dataclass(frozen=True)
class Kinds:
    """Which streams there are: the global ones (always in the same order), and how to know one by its object.

    `devices` are those of devices in use which only the trainer may touch, and which loading does not keep apart: a
    loop that draws from them there does so in every session. They are taken out and put back, never seeded.
    """

    shared: Callable[[], Sequence[Stream]]
    recognise: Recogniser
    devices: Callable[[], Sequence[Stream]] = tuple


class Streams:
    """Several streams handled as one. Each gets a seed of its own from the one seed given."""

    def __init__(self, shared: Sequence[Stream] = (), found: Sequence[Stream] = ()) -> None:
        self._all = (*shared, *found)
        numbers = (*range(len(shared)), *range(_FIRST_FOUND, _FIRST_FOUND + len(found)))
        self._seeders = tuple(
            (number * _SPREAD & _MASK, stream.seed) for number, stream in zip(numbers, self._all, strict=True)
        )

    @classmethod
    def of(cls, kinds: Kinds, *roots: object) -> Streams:
        """The global streams, and the generator objects that can be reached from `roots`."""
        return cls(kinds.shared(), held(kinds, *roots))

    @classmethod
    def for_a_look(cls, kinds: Kinds, *roots: object) -> Streams:
        """These, and those of devices: all that may move when the trainer loads what the training has not asked for."""
        return cls(kinds.shared(), (*held(kinds, *roots), *kinds.devices()))

    def take(self) -> list[Any]:
        """The states of all, taken out."""
        return [stream.take() for stream in self._all]

    def put(self, taken: Sequence[Any]) -> None:
        """Continue all exactly where `taken` was."""
        for stream, state in zip(self._all, taken, strict=True):
            stream.put(state)

    def seed(self, seed: int) -> None:
        """Start all anew."""
        for salt, start in self._seeders:
            start(seed ^ salt)


def held(kinds: Kinds, *roots: object) -> list[Stream]:
    """The generator objects that can be reached from `roots`, in an order that depends on the code only."""
    streams = map(kinds.recognise, reachable(*roots))
    return [stream for stream in streams if stream is not None]


class Aside:
    """A context with streams of its own: they go on where the last visit left them, the outer ones never move."""

    def __init__(self, streams: Streams, seed: int, own: Sequence[Any] | None = None) -> None:
        self._streams = streams
        self._seed = seed
        self.own = own
        self._outer: list[Any] = []

    def __enter__(self) -> None:
        self._outer = self._streams.take()
        if self.own is None:
            self._streams.seed(self._seed)
        else:
            self._streams.put(self.own)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.own = self._streams.take()
        self._streams.put(self._outer)


class PythonStream:
    """Python's `random`, or an instance of `random.Random`. take 8, put 2, seed 4 µs."""

    def __init__(self, owner: random.Random | ModuleType) -> None:
        self.take: Callable[[], Any] = owner.getstate
        self.put: Callable[[Any], None] = owner.setstate
        self.seed: Callable[[int], None] = owner.seed


class LegacyStream:
    """A NumPy `RandomState`, such as the global one, its cached gaussian included. take 1, put 2, seed 1.5 µs.

    NumPy's own get_state and set_state cost 25 and 28 µs, because they convert 624 words one by one.
    Here the words are copied where they stand, at the address NumPy publishes; where they do not stand as
    expected (checked once), NumPy's own methods are used.
    """

    def __init__(self, owner: np.random.RandomState) -> None:
        self._owner = owner
        self._bits: Any = None
        self._words: memoryview | None = None

    def seed(self, seed: int) -> None:
        self._owner.seed(seed & 0xFFFFFFFF)

    def take(self) -> Any:
        words = self._live()
        if words is None:
            return self._owner.get_state(legacy=False)
        taken = bytes(words)
        # The public way to the cached gaussian: it is handed out without a draw when there is one.
        gauss = self._owner.standard_normal()
        return taken, (float(gauss) if bytes(words) == taken else None)

    def put(self, taken: Any) -> None:
        words = self._live()
        if isinstance(taken, dict):
            self._owner.set_state(taken)
        elif words is None or taken[1] is not None:
            self._owner.set_state(_public(*taken))
        else:
            self._owner.seed(0)  # for its side effect: it forgets a cached gaussian
            words[:] = taken[0]

    def _live(self) -> memoryview | None:
        bits = self._owner._bit_generator
        if bits is not self._bits:  # the first time, or after np.random.set_bit_generator
            self._bits, self._words = bits, _words(self._owner)
        return self._words


_MT_BYTES = 624 * 4 + 4


def _words(owner: np.random.RandomState) -> memoryview | None:
    """The 624 words and the position of a Mersenne Twister in memory, None if they are not found there."""
    state: Any = owner.get_state(legacy=False)
    if state["bit_generator"] != "MT19937":
        return None
    address = owner._bit_generator.ctypes.state_address
    words = memoryview((ctypes.c_ubyte * _MT_BYTES).from_address(address)).cast("B")
    expected = state["state"]["key"].tobytes() + int(state["state"]["pos"]).to_bytes(4, sys.byteorder)
    return words if words == expected else None


def _public(words: bytes, gauss: float | None) -> dict[str, Any]:
    import numpy as np

    key = np.frombuffer(words[:-4], dtype=np.uint32)
    state = {"key": key, "pos": int.from_bytes(words[-4:], sys.byteorder)}
    return {"bit_generator": "MT19937", "state": state, "has_gauss": int(gauss is not None), "gauss": gauss or 0.0}


class GeneratorStream:
    """A NumPy `Generator`, through its bit generator. take 1, put 1, seed 7 µs."""

    def __init__(self, bits: np.random.BitGenerator) -> None:
        self._bits = bits
        self._kind: Any = type(bits)  # NumPy's contract: every bit generator is built from one seed

    def take(self) -> Any:
        return self._bits.state

    def put(self, taken: Any) -> None:
        self._bits.state = taken

    def seed(self, seed: int) -> None:
        self._bits.state = self._kind(seed).state


def _shared() -> list[Stream]:
    numpy = sys.modules.get("numpy")
    streams: list[Stream] = [PythonStream(random)]
    if numpy is not None:
        streams.append(LegacyStream(numpy.random.mtrand._rand))
    return streams


def _recognise(obj: object) -> Stream | None:
    kind = type(obj)
    if issubclass(kind, random.Random):
        fixed = kind is random.SystemRandom or obj is getattr(random, "_inst", None)
        return None if fixed else PythonStream(obj)  # type: ignore[arg-type] # issubclass, for objects that fake isinstance
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if issubclass(kind, numpy.random.RandomState):
        return None if obj is numpy.random.mtrand._rand else LegacyStream(obj)  # type: ignore[arg-type]
    if issubclass(kind, numpy.random.Generator):
        return GeneratorStream(obj.bit_generator)  # type: ignore[attr-defined]
    return GeneratorStream(obj) if issubclass(kind, numpy.random.BitGenerator) else None  # type: ignore[arg-type]


NEUTRAL = Kinds(_shared, _recognise)
"""Python's and NumPy's streams. NumPy is looked at only if it was imported by someone else."""
