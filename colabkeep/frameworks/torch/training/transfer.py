"""Moving a batch of any shape to the model's device, without waiting for it."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from colabkeep.frameworks.common.transfer import moved

__all__ = ["to_device"]


def to_device(value: Any, device: torch.device) -> Any:
    """`value` with every tensor in it on `device`; containers keep their type, the user's are not changed.

    Knows tensors, tuples, named tuples, lists, mappings, dataclasses and objects with a `to` of their own;
    anything else stays as it is. Copies from pinned memory overlap with computing. For a CPU
    model nothing is looked at: batches are made there.
    """
    if device.type == "cpu":
        return value

    def move(member: Any) -> Any:
        if isinstance(member, torch.Tensor):
            return member.to(device, non_blocking=True)  # the same object where nothing has to move
        return member.to(device, **_non_blocking(member.to))

    return moved(value, _moves, move)


def _moves(member: Any) -> bool:
    return callable(getattr(member, "to", None)) and not isinstance(member, type)


def _non_blocking(to: Any) -> dict[str, bool]:
    parameters = inspect.signature(to).parameters
    takes = "non_blocking" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return {"non_blocking": True} if takes else {}
