"""Copies from a GPU that go on beside its kernels: a stream of their own, and events instead of waiting."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

__all__ = ["SideCopies"]


class SideCopies:
    """Copies into pinned memory, under way on one side stream for each device. They hold what they read."""

    def __init__(self, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self._pairs = list(pairs)  # so that no memory is given to another tensor before it is read
        self._events: dict[torch.device, torch.cuda.Event] = {}
        cuda: Any = torch.cuda
        for device in {source.device for _, source in self._pairs}:
            side = cuda.Stream(device)
            side.wait_stream(cuda.current_stream(device))  # the kernels of the step before come first
            with cuda.stream(side), torch.no_grad():
                for target, source in self._pairs:
                    if source.device == device:
                        target.copy_(source, non_blocking=True)
                self._events[device] = cuda.Event()
                self._events[device].record(side)

    def __bool__(self) -> bool:
        return bool(self._pairs)

    def hold_kernels(self) -> None:
        """What is launched from here on waits, on the device, for the copies; the host goes on."""
        for device, event in self._events.items():
            torch.cuda.current_stream(device).wait_event(event)

    def wait(self) -> None:
        """Return when the copies are made."""
        for event in self._events.values():
            event.synchronize()
        self._pairs = []
