"""Tensors on their way into host memory that is allocated once and reused.

Fresh memory costs seven times the copy in page faults, so a slot lives as long as its tensor keeps
its shape. Copies are collected first and made in one go.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from operator import attrgetter
from typing import Any

import torch

from colabkeep.frameworks.common.shelf import Shelf
from colabkeep.frameworks.torch.state.dtypes import dtype_name
from colabkeep.frameworks.torch.state.host_memory import PINNED, HostMemory
from colabkeep.frameworks.torch.state.side_stream import record_events
from colabkeep.vocabulary.state import HostTensor

__all__ = ["Copies", "Slot", "expect_slots", "memory_order", "row_major"]


class Slot:
    """Host memory for one tensor, and the `HostTensor` that shows it.

    With `keep_order` the memory has the tensor's own order of dimensions (channels last, transposed),
    so that the copy is one straight move; `host` then shows the dimensions in that order.
    Otherwise the memory is row-major, which any reader of the file understands.
    """

    __slots__ = (
        "__weakref__", "device", "dtype", "host", "kind", "memory", "shape", "source_stride", "stride", "touched",
    )  # fmt: skip

    def __init__(
        self, tensor: torch.Tensor, memory: HostMemory, *, keep_order: bool = False, frozen: bool = False
    ) -> None:
        self.shape, self.source_stride = tensor.shape, tensor.stride()
        self.dtype, self.device = tensor.dtype, tensor.device
        order = memory_order(self.shape, self.source_stride) if keep_order else None
        dims = tuple(self.shape) if order is None else tuple(self.shape[d] for d in order)
        stride = row_major(self.shape) if order is None else self.source_stride
        self.memory, self.kind = memory.take(self.shape, stride, self.dtype, self.device)
        kept = self.memory.stride()
        self.stride = None if kept == row_major(self.shape) else kept  # None: those of row-major memory
        self.touched = False  # has it been written to: are its pages there?
        memory.note(self)
        name = dtype_name(self.dtype)
        if name is None:  # safetensors does not know it: its bytes
            name, dims = "U8", (*dims, self.dtype.itemsize)
        self.host = HostTensor(dtype=name, shape=dims, data=_view(self.memory), frozen=frozen, lasting=True)

    @property
    def pinned(self) -> bool:
        """Can a GPU copy into it beside its kernels?"""
        return self.kind == PINNED

    def show(self, *, frozen: bool) -> None:
        """Show the same memory as trained or frozen from now on."""
        self.host = replace(self.host, frozen=frozen)

    def renew(self) -> None:
        """Show the memory by another object: its bytes are new."""
        old = self.host
        self.host = HostTensor(dtype=old.dtype, shape=old.shape, data=old.data, frozen=old.frozen, lasting=True)
        self.touched = True

    def fits(self, tensor: torch.Tensor) -> bool:
        """Can this slot take the tensor as it is now?"""
        return (
            tensor.shape == self.shape
            and tensor.dtype is self.dtype
            and tensor.stride() == self.source_stride
            and tensor.device == self.device
        )


class Copies:
    """Copies to be made: from the live tensors (held here, so that none goes away) to their slots."""

    def __init__(self) -> None:
        self._targets: list[torch.Tensor] = []
        self._sources: list[torch.Tensor] = []
        self._small: list[tuple[memoryview, memoryview]] = []

    def add(self, slot: Slot, source: torch.Tensor) -> None:
        """One copy."""
        self._targets.append(slot.memory)
        self._sources.append(source)

    def extend(self, targets: Iterable[torch.Tensor], sources: Iterable[torch.Tensor]) -> None:
        """Many copies."""
        self._targets += targets
        self._sources += sources

    def assign(self, small: Iterable[tuple[memoryview, memoryview]]) -> None:
        """Many small copies, as views of where to and where from. The caller keeps the memory alive."""
        self._small += small

    def track(self, tracked: Any) -> None:
        """A part's tensors, of which the changed ones are to be copied. Here none is: this is how one rehearses."""

    def run(self) -> None:
        """Make all copies. When this returns, the sources may change."""
        for event in self.launch():
            event.synchronize()

    def launch(self) -> list[Any]:
        """Have all copies made before whatever is launched after them; those on the CPU are made when this returns.

        Returns events of the GPUs; the slots hold the copies, and this object may go, once they have come.
        """
        for place, live in self._small:
            place[:] = live
        with torch.no_grad():
            if all(map(attrgetter("is_cpu"), self._sources)):
                if self._sources:  # one call: the loop runs in C++
                    torch._foreach_copy_(self._targets, self._sources)
                return []
            for target, source in zip(self._targets, self._sources, strict=True):
                target.copy_(source, non_blocking=source.is_cuda)
        return record_events(source.device for source in self._sources if source.is_cuda)


def expect_slots(memory: HostMemory, shelf: Shelf[Slot], wanted: Mapping[str, torch.Tensor]) -> None:
    """Slots for all of these tensors, and no others, will be asked of a shelf that has turned: plan for the new ones.

    Raises:
        MemoryFull: there is no room for them.
    """
    kept = {path for path, slot in shelf.before.items() if path in wanted and slot.fits(wanted[path])}
    new = [tensor for path, tensor in wanted.items() if path not in kept]
    memory.expect(new, [slot for path, slot in shelf.before.items() if path not in kept])


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
