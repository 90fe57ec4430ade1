"""Scalers of mixed precision on a GPU, told without waiting for it: `state_dict()` reads two of its numbers there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["on_device", "scaler_state", "tells_as_torch"]


def tells_as_torch(scaler: torch.amp.GradScaler) -> bool:
    """Is its state what torch's own class tells, and on a GPU by now?"""
    scale = getattr(scaler, "_scale", None)
    own = type(scaler).state_dict is torch.amp.GradScaler.state_dict
    return own and scaler.is_enabled() and isinstance(scale, torch.Tensor) and scale.is_cuda


def scaler_state(scaler: torch.amp.GradScaler) -> dict[str, Any]:
    """What it would tell (torch/amp/grad_scaler.py, torch 2.4 to 2.13), but for the two numbers."""
    return {
        "scale": 0.0,
        "growth_factor": scaler.get_growth_factor(),
        "backoff_factor": scaler.get_backoff_factor(),
        "growth_interval": scaler.get_growth_interval(),
        "_growth_tracker": 0,
    }


def on_device(scaler: Any) -> Mapping[str, torch.Tensor]:
    """Those."""
    return {"scale": scaler._scale, "_growth_tracker": scaler._growth_tracker}
