"""Host memory that tensors are copied to, allocated once and reused.

Fresh memory costs ten times the copy in page faults, so a slot lives as long as its tensor keeps
its shape. It is not of Paddle's own allocator, which keeps what is let go of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from colabkeep.frameworks.common.resting import Proof
from colabkeep.frameworks.paddle.state.dtypes import dtype_name
from colabkeep.frameworks.paddle.state.memory import bytes_of, cpu_tensor, on_cpu, size_of
from colabkeep.vocabulary.state import HostTensor

__all__ = ["Slot"]


class Slot:
    """Row-major host memory for one tensor, and the `HostTensor` that shows it.

    `new`: its bytes are others than those that `host` was shown with. `touched`: it has been written to, so its pages
    are there. `proof` is that of a tensor whose bytes are stored and were let go of; one that was proven to be
    `restless` keeps its memory. `lasting`: whoever has it copied calls `renew` when its bytes are new.

    `landing` is a tensor of Paddle's over this memory, for what comes from a device; None on the CPU.
    """

    __slots__ = ("dtype", "host", "landing", "memory", "new", "place", "proof", "restless", "shape", "size", "touched")

    def __init__(self, tensor: Any, *, frozen: bool = False, lasting: bool = False) -> None:
        self.shape, self.dtype, self.place = tuple(tensor.shape), tensor.dtype, str(tensor.place)
        self.size = size_of(tensor)
        self.landing = None if on_cpu(tensor) else _landing(tensor)
        self.memory = np.empty(self.size, np.uint8) if self.landing is None else _array(self.landing)
        self.touched, self.new, self.restless = False, True, False
        self.proof: Proof | None = None
        name, shape = dtype_name(self.dtype), self.shape
        if name is None:  # safetensors does not know it: its bytes
            name, shape = "U8", (*shape, int(tensor.element_size()))
        self.host = HostTensor(dtype=name, shape=shape, data=self.memory.data, frozen=frozen, lasting=lasting)

    @property
    def address(self) -> int:
        """Where the copy is."""
        return int(self.memory.ctypes.data)

    def show(self, *, frozen: bool) -> None:
        """Show the same memory as trained or frozen from now on."""
        self.host = replace(self.host, frozen=frozen)

    def renew(self) -> None:
        """Show the memory by another object: its bytes are new."""
        self.host = replace(self.host, data=self.host.data)
        self.touched, self.new = True, False

    def let_go(self, proof: Proof, recall: Callable[[], None]) -> None:
        """The bytes are stored, and `proof` tells whether the tensor still has them."""
        self.proof = proof
        self.host.let_go(recall)
        self.memory = np.empty(0, np.uint8)

    def regain(self) -> None:
        """It is to be copied once more."""
        self.proof, self.touched, self.new = None, False, True
        self.memory = np.empty(self.size, np.uint8)
        self.host = replace(self.host, data=self.memory.data)

    def fits(self, tensor: Any) -> bool:
        """Can this slot take the tensor as it is now?"""
        return tuple(tensor.shape) == self.shape and tensor.dtype == self.dtype and str(tensor.place) == self.place


def _landing(tensor: Any) -> Any:
    """Memory for what comes from a device. Page-locked, it takes a copy from a GPU at full speed."""
    if tensor.place.is_gpu_place():
        try:
            return tensor.pin_memory()
        except MemoryError:  # there is no more of that kind; ordinary memory takes the copy too
            pass
    return cpu_tensor(tensor.shape, tensor.dtype)


def _array(tensor: Any) -> Any:
    return np.frombuffer(bytes_of(tensor), np.uint8)
