"""The bytes of Paddle's tensors, where they are.

Not through `tensor.numpy()`: that copies (104 MB took 60 ms, the bare copy 6), and NumPy has no bfloat16.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import paddle
from paddle.base import framework

from colabkeep.vocabulary.state import HostTensor

__all__ = [
    "bytes_of",
    "copy_host",
    "cpu_tensor",
    "has_data",
    "holding",
    "is_somewhere",
    "on_cpu",
    "place_name",
    "size_of",
]

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
