"""Moving a batch of any shape to the model's device, without waiting for it."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import MutableMapping
from typing import Any

import torch

__all__ = ["to_device"]


def to_device(value: Any, device: torch.device) -> Any:
    """`value` with every tensor in it on `device`; containers keep their type, the user's are not changed.

    Knows tensors, tuples, named tuples, lists, mappings, dataclasses and objects with a `to` of their own;
    anything else stays as it is. Copies from pinned memory overlap with computing. For a CPU
    model nothing is looked at: batches are made there.
    """
    return value if device.type == "cpu" else _moved(value, device)


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)  # the same object where nothing has to move
    if callable(getattr(value, "to", None)) and not isinstance(value, type):
        return value.to(device, **_non_blocking(value.to))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_moved(member, device) for member in value))
    if isinstance(value, (tuple, list)):
        return type(value)(_moved(member, device) for member in value)
    if isinstance(value, MutableMapping):
        moved = copy.copy(value)  # keeps what a subclass knows besides its items
        moved.update({key: _moved(member, device) for key, member in value.items()})
        return moved
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        moved_record = copy.copy(value)
        for field in dataclasses.fields(value):
            # The way around frozen: the copy is not anybody's yet.
            object.__setattr__(moved_record, field.name, _moved(getattr(value, field.name), device))
        return moved_record
    return value


def _non_blocking(to: Any) -> dict[str, bool]:
    parameters = inspect.signature(to).parameters
    takes = "non_blocking" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return {"non_blocking": True} if takes else {}
