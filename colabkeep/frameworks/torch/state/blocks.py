"""Tensors as gapless blocks of memory, and groups of blocks with all that a capture does with them at hand.

What depends on the tensors alone is made once: a training of a thousand tensors has a microsecond for each.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence
from itertools import chain

import torch

from colabkeep.frameworks.common.moves import Move
from colabkeep.frameworks.torch.state.samples import Samples
from colabkeep.frameworks.torch.state.staging import Copies, Slot

__all__ = ["Block", "Group", "Prompt"]

_SMALL = 4096  # bytes; fewer are copied by the interpreter itself in 0.1 µs, a tenth of what torch takes to begin
_EXACT = (torch.Tensor, torch.nn.Parameter)


class Block:
    """A tensor's memory as one gapless block, with the slot that has the same order. Does not keep the memory alive:
    between two captures the user may let go of it."""

    __slots__ = ("comparisons", "copies", "memory", "on_cpu", "size", "small", "target")

    def __init__(self, tensor: torch.Tensor, slot: Slot) -> None:
        self.on_cpu, self.memory = tensor.is_cpu, slot.memory
        self.size = slot.memory.nbytes
        self.target = slot.memory.data_ptr()
        self.copies: list[Move] = []
        self.comparisons: list[Move] = []
        self.small: tuple[memoryview, memoryview] | None = None  # where to, and where from
        if self.on_cpu:
            copy = Move(self.target, tensor.data_ptr(), self.size)
            self.copies, self.comparisons = copy.pieces(), copy._replace(compare=True).pieces()
            if self.size <= _SMALL:
                self.small = _view(copy.target, self.size), _view(copy.source, self.size)

    @staticmethod
    def fits(tensor: torch.Tensor, slot: Slot) -> bool:
        """Has the slot the very order of the tensor's own memory, and tells the tensor of changes?"""
        return (
            type(tensor) in _EXACT
            and (tensor.is_cpu or (tensor.is_cuda and slot.pinned))
            and tensor.stride() == slot.memory.stride()
            and not tensor.is_conj()
            and not tensor.is_neg()
            and not tensor.is_inference()  # it counts no versions
            and tensor.numel() > 0
        )


class Group:
    """The tensors of some numbers, all of them blocks, that a capture treats alike."""

    def __init__(
        self,
        numbers: Sequence[int] = (),
        tensors: Sequence[torch.Tensor] = (),
        blocks: Sequence[Block | None] = (),
        owned: Collection[int] = (),
    ) -> None:
        self.numbers = list(numbers)
        self.tensors = [tensors[i] for i in numbers]
        found = [(i, block) for i in numbers if (block := blocks[i]) is not None]
        self.addresses = [tensor.data_ptr() for tensor in self.tensors]
        self.samples = Samples((i, tensors[i], block.memory) for i, block in found)
        host = [(i, block) for i, block in found if block.on_cpu]
        self.copies = list(chain.from_iterable(block.copies for _, block in host))
        self.comparisons = {
            watched: list(chain.from_iterable(block.comparisons for i, block in host if (i in owned) is watched))
            for watched in (True, False)
        }
        self.on_devices = [(block.memory, tensors[i]) for i, block in found if not block.on_cpu]


class Prompt:
    """The tensors of some numbers that are copied at once."""

    def __init__(
        self,
        numbers: Sequence[int] = (),
        tensors: Sequence[torch.Tensor] = (),
        slots: Sequence[Slot] = (),
        blocks: Sequence[Block | None] = (),
    ) -> None:
        self.numbers = list(numbers)
        self._small, self._targets, self._sources = [], [], []
        for i in numbers:
            block = blocks[i]
            if block is not None and block.small is not None:
                self._small.append(block.small)
            else:
                self._targets.append(slots[i].memory)
                self._sources.append(tensors[i])

    def copy(self, copies: Copies) -> None:
        """Have them copied by `copies`."""
        copies.extend(self._targets, self._sources)
        copies.assign(self._small)


def _view(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")
