"""Copies from a GPU that go on beside its kernels: a stream of their own, and events instead of waiting.

What keeps them whole (https://pytorch.org/docs/stable/notes/cuda.html, "CUDA streams" and "Use pinned memory buffers"):

    before   the side stream waits for the stream that training is on, so the kernels of the step before come first
    during   what is read is held here, so the allocator gives that memory to nobody (no need for `record_stream`)
    after    the stream that training is on waits for the copies before the next step; the host reads and reuses the
             buffers only once the events have come
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

__all__ = ["SideCopies", "record_events"]

Pair = tuple[torch.Tensor, torch.Tensor]


class SideCopies:
    """Copies into page-locked memory: pairs of target and source, on one side stream for each device."""

    def __init__(self, pairs: Iterable[Pair]) -> None:
        self._pairs = list(pairs)
        self._events: dict[torch.device, torch.cuda.Event] = {}

    def __bool__(self) -> bool:
        return bool(self._pairs)

    def start(self) -> None:
        """Let the copies begin. Interrupted, it returns once nothing is copied any more."""
        cuda: Any = torch.cuda
        sides = {device: cuda.Stream(device) for device in {source.device for _, source in self._pairs}}
        try:
            for device, side in sides.items():
                side.wait_stream(cuda.current_stream(device))
                with cuda.stream(side), torch.no_grad():
                    for target, source in self._pairs:
                        if source.device == device:
                            target.copy_(source, non_blocking=True)
                    event = cuda.Event()
                    event.record(side)
                self._events[device] = event
        except BaseException:
            for side in sides.values():
                side.synchronize()
            raise

    def hold_kernels(self) -> None:
        """What is launched from here on waits, on the device, for the copies; the host goes on."""
        cuda: Any = torch.cuda
        if self._events and cuda.is_current_stream_capturing():
            return  # into a CUDA graph, whose beginning has waited for the whole device (torch/cuda/graphs.py)
        for device, event in self._events.items():
            cuda.current_stream(device).wait_event(event)

    def wait(self) -> None:
        """Return when the copies are made."""
        for event in self._events.values():
            event.synchronize()
        self._pairs = []


def record_events(devices: Iterable[torch.device]) -> list[Any]:
    """Events that come once all is done that was launched so far on the current streams of these devices."""
    cuda: Any = torch.cuda
    events = []
    for device in set(devices):
        with cuda.device(device):
            event = cuda.Event()
            event.record(cuda.current_stream(device))
        events.append(event)
    return events
