"""Torch's global random streams, on every device that is in use. Nothing here wakes up a device."""

from __future__ import annotations

from typing import Any

import torch

from colabkeep.frameworks.common.randomness import NumpyStream, PythonStream, Streams
from colabkeep.vocabulary.state import Tree

__all__ = ["streams"]


def streams() -> Streams:
    """Python's, NumPy's and torch's streams as one object with a state."""
    return Streams([PythonStream(), NumpyStream(), CpuStream(), DeviceStream("cuda"), DeviceStream("xpu"), MpsStream()])


class CpuStream:
    """The generator behind `torch.rand()`."""

    name = "torch"

    def read(self) -> Tree:
        return torch.default_generator.get_state()

    def write(self, state: Any) -> None:
        torch.default_generator.set_state(state)


class DeviceStream:
    """The default generators of all devices of one kind.

    The state of a device that this machine lacks is kept, so that two GPUs, one, and two again go on.
    """

    def __init__(self, kind: str) -> None:
        self.name = kind
        self._module: Any = getattr(torch, kind, None)
        self._absent: list[Any] = []

    def read(self) -> Tree:
        if self._module is None or not self._module.is_initialized():
            return self._absent or None
        here = [generator.get_state() for generator in self._module.default_generators]
        return here + self._absent[len(here) :]

    def write(self, state: Any) -> None:
        count = self._module.device_count() if self._module is not None else 0
        self._absent = list(state)
        for i, one in enumerate(state[:count]):
            self._module.set_rng_state(one, i)  # put off by torch itself until the device is first used


class MpsStream:
    """The generator of an Apple GPU."""

    name = "mps"

    def read(self) -> Tree:
        return torch.mps.get_rng_state() if torch.backends.mps.is_available() else None

    def write(self, state: Any) -> None:
        if torch.backends.mps.is_available():
            torch.mps.set_rng_state(state)
