"""torch's random streams, beside Python's and NumPy's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from colabkeep.frameworks.common.looks import Asked, Look
from colabkeep.frameworks.common.streams import NEUTRAL, Kinds, Stream
from colabkeep.frameworks.torch.state.rng import DeviceStream, MpsStream, torch_look

__all__ = ["TORCH"]


class TorchStream:
    """A torch generator. take 0.6, put 0.2, seed 1 µs (`torch.manual_seed` costs 78 and seeds every device)."""

    told = True  # torch.initial_seed()

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator
        self.take: Callable[[], Any] = generator.get_state
        self.put: Callable[[Any], Any] = generator.set_state
        self.seed: Callable[[int], Any] = generator.manual_seed

    def look(self) -> Look:
        return torch_look(self._generator)


def _shared() -> Sequence[Stream]:
    return [TorchStream(torch.default_generator), *NEUTRAL.shared()]


def _recognise(obj: object) -> Stream | None:
    if isinstance(obj, torch.Generator):
        # A generator of another device cannot be touched in a forked worker, and no data set draws from it there.
        own = obj is not torch.default_generator and obj.device.type == "cpu"
        return TorchStream(obj) if own else None
    return NEUTRAL.recognise(obj)


class DeviceStreams:
    """The generators of all devices of one kind."""

    told = False

    def __init__(self, devices: Any) -> None:
        self.take: Callable[[], Any] = devices.read
        self.put: Callable[[Any], Any] = devices.write

    def seed(self, seed: int) -> None:
        """They go on; see `Kinds`."""

    def look(self) -> Look:
        return Asked(self.take, self.put)


def _devices() -> Sequence[Stream]:
    kinds = (DeviceStream("cuda"), DeviceStream("xpu"), MpsStream())
    return [DeviceStreams(devices) for devices in kinds if devices.read() is not None]


TORCH = Kinds(_shared, _recognise, _devices)
"""torch's CPU generator, Python's and NumPy's streams, and generator objects of all three; those of devices in use."""
