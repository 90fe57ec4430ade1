"""Which floating-point types a training computes in, on Paddle's terms: level O1 or O2 of `paddle.amp`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import paddle

from colabkeep.frameworks.common.refusals import half_weights, unknown_precision
from colabkeep.vocabulary.errors import UsageError

__all__ = ["autocast", "gradient_scaler", "resolve_precision", "weights_type"]

_HALF = {"16-mixed": "float16", "bf16-mixed": "bfloat16"}
_MIXED = {kind: precision for precision, kind in _HALF.items()}
_DECORATE = 'model, optimizer = paddle.amp.decorate(models=model, optimizers=optimizer, level="O2"{})'


def weights_type(model: paddle.nn.Layer) -> str | None:
    """ "float16" or "bfloat16" where the model's weights are of 16 bits (`paddle.amp.decorate` leaves those of
    normalizing layers in float32), else None."""
    kinds = {parameter.dtype for parameter in model.parameters()}
    return next((name for name in _MIXED if getattr(paddle, name) in kinds), None)


def resolve_precision(precision: str, place: Any, weights: str | None) -> str:
    """What `precision` means on `place` for weights of that type: "32-true", "16-mixed" or "bf16-mixed".

    "auto" follows weights of 16 bits; else it is bfloat16 where the GPU computes in it (capability 8.0), float16 where
    it has tensor cores for that (7.0: V100, T4), else float32.

    Raises:
        UsageError: none of the known words, or Paddle cannot compute in that precision there or with these weights.
    """
    if precision not in ("auto", "32-true", *_HALF):
        raise unknown_precision(precision)
    if place.is_cpu_place():
        # Paddle says so in a warning and computes in float32 (auto_cast, GradScaler and decorate, 2.6 and 3.3).
        if precision in _HALF:
            raise UsageError(
                problem=f"precision={precision!r} is not possible on a CPU: Paddle has mixed precision on accelerators "
                "only.",
                remedy='Pass precision="auto", which takes what this machine can do, or "32-true".',
            )
        return "32-true"
    if precision == "auto":
        return _MIXED[weights] if weights is not None else _best(place)
    if weights is not None and _HALF.get(precision, weights) != weights:
        raise UsageError(
            problem=f"precision={precision!r} and the model's weights, which are {weights}, contradict each other.",
            remedy=f'Pass precision="{_MIXED[weights]}", or decorate the model for the other type.',
        )
    return precision


def _best(place: Any) -> str:
    if not place.is_gpu_place():
        return "32-true"
    major, _ = paddle.device.cuda.get_device_capability(place.gpu_device_id())
    return "bf16-mixed" if major >= 8 else "16-mixed" if major >= 7 else "32-true"


def autocast(
    precision: str, weights: str | None, optimizer: paddle.optimizer.Optimizer
) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """What makes the context of a forward pass: one serves once. Level O2 where the weights are of 16 bits.

    Raises:
        UsageError: the weights are of 16 bits, and the optimizer keeps no copy of them in float32.
    """
    if precision not in _HALF:
        return contextlib.nullcontext
    if weights is not None and not getattr(optimizer, "_multi_precision", False):
        kind = "" if weights == "float16" else f', dtype="{weights}"'
        raise half_weights(
            weights,
            f"Let the optimizer keep them: {_DECORATE.format(kind)}, with a model in float32; "
            'or pass precision="32-true" to compute in the weights\' own type.',
        )
    return partial(paddle.amp.auto_cast, level="O1" if weights is None else "O2", dtype=_HALF[precision])


def gradient_scaler(precision: str) -> Any:
    """A scaler where gradients could vanish in float16; None where none is needed."""
    return paddle.amp.GradScaler() if precision == "16-mixed" else None
