"""Tensors inside batches and loader states, and the states of generators."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle

from colabkeep.frameworks.common.batches import NUMPY, Arrays
from colabkeep.frameworks.common.contents import Sight
from colabkeep.frameworks.paddle.state.generators import GeneratorState, plain_state, revived_state
from colabkeep.vocabulary.state import HostTensor, Tagged

__all__ = ["TENSORS", "as_array"]

_STATE = ("device", "seed", "offset", "engine")


def as_array(tensor: paddle.Tensor) -> Any:
    """A copy as a NumPy array that Paddle turns into the same tensor again; None for a dtype where it does not."""
    name = str(tensor.dtype).removeprefix("paddle.")
    array = tensor.numpy()
    return array if array.dtype.name == ("uint16" if name == "bfloat16" else name) else None


def _head(array: Any, count: int) -> bytes | None:
    if not isinstance(array, paddle.Tensor):
        return NUMPY.head(array, count)
    if not _at_hand(array):
        return None
    return bytes(array.detach().flatten()[:count].numpy().tobytes())


def _pack(value: Any) -> Tagged | None:
    if isinstance(value, GeneratorState):
        state: Any = plain_state(value)
        return None if state is None else Tagged("paddle.Generator", tuple(state[name] for name in _STATE))
    if not isinstance(value, paddle.Tensor):
        return NUMPY.pack(value)
    array = as_array(value.detach()) if _at_hand(value) else None
    return None if array is None else Tagged("paddle.Tensor", (array.dtype.str, tuple(array.shape), array.tobytes()))


def _unpack(node: HostTensor | Tagged) -> Any:
    if isinstance(node, Tagged) and node.kind == "paddle.Generator":
        return revived_state(dict(zip(_STATE, node.value, strict=True)))
    if isinstance(node, HostTensor) or node.kind != "paddle.Tensor":
        return NUMPY.unpack(node)
    dtype, shape, data = node.value
    return paddle.to_tensor(np.frombuffer(data, dtype=dtype).reshape(shape), place=paddle.CPUPlace())


def _see(value: Any) -> Sight | None:
    if not isinstance(value, paddle.Tensor):
        return NUMPY.see(value)
    dtype = str(value.dtype).removeprefix("paddle.")
    sight = NUMPY.see(value.detach().numpy()) if value.is_dense() else None
    return Sight(dtype, tuple(value.shape), sight.size if sight else 0, sight.read if sight else None)


def _at_hand(tensor: paddle.Tensor) -> bool:
    return bool(tensor.place.is_cpu_place()) and bool(tensor.is_dense())


TENSORS = Arrays(_head, _pack, _unpack, _see)
"""CPU tensors, NumPy's arrays and scalars, and the states of Paddle's generators."""
