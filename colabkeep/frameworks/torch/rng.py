"""Torch's global random streams, on every device that is in use. Nothing here wakes up a device."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import torch

from colabkeep.core.state import Tree
from colabkeep.frameworks.shared.rng import Asked, GlobalStreams, Look, NumpyStream, PythonStream, Seen, Stream, view_at


def streams() -> GlobalStreams:
    """Python's, NumPy's and torch's streams as one object with a state."""
    return GlobalStreams(
        [PythonStream(), NumpyStream(), TorchStream(), DeviceStream("cuda"), DeviceStream("xpu"), MpsStream()]
    )


class TorchStream(Stream):
    """A torch generator of the CPU, such as the global one. take 0.6, put 0.2, seed 1 µs (`torch.manual_seed` costs 78
    and seeds every device)."""

    name = "torch"
    told = True  # torch.initial_seed()
    take: Callable[[], Any]
    read: Callable[[], Any]
    put: Callable[[Any], object]
    seed: Callable[[int], object]

    def __init__(self, generator: torch.Generator = torch.default_generator) -> None:
        self._generator = generator
        self.take = self.read = generator.get_state
        self.put, self.seed = generator.set_state, generator.manual_seed

    def look(self) -> Look:
        return torch_look(self._generator)


_MARK = 0x5EED0FC01ABCEE9
_HEAD = 256  # bytes of a generator that surely exist: it holds 624 words
_STATE = 2544  # bytes from the seed on: seed, two positions, the words, and the pending Gaussians


def torch_look(generator: torch.Generator) -> Look:
    """For a generator of the CPU."""
    seed_at = _seed_at()
    if seed_at is None:
        return Asked(generator.get_state, generator.set_state)
    at: Any = generator
    return Seen(view_at(at._cdata + seed_at, _STATE))


def _seed_at() -> int | None:
    """Where in a generator of the CPU its state begins; None if that does not prove true of one of our own."""
    trial: Any = torch.Generator("cpu")
    trial.manual_seed(_MARK)
    head = bytes(view_at(trial._cdata, _HEAD)) if hasattr(trial, "_cdata") else b""
    seed_at = head.find(struct.pack("=Q", _MARK))
    if seed_at < 0:
        return None
    look = Seen(view_at(trial._cdata + seed_at, _STATE))
    # The first draw changes every word; the second one a position alone; the last one, of a pair, what is pending.
    for draw in (torch.rand, torch.rand, torch.randn, torch.randn):
        look.keep()
        first = draw(1, generator=trial, device="cpu")
        if not look.moved():
            return None
        look.put_back()
        if look.moved() or not torch.equal(draw(1, generator=trial, device="cpu"), first):
            return None
    return seed_at


class DeviceStream(Stream):
    """The default generators of all devices of one kind.

    The state of a device that this machine lacks is kept, so that two GPUs, one, and two again go on.
    """

    def __init__(self, kind: str) -> None:
        self.name = kind
        self._module: Any = getattr(torch, kind, None)
        self.here: bool = self._module is not None and self._module._is_compiled()
        self._absent: list[Any] = []

    def take(self) -> Tree:
        if self._asleep():
            return self._absent or None
        here = [generator.get_state() for generator in self._module.default_generators]
        return here + self._absent[len(here) :]

    def put(self, state: Any) -> None:
        count = self._module.device_count() if self._module is not None else 0
        self._absent = list(state)
        for i, one in enumerate(state[:count]):
            self._module.set_rng_state(one, i)  # put off by torch itself until the device is first used

    def _asleep(self) -> bool:
        # An empty tuple until the device wakes up; in a forked child of the one that woke it, it sleeps again.
        return self._module is None or not self._module.default_generators or not self._module.is_initialized()


class MpsStream(Stream):
    """The generator of an Apple GPU."""

    name = "mps"

    def __init__(self) -> None:
        self.here = torch.backends.mps.is_available()

    def take(self) -> Tree:
        return torch.mps.get_rng_state() if self.here else None

    def put(self, state: Any) -> None:
        if self.here:
            torch.mps.set_rng_state(state)
