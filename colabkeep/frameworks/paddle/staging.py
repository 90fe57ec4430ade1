"""Host memory that Paddle's tensors are copied to, and the copies of one capture: collected first, made in one go
while training stands still.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import paddle
from paddle.base import framework

from colabkeep.core.state import HostTensor, Stale
from colabkeep.frameworks.shared.host_memory import HostCopy, Part, Proof, Reader

__all__ = [
    "Copies",
    "Slot",
    "bytes_of",
    "copy_host",
    "cpu_tensor",
    "dtype_name",
    "dtype_of",
    "has_data",
    "holding",
    "is_somewhere",
    "on_cpu",
    "place_name",
    "plain_name",
    "size_of",
]

_PAIRS = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64", "float16": "F16",
    "bfloat16": "BF16", "float32": "F32", "float64": "F64", "complex64": "C64", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}  # fmt: skip
_PLAIN = {name: plain for plain, name in _PAIRS.items()}


def dtype_name(dtype: Any) -> str | None:
    """The safetensors name; None if there is none (complex128)."""
    return _PAIRS.get(plain_name(dtype))


def dtype_of(name: str) -> Any:
    """The dtype of a safetensors name or of a plain one ("complex128"); None if this Paddle has none."""
    found = getattr(paddle, _PLAIN.get(name, name), None)
    return found if isinstance(found, paddle.dtype) else None


def plain_name(dtype: Any) -> str:
    """The name without "paddle."."""
    return str(dtype).rpartition(".")[2]


# Not through `tensor.numpy()`: that copies (104 MB took 60 ms, the bare copy 6), and NumPy has no bfloat16.


_CPU = paddle.CPUPlace()


def on_cpu(tensor: Any) -> bool:
    """Is the tensor in memory that the CPU reads directly?"""
    return bool(tensor.place.is_cpu_place())


def place_name(place: Any) -> str:
    """A device as Paddle's functions take it: "cpu", "gpu:0"."""
    return str(place).removeprefix("Place(").removesuffix(")")


def size_of(tensor: Any) -> int:
    """Its bytes."""
    size: int = prod(tensor.shape) * tensor.element_size()
    return size


def has_data(tensor: Any) -> bool:
    """Has it its numbers? An empty tensor has them all, though to Paddle it is not initialized either."""
    return is_somewhere(tensor) or not size_of(tensor)


def is_somewhere(tensor: Any) -> bool:
    """Has it memory, and so a device? The dropout state of an RNN has none until a forward pass needs it."""
    return bool(tensor._is_initialized())


def bytes_of(tensor: Any) -> memoryview:
    """The bytes of a row-major tensor in the CPU's memory, page-locked or not. The view keeps the memory alive."""
    size = size_of(tensor)
    if size == 0:
        return memoryview(b"")
    buffer = (ctypes.c_ubyte * size).from_address(tensor.data_ptr())
    buffer.tensor = tensor  # type: ignore[attr-defined]
    return memoryview(buffer).cast("B")


def cpu_tensor(shape: Sequence[int], dtype: Any) -> Any:
    """A new tensor on the CPU, whatever the device in use; its numbers are left to chance."""
    with framework._dygraph_place_guard(place=_CPU):
        return paddle.empty(list(shape), dtype=dtype)


def holding(tensor: Any) -> Any:
    """What keeps the tensor's memory. A detached tensor would lose it together with this one (`_clear_data`)."""
    holder = paddle.Tensor()
    tensor._share_buffer_to(holder)
    return holder


def copy_host(tensor: Any, host: HostTensor) -> None:
    """Copy stored bytes into a row-major tensor on the CPU, of the same size. Other threads go on meanwhile."""
    if host.data.nbytes:
        np.copyto(np.frombuffer(bytes_of(tensor), np.uint8), np.frombuffer(host.data, np.uint8))


# Fresh memory costs ten times the copy in page faults, so a slot lives as long as its tensor keeps its shape. It is not
# of Paddle's own allocator, which keeps what is let go of.


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


# What lies on a GPU is launched first, on the stream that Paddle works on, so it is of the moment that the stream has
# come to; what lies in host memory is copied meanwhile; then each device is waited for, whatever happened, for no host
# may read what a device still writes. Only of a tensor with gaps does Paddle make a gapless one on the device first.
# The way of a GPU was reviewed by reading, against the rules that torch's keeps; it has never been run on a card.


class Copies:
    """Copies from the live tensors (held here, so that none goes away) to their slots."""

    def __init__(self) -> None:
        self._host = HostCopy()
        self._device: list[tuple[Slot, Any, Any]] = []
        self._tiny: list[tuple[memoryview, memoryview]] = []
        self._held: list[Any] = []
        self._parts: list[Part[Copies]] = []

    def add(self, slot: Slot, source: Any) -> None:
        """One copy."""
        if not slot.size:
            return
        if slot.landing is not None:
            self._device.append((slot, slot.landing, source))
            return
        straight = source if source.is_contiguous() else _gapless(source)
        self._held.append(straight)
        self._host.add(slot, slot.address, straight.data_ptr(), slot.size)

    def assign(self, tiny: Iterable[tuple[memoryview, memoryview]]) -> None:
        """Many tiny copies, as views of where to and where from. The caller keeps the memory alive."""
        self._tiny += tiny

    def take(self, part: Part[Copies]) -> None:
        """Those of a part's tensors that are to be copied."""
        part.add_to(self)
        self._parts.append(part)

    def run(self) -> None:
        """Make all copies. When this returns, training may go on."""
        devices = set()
        try:
            for slot, landing, source in self._device:
                slot.new = True
                here = on_cpu(source)
                if not here:
                    devices.add(place_name(source.place))
                landing.copy_(source, here)
            self._host.run(meanwhile=self._copy_tiny)
        finally:  # a copy that is broken off must not go on into memory that others are given
            for device in devices:
                paddle.device.synchronize(device)

    def finish(self) -> None:
        """Behind training: prove what was not copied, and show what is new.

        Raises:
            Stale: something that was not copied has other bytes than are stored.
        """
        reader = Reader()
        proven = [part.prove(reader) for part in self._parts]  # all of them: no redoing one by one
        if not all(proven):
            raise Stale
        for part in self._parts:
            part.renew()

    def stored(self) -> None:
        """A checkpoint holds what was copied."""
        for part in self._parts:
            part.stored()

    def _copy_tiny(self) -> None:
        for place, live in self._tiny:
            place[:] = live


def _gapless(source: Any) -> Any:
    """A row-major copy. Not by `source.contiguous()`, which turns the live tensor itself (Paddle 3.3.1)."""
    copy = cpu_tensor(source.shape, source.dtype)
    copy.copy_(source, True)
    return copy
