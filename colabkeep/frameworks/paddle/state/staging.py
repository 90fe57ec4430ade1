"""Tensors on their way into host memory that is allocated once and reused.

Fresh memory costs ten times the copy in page faults, so a slot lives as long as its tensor keeps
its shape. Copies are collected first and made in one go.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import paddle
from paddle.base import core

from colabkeep.frameworks.paddle.state.dtypes import dtype_name
from colabkeep.frameworks.paddle.state.memory import bytes_of, cpu_tensor, on_cpu, place_name, size_of
from colabkeep.vocabulary.state import HostTensor

__all__ = ["Copies", "Slot"]


_CPU_ONLY = not (core.is_compiled_with_cuda() or core.is_compiled_with_xpu() or core.get_all_custom_device_type())


class Slot:
    """Row-major host memory for one tensor, and the `HostTensor` that shows it.

    All is copied each time, and none of it said to last: `tensor.inplace_version` stays as it is when an optimizer
    steps, when batch norm moves its means, and in `set_value` and `copy_` (tried with all optimizers of Paddle 3.3.1).
    """

    __slots__ = ("dtype", "host", "memory", "place", "shape")

    def __init__(self, tensor: Any, *, frozen: bool = False) -> None:
        self.shape, self.dtype, self.place = tuple(tensor.shape), tensor.dtype, str(tensor.place)
        # Page-locked, memory takes a copy from a GPU at full speed and while the host goes on.
        self.memory = tensor.pin_memory() if tensor.place.is_gpu_place() else cpu_tensor(self.shape, self.dtype)
        name, shape = dtype_name(self.dtype), self.shape
        if name is None:  # safetensors does not know it: its bytes
            name, shape = "U8", (*shape, int(tensor.element_size()))
        self.host = HostTensor(dtype=name, shape=shape, data=bytes_of(self.memory), frozen=frozen)

    def show(self, *, frozen: bool) -> None:
        """Show the same memory as trained or frozen from now on."""
        self.host = replace(self.host, frozen=frozen)

    def fits(self, tensor: Any) -> bool:
        """Can this slot take the tensor as it is now?"""
        return tuple(tensor.shape) == self.shape and tensor.dtype == self.dtype and str(tensor.place) == self.place


class Copies:
    """Copies to be made: from the live tensors (held here, so that none goes away) to their slots."""

    def __init__(self) -> None:
        self._pairs: list[tuple[Any, Any]] = []

    def add(self, slot: Slot, source: Any) -> None:
        """One copy."""
        if size_of(source):
            self._pairs.append((slot.memory, source))

    def extend(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        """Many copies: targets and sources, none of them empty."""
        self._pairs += pairs

    def run(self) -> None:
        """Make all copies. When this returns, the sources may change."""
        if _CPU_ONLY:
            for target, source in self._pairs:
                target.copy_(source, True)
            return
        devices = set()
        for target, source in self._pairs:
            here = on_cpu(source)
            target.copy_(source, here)
            if not here:
                devices.add(place_name(source.place))
        for device in devices:
            paddle.device.synchronize(device)
