"""Losses of torch: those in host memory are read at once, those on a device on their way to the next save.

On a device each loss is written into a small ring there; once in a while the ring is sent, in stream order, to
page-locked memory, and read when it has come. No step and no save waits for that: what has not come is part of the
state, as it lies on the device, and the capture takes it along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from colabkeep.frameworks.common.losses import at_hand, stored_steps
from colabkeep.frameworks.torch.state.leaves import native
from colabkeep.frameworks.torch.state.modes import ordinary
from colabkeep.vocabulary.state import Tree

__all__ = ["TorchLosses"]

cuda: Any = torch.cuda
_Tensor = torch.Tensor

_ROOM = 512  # losses that a ring holds: 4 KiB
_MANY = 16  # that wait until they are sent: a copy and an event are some 30 µs of the host's time


class TorchLosses:
    """Reads the losses of one run."""

    def __init__(self) -> None:
        self._rings: dict[torch.device, _Ring] = {}

    def take(self, step: int, loss: Any) -> float | None:
        if not isinstance(loss, _Tensor):
            return at_hand(loss)
        try:
            if loss.is_cpu:
                number = loss.item()
                return number if number.__class__ is float else at_hand(number)
            if loss.numel() == 1 and not loss.is_meta and not loss.is_complex():
                self._ring(loss.device).put(step, loss)
        except (RuntimeError, ValueError, TypeError):
            return None  # a tensor of many numbers, or one without any
        return None

    def arrived(self) -> Sequence[tuple[int, float]]:
        if len(self._rings) == 1:  # as always, but for who trains on two devices
            (ring,) = self._rings.values()
            return ring.arrived()
        return sorted(each for ring in self._rings.values() for each in ring.arrived())

    def settle(self) -> Sequence[tuple[int, float]]:
        return sorted(each for ring in self._rings.values() for each in ring.settle())

    def state_dict(self) -> Mapping[str, Any]:
        rings = [ring.state() for ring in self._rings.values() if len(ring)]
        return {"rings": rings} if rings else {}

    def read(self, tree: Tree) -> Sequence[tuple[int, float]]:
        rings = native(tree).get("rings", [])
        return sorted(each for ring in rings for each in _unread(ring))

    def _ring(self, device: torch.device) -> _Ring:
        ring = self._rings.get(device)
        if ring is None:
            with ordinary():
                ring = self._rings[device] = _Ring(device)
        return ring


class _Ring:
    """The last losses of one device: those of the steps `_steps[begin:end]`, counted without end, are not read yet."""

    def __init__(self, device: torch.device) -> None:
        dtype = torch.float32 if device.type == "mps" else torch.float64  # Apple's GPUs have no float64
        self._values = torch.zeros(_ROOM, dtype=dtype, device=device)
        self._places = self._values.unbind()
        self._steps = [0] * _ROOM
        self._begin = self._end = 0
        self._cuda = device.type == "cuda"
        self._host = _page_locked(dtype) if self._cuda else None
        self._sent: tuple[int, Any] | None = None  # up to where, and the event of its arrival
        self._late: list[tuple[int, float]] = []  # had to be waited for, and are not told yet

    def __len__(self) -> int:
        return self._end - self._begin

    def put(self, step: int, loss: torch.Tensor) -> None:
        """Keep the loss of a step."""
        if len(self) == _ROOM:  # nobody asked for them, or the device is hundreds of steps behind
            self._late = [*self.settle()]  # with those that were late before
        place = self._end % _ROOM
        self._places[place].copy_(loss.detach().reshape(()))
        self._steps[place] = step
        self._end += 1

    def arrived(self) -> Sequence[tuple[int, float]]:
        """Those that were sent and have come; sends more if many wait."""
        if self._sent is not None:
            upto, sent = self._sent
            if self._host is None or not sent.query():
                return ()
            self._sent = None
            return self._told(self._host.tolist(), upto)
        if len(self) < _MANY:
            return ()
        if self._host is None:  # a device without events that we know: one wait for many losses
            return self.settle()
        self._host.copy_(self._values, non_blocking=True)
        event: Any = cuda.Event()
        event.record(cuda.current_stream(self._values.device))
        self._sent = self._end, event
        return ()

    def settle(self) -> Sequence[tuple[int, float]]:
        """All that are not read. Waits."""
        self._sent = None
        return self._told(self._values.tolist() if len(self) else (), self._end)

    def state(self) -> dict[str, Any]:
        """What is not read, where it is."""
        places = [count % _ROOM for count in range(self._begin, self._end)]
        return {
            "steps": stored_steps(self._steps[place] for place in places),
            "places": stored_steps(places),
            "values": self._values,
        }

    def _told(self, values: Sequence[float], upto: int) -> list[tuple[int, float]]:
        places = [count % _ROOM for count in range(self._begin, upto)]
        late, self._late, self._begin = self._late, [], upto
        return late + [(self._steps[place], float(values[place])) for place in places]


def _page_locked(dtype: torch.dtype) -> torch.Tensor:
    try:
        return torch.empty(_ROOM, dtype=dtype, device="cpu", pin_memory=True)
    except RuntimeError:  # the driver has none left: ordinary memory then, which a copy may wait for
        return torch.empty(_ROOM, dtype=dtype, device="cpu")


def _unread(ring: Mapping[str, Any]) -> list[tuple[int, float]]:
    values = ring["values"].tolist()
    return [
        (step, float(values[place]))
        for step, place in zip(ring["steps"].tolist(), ring["places"].tolist(), strict=True)
    ]
