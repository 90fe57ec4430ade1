"""Tensors on their way into host memory that is allocated once and reused.

Fresh memory costs seven times the copy in page faults, so a slot lives as long as its tensor keeps
its shape.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import torch

from colabkeep.frameworks.common.resting import Proof
from colabkeep.frameworks.common.shelf import Shelf
from colabkeep.frameworks.torch.state.dtypes import dtype_name, plain_name
from colabkeep.frameworks.torch.state.host_memory import HostMemory
from colabkeep.vocabulary.state import HostTensor, Tagged, Tree

__all__ = ["Slot", "expect_slots", "memory_order", "row_major", "slot_leaf"]


class Slot:
    """Host memory for one tensor, and the `HostTensor` that shows it.

    With `keep_order` the memory has the tensor's own order of dimensions (channels last, transposed),
    so that the copy is one straight move; `host` then shows the dimensions in that order.
    Otherwise the memory is row-major, which any reader of the file understands.

    `new`: its bytes are others than those that `host` was shown with. `touched`: it has been written to, so its pages
    are there. `proof` is that of a tensor whose bytes are stored and were let go of; one that was proven to be
    `restless` keeps its memory.
    """

    __slots__ = (
        "__weakref__", "device", "dtype", "host", "kind", "memory", "new", "proof", "restless", "shape",
        "source_stride", "stride", "touched",
    )  # fmt: skip

    def __init__(
        self, tensor: torch.Tensor, memory: HostMemory, *, keep_order: bool = False, frozen: bool = False
    ) -> None:
        self.shape, self.source_stride = tensor.shape, tensor.stride()
        self.dtype, self.device = tensor.dtype, tensor.device
        order = memory_order(self.shape, self.source_stride) if keep_order else None
        dims = tuple(self.shape) if order is None else tuple(self.shape[d] for d in order)
        stride = row_major(self.shape) if order is None else self.source_stride
        self.memory, self.kind = memory.take(self.shape, stride, self.dtype)
        kept = self.memory.stride()
        self.stride = None if kept == row_major(self.shape) else kept  # None: those of row-major memory
        self.touched, self.new, self.restless = False, True, False
        self.proof: Proof | None = None
        memory.note(self)
        name = dtype_name(self.dtype)
        if name is None:  # safetensors does not know it: its bytes
            name, dims = "U8", (*dims, self.dtype.itemsize)
        self.host = HostTensor(dtype=name, shape=dims, data=_view(self.memory), frozen=frozen, lasting=True)

    @property
    def size(self) -> int:
        """Bytes of the tensor."""
        return self.host.data.nbytes

    @property
    def address(self) -> int:
        """Where the copy is."""
        return self.memory.data_ptr()

    def show(self, *, frozen: bool) -> None:
        """Show the same memory as trained or frozen from now on."""
        self.host = replace(self.host, frozen=frozen)

    def renew(self) -> None:
        """Show the memory by another object: its bytes are new."""
        self.host = replace(self.host, data=self.host.data)
        self.touched, self.new = True, False

    def let_go(self, proof: Proof, memory: HostMemory) -> None:
        """The bytes are stored, and `proof` tells whether the tensor still has them."""
        self.proof = proof
        self.host.let_go(memory.recall)
        memory.take_back(self)
        self.memory = self.memory.new_empty(0)

    def regain(self, memory: HostMemory) -> None:
        """It is to be copied once more."""
        self.proof, self.touched, self.new = None, False, True
        stride = row_major(self.shape) if self.stride is None else self.stride
        self.memory, self.kind = memory.take(self.shape, stride, self.dtype)
        self.host = replace(self.host, data=_view(self.memory))
        memory.note(self)

    def fits(self, tensor: torch.Tensor) -> bool:
        """Can this slot take the tensor as it is now?"""
        return (
            tensor.shape == self.shape
            and tensor.dtype is self.dtype
            and tensor.stride() == self.source_stride
            and tensor.device == self.device
        )


def slot_leaf(slot: Slot, **details: Tree) -> Tree:
    """The leaf of a slot: bare where the bytes, shape and dtype say all, else tagged with the rest."""
    if dtype_name(slot.dtype) is None:
        details["dtype"] = plain_name(slot.dtype)
    if slot.stride is not None:
        details["stride"] = tuple(slot.stride)
    return Tagged("torch.tensor", {"data": slot.host, **details}) if details else slot.host


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
