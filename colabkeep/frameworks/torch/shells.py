"""What some optimizers keep their state in: tensors of torchao's that are a shell around others, and the projections of
GaLore and APOLLO. They are taken apart into plain values and tensors, and put together again.

Only the classes named here are, and only where the user's own code has imported them: no name in a checkpoint makes
anything be imported or called.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch

from colabkeep.core.errors import CheckpointUnsupported

__all__ = ["KIND", "put_together", "settle", "taken_apart"]

KIND = "torch.shell"
"""Of the tagged leaf, whose value has "class" and what `taken_apart` gives."""

_WRAPPERS = frozenset(
    {
        "torchao.optim.subclass_8bit.OptimState8bit",
        "torchao.optim.subclass_4bit.OptimState4bit",
        "torchao.optim.subclass_fp8.OptimStateFp8",
    }
)
"""Tensors that tell their parts as torch asks for: `__tensor_flatten__`."""

_RECORDS = frozenset(
    {
        "galore_torch.galore_projector.GaLoreProjector",
        "apollo_torch.svd_projector.GaLoreProjector",
        "apollo_torch.random_projector.GradientProjector",
        "pytorch_optimizer.optimizer.utils.galore.GaLoreProjector",
    }
)
"""Objects that are what their attributes are."""


def taken_apart(value: object) -> dict[str, Any] | None:
    """Its class and its parts, which the caller encodes; None if nobody here knows it."""
    name = _name(value)
    if name in _WRAPPERS:
        wrapper: Any = value
        parts, context = wrapper.__tensor_flatten__()
        return {"class": name, "parts": {part: getattr(value, part) for part in parts}, "context": context}
    if name in _RECORDS:
        parts = dict(vars(value))
        return {"class": name, "parts": parts, "context": {key: _stride(part) for key, part in parts.items()}}
    return None


def put_together(told: Mapping[str, Any]) -> Any:
    """One of that class with these parts.

    Raises:
        CheckpointUnsupported: the class is none of those known, or was not imported by the user's code.
    """
    name: str = told["class"]
    module, _, kind = name.rpartition(".")
    found: Any = getattr(sys.modules.get(module), kind, None) if name in _WRAPPERS | _RECORDS else None
    if found is None:
        raise CheckpointUnsupported(
            problem=f"The optimizer's state in this checkpoint is kept in a {name}, which is not here.",
            remedy="Build the optimizer from the same package as in the session that saved the checkpoint.",
        )
    if name in _WRAPPERS:
        return found.__tensor_unflatten__(told["parts"], told["context"])
    made = found.__new__(found)
    vars(made).update({key: _with_stride(part, told["context"][key]) for key, part in told["parts"].items()})
    return made


def _stride(part: Any) -> Any:
    """Of a tensor, as it lies in memory: a slice of a matrix, and a product with one that lies otherwise is rounded in
    another way."""
    if isinstance(part, (list, tuple)):
        return tuple(map(_stride, part))
    return part.stride() if isinstance(part, torch.Tensor) else None


def _with_stride(part: Any, stride: Any) -> Any:
    if isinstance(part, (list, tuple)):
        return type(part)(map(_with_stride, part, stride))
    if not isinstance(part, torch.Tensor) or part.stride() == stride:
        return part
    return torch.empty_strided(part.shape, stride, dtype=part.dtype, device=part.device).copy_(part)


def settle(state: object, device: torch.device) -> None:
    """Tensors in an object among the state of a parameter go to where that is; torch moves only those beside it."""
    if _name(state) in _RECORDS:
        state.__dict__.update({name: _moved(part, device) for name, part in vars(state).items()})


def _moved(part: Any, device: torch.device) -> Any:
    if isinstance(part, (list, tuple)):
        return type(part)(_moved(each, device) for each in part)
    if not isinstance(part, torch.Tensor) or part.device == device:
        return part
    return _with_stride(part.to(device), part.stride())


def _name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
