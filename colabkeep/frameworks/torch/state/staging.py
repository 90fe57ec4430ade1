"""Tensors on their way into host memory that is allocated once and reused.

Fresh memory costs seven times the copy in page faults, so a slot lives as long as its tensor keeps
its shape. Copies are collected first and made in one go.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from operator import attrgetter

import torch

from colabkeep.frameworks.torch.state.dtypes import dtype_name
from colabkeep.vocabulary.state import HostTensor

__all__ = ["Copies", "Slot", "memory_order", "row_major"]


class Slot:
    """Host memory for one tensor, and the `HostTensor` that shows it.

    With `keep_order` the memory has the tensor's own order of dimensions (channels last, transposed),
    so that the copy is one straight move; `host` then shows the dimensions in that order.
    Otherwise the memory is row-major, which any reader of the file understands.
    """

    __slots__ = ("device", "dtype", "host", "memory", "shape", "source_stride")

    def __init__(self, tensor: torch.Tensor, *, keep_order: bool = False, frozen: bool = False) -> None:
        self.shape, self.source_stride = tensor.shape, tensor.stride()
        self.dtype, self.device = tensor.dtype, tensor.device
        order = memory_order(self.shape, self.source_stride) if keep_order else None
        dims = tuple(self.shape) if order is None else tuple(self.shape[d] for d in order)
        stride = row_major(self.shape) if order is None else self.source_stride
        # Page-locked, memory takes a copy from the device at full speed and while the host goes on.
        self.memory = torch.empty_strided(self.shape, stride, dtype=self.dtype, pin_memory=tensor.is_cuda)
        name = dtype_name(self.dtype)
        if name is None:  # safetensors does not know it: its bytes
            name, dims = "U8", (*dims, self.dtype.itemsize)
        self.host = HostTensor(dtype=name, shape=dims, data=_view(self.memory), frozen=frozen)

    def show(self, *, frozen: bool) -> None:
        """Show the same memory as trained or frozen from now on."""
        self.host = replace(self.host, frozen=frozen)

    def fits(self, tensor: torch.Tensor) -> bool:
        """Can this slot take the tensor as it is now?"""
        return (
            tensor.shape == self.shape
            and tensor.dtype is self.dtype
            and tensor.stride() == self.source_stride
            and tensor.device == self.device
        )

    @property
    def stride(self) -> tuple[int, ...] | None:
        """The tensor's strides where they are kept and not those of row-major memory, else None."""
        kept = self.memory.stride()
        return None if kept == row_major(self.shape) else kept


class Copies:
    """Copies to be made: from the live tensors (held here, so that none goes away) to their slots."""

    def __init__(self) -> None:
        self._targets: list[torch.Tensor] = []
        self._sources: list[torch.Tensor] = []

    def add(self, slot: Slot, source: torch.Tensor) -> None:
        """One copy."""
        self._targets.append(slot.memory)
        self._sources.append(source)

    def extend(self, targets: Iterable[torch.Tensor], sources: Iterable[torch.Tensor]) -> None:
        """Many copies."""
        self._targets += targets
        self._sources += sources

    def run(self) -> None:
        """Make all copies. When this returns, the sources may change."""
        with torch.no_grad():
            if all(map(attrgetter("is_cpu"), self._sources)):
                if self._sources:  # one call: the loop runs in C++
                    torch._foreach_copy_(self._targets, self._sources)
                return
            for target, source in zip(self._targets, self._sources, strict=True):
                target.copy_(source, non_blocking=source.is_cuda)
        for device in {source.device for source in self._sources if source.is_cuda}:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(device))
            event.synchronize()


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of gapless memory whose last dimension runs fastest, as torch counts them."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def memory_order(shape: Sequence[int], stride: Sequence[int]) -> list[int] | None:
    """The dimensions from the slowest to the fastest; None if memory has gaps or overlaps.

    The order depends on the strides alone, so that it can be found again without the shape.
    """
    order = sorted(range(len(stride)), key=lambda d: -stride[d])
    step = 1
    for d in reversed(order):
        if shape[d] != 1 and stride[d] != step:
            return None
        step *= shape[d]
    return order if prod(shape) else None


def _view(memory: torch.Tensor) -> memoryview:
    """The bytes of gapless memory. The view keeps the memory alive."""
    size = memory.numel() * memory.element_size()
    if size == 0:
        return memoryview(b"")
    # Not through NumPy: it need not be installed, and has no bfloat16.
    buffer = (ctypes.c_ubyte * size).from_address(memory.data_ptr())
    buffer.memory = memory  # type: ignore[attr-defined]
    return memoryview(buffer).cast("B")
