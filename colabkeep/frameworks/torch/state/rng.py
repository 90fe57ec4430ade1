"""Torch's global random streams, on every device that is in use. Nothing here wakes up a device."""

from __future__ import annotations

import ctypes
import struct
from functools import partial
from typing import Any

import torch

from colabkeep.frameworks.common.randomness import (
    MOVED,
    Glances,
    NumpyStream,
    PythonStream,
    Streams,
    bytes_at,
    look_through,
)
from colabkeep.vocabulary.state import Tree

__all__ = ["streams"]


def streams() -> Streams:
    """Python's, NumPy's and torch's streams as one object with a state."""
    return Streams([PythonStream(), NumpyStream(), CpuStream(), DeviceStream("cuda"), DeviceStream("xpu"), MpsStream()])


class CpuStream:
    """The generator behind `torch.rand()`."""

    name = "torch"
    here = True

    def __init__(self) -> None:
        self.glances = _cpu_glances(torch.default_generator)
        self._seen: object = None
        self._state: Tree = None

    def read(self) -> Tree:
        # get_state() allocates five kilobytes, for which the heap is tidied up each time; a look takes 0.2 µs.
        look = look_through(self.glances)
        if look != self._seen:
            self._seen, self._state = look, torch.default_generator.get_state()
        return self._state

    def write(self, state: Any) -> None:
        torch.default_generator.set_state(state)


_MARK = 0x5EED0FC01ABCEE9
_HEAD = 256  # bytes of a generator that surely exist: it holds 624 words
_WORDS = 2516  # bytes from the seed to behind the words: seed, two positions, the words
_GLANCE = 40  # of these, from the seed on: a draw moves a position, a refill every word
_PENDING = 28  # bytes behind the words, with the pending Gaussians


def _cpu_glances(generator: torch.Generator) -> Glances:
    """Glances at a CPU generator that see whether it moved; one that always says "moved" if its layout is another."""
    trial: Any = torch.Generator("cpu")
    trial.manual_seed(_MARK)
    found = ctypes.string_at(trial._cdata, _HEAD) if hasattr(trial, "_cdata") else b""
    seed_at = found.find(struct.pack("=Q", _MARK))
    if seed_at < 0:
        return MOVED
    # The first draw changes every word; those below change a position alone.
    torch.rand(1, generator=trial, device="cpu")
    look: Any = partial(look_through, _cpu_bytes(trial, seed_at))
    state, before = trial.get_state(), look()
    torch.rand(1, generator=trial, device="cpu")
    drawn = look()
    trial.set_state(state)
    back = look()
    torch.randn(1, generator=trial, device="cpu")
    one = look()
    torch.randn(1, generator=trial, device="cpu")  # the second of a pair: moves nothing but the pending one
    # Padding, and a Gaussian that is not pending, are left to chance; the position and the words are not.
    works = before[0][16:] == back[0][16:] and len({words[16:] for words, _ in (before, drawn, one)}) == 3
    works = works and one != look()
    return _cpu_bytes(generator, seed_at) if works else MOVED


def _cpu_bytes(generator: Any, seed_at: int) -> Glances:
    at = generator._cdata + seed_at
    return bytes_at(at, _GLANCE), bytes_at(at + _WORDS, _PENDING)


class DeviceStream:
    """The default generators of all devices of one kind.

    The state of a device that this machine lacks is kept, so that two GPUs, one, and two again go on.
    """

    def __init__(self, kind: str) -> None:
        self.name = kind
        self._module: Any = getattr(torch, kind, None)
        self.here: bool = self._module is not None and self._module._is_compiled()
        self._absent: list[Any] = []
        self.glances: Glances = (self._glance,)

    def read(self) -> Tree:
        if self._asleep():
            return self._absent or None
        here = [generator.get_state() for generator in self._module.default_generators]
        return here + self._absent[len(here) :]

    def write(self, state: Any) -> None:
        count = self._module.device_count() if self._module is not None else 0
        self._absent = list(state)
        for i, one in enumerate(state[:count]):
            self._module.set_rng_state(one, i)  # put off by torch itself until the device is first used

    def _asleep(self) -> bool:
        # An empty tuple until the device wakes up; in a forked child of the one that woke it, it sleeps again.
        return self._module is None or not self._module.default_generators or not self._module.is_initialized()

    def _glance(self) -> object:
        return None if self._asleep() else object()


class MpsStream:
    """The generator of an Apple GPU."""

    name = "mps"
    glances = MOVED

    def __init__(self) -> None:
        self.here = torch.backends.mps.is_available()

    def read(self) -> Tree:
        return torch.mps.get_rng_state() if self.here else None

    def write(self, state: Any) -> None:
        if self.here:
            torch.mps.set_rng_state(state)
