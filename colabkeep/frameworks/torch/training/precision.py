"""Which floating-point types a training computes in."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import torch

from colabkeep.frameworks.common.refusals import half_weights, unknown_precision
from colabkeep.vocabulary.errors import UsageError

__all__ = ["autocast", "gradient_scaler", "resolve_precision"]

_HALF = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}


def resolve_precision(precision: str, device: torch.device) -> str:
    """What `precision` means on `device`: "32-true", "16-mixed" or "bf16-mixed".

    "auto" is bfloat16 where the GPU computes in it (capability 8.0), float16 where it has tensor cores for
    that (7.0: V100, T4), else float32. `torch.cuda.is_bf16_supported()` is not asked: it
    also says yes where bfloat16 is emulated, which is slower than float32.

    Raises:
        UsageError: none of the known words.
    """
    if precision in ("32-true", *_HALF):
        return precision
    if precision != "auto":
        raise unknown_precision(precision)
    if device.type != "cuda":
        return "32-true"
    major, _ = torch.cuda.get_device_capability(device)
    return "bf16-mixed" if major >= 8 else "16-mixed" if major >= 7 else "32-true"


def autocast(precision: str, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """The context of a forward pass. One object serves a whole run: building it costs more than entering it.

    Raises:
        UsageError: this torch cannot compute in that precision on that device.
    """
    if precision not in _HALF:
        return contextlib.nullcontext()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # where torch cannot, it warns and computes in float32
            return torch.autocast(device.type, dtype=_HALF[precision])
    except (RuntimeError, UserWarning) as error:
        raise UsageError(
            problem=f"precision={precision!r} is not possible on {device} with torch {torch.__version__}: {error}",
            remedy='Pass precision="auto", which takes what this machine can do, or "32-true".',
        ) from error


def gradient_scaler(
    precision: str, device: torch.device, optimizer: torch.optim.Optimizer
) -> torch.amp.GradScaler | None:
    """A scaler where gradients could vanish in float16; None where none is needed.

    Raises:
        UsageError: the weights themselves are float16.
    """
    if precision != "16-mixed":
        return None
    if any(p.dtype == torch.float16 for group in optimizer.param_groups for p in group["params"]):
        raise half_weights(
            "float16",
            'Call model.float() before building the optimizer, or pass precision="32-true" '
            "to compute in the weights' own type.",
        )
    return torch.amp.GradScaler(device.type)
