"""What Hugging Face Accelerate puts around an optimizer, a scheduler and a scaler, taken off: their state is inside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["bare", "bare_parts"]

_INSIDE = {"accelerate.optimizer": "optimizer", "accelerate.scheduler": "scheduler"}


def bare(part: Any) -> Any:
    """The optimizer or scheduler that `accelerator.prepare` was given; anything else as it is."""
    inside = _INSIDE.get(type(part).__module__)
    return part if inside is None else getattr(part, inside)


def bare_parts(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a run, taken out. A scaler that only a prepared optimizer knows becomes a part of its own."""
    taken = {name: bare(part) for name, part in parts.items()}
    for name, part in parts.items():
        scaler = getattr(part, "scaler", None) if taken[name] is not part else None
        if scaler is not None and not any(scaler is other for other in taken.values()):
            taken[f"{name}.scaler"] = scaler
    return taken
