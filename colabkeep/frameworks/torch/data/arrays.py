"""Tensors inside batches and loader states."""

from __future__ import annotations

from typing import Any

import torch

from colabkeep.frameworks.common.batches import NUMPY, Arrays
from colabkeep.frameworks.common.contents import Sight
from colabkeep.vocabulary.state import HostTensor, Tagged

__all__ = ["TENSORS"]


def _head(array: Any, count: int) -> bytes | None:
    if not isinstance(array, torch.Tensor):
        return NUMPY.head(array, count)
    if array.device.type != "cpu" or array.layout is not torch.strided:
        return None
    return _bytes(array.detach().flatten()[:count])


def _pack(value: Any) -> Tagged | None:
    if type(value) is not torch.Tensor:
        return NUMPY.pack(value)
    if value.device.type != "cpu" or value.layout is not torch.strided:
        return None
    return Tagged("torch.Tensor", (str(value.dtype).removeprefix("torch."), tuple(value.shape), _bytes(value.detach())))


def _unpack(node: HostTensor | Tagged) -> Any:
    if isinstance(node, HostTensor) or node.kind != "torch.Tensor":
        return NUMPY.unpack(node)
    dtype, shape, data = node.value
    raw = torch.tensor(list(data), dtype=torch.uint8, device="cpu")
    return raw.view(getattr(torch, dtype)).reshape(shape)


def _see(value: Any) -> Sight | None:
    if not isinstance(value, torch.Tensor):
        return NUMPY.see(value)
    dtype, shape = str(value.dtype).removeprefix("torch."), tuple(value.shape)
    if value.layout is not torch.strided or value.is_quantized or value.is_meta or not value.numel():
        return Sight(dtype, shape, 0, None)
    tensor = value.detach().as_subclass(torch.Tensor)
    flat = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    return Sight(dtype, shape, flat.numel(), lambda start, stop: bytes(flat[start:stop].cpu().numpy().tobytes()))


def _bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy().tobytes())


TENSORS = Arrays(_head, _pack, _unpack, _see)
"""CPU tensors, and NumPy's arrays and scalars."""
