"""What a schedule of the learning rate counts to, read from the objects of any framework."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from inspect import getclosurevars, isfunction
from typing import Any

__all__ = ["counts_to", "is_per_step"]

_TOTALS = (
    "total_steps",  # OneCycleLR of both frameworks, LinearLR of Paddle
    "T_max",  # CosineAnnealingLR, CosineAnnealingDecay
    "total_iters",  # LinearLR, PolynomialLR, ConstantLR of torch
    "decay_steps",  # PolynomialDecay of Paddle
    "T_0",  # CosineAnnealingWarmRestarts: its first cycle
)
_WARM_UPS = ("warmup_steps", "num_warmup_steps")
_PHASES = ("num_warmup_steps", "num_stable_steps", "num_decay_steps")  # warm up, stay, decay: together the whole
_CLOSED_OVER = ("num_training_steps", "total_steps", "t_total", "max_steps", "num_warmup_steps")
_PER_STEP = frozenset({"OneCycleLR", "CyclicLR"})
"""Both frameworks' documentation: "should be called after a batch has been used for training"."""


def is_per_step(scheduler: object) -> bool:
    """Is it documented to be stepped after each batch?"""
    return any(kind.__name__ in _PER_STEP for kind in type(_inner(scheduler)).__mro__)


def counts_to(scheduler: object) -> int | None:
    """The step after which it does nothing new, as it was built; None where it does not say."""
    scheduler = _inner(scheduler)
    parts = getattr(scheduler, "_schedulers", None)
    if isinstance(parts, (list, tuple)) and parts:  # one after the other (SequentialLR), or together (ChainedScheduler)
        milestones = getattr(scheduler, "_milestones", None)
        last = counts_to(parts[-1])
        if milestones:
            return None if last is None else int(milestones[-1]) + last
        return max(filter(None, map(counts_to, parts)), default=None)
    told = vars(scheduler) if hasattr(scheduler, "__dict__") else {}
    found = next(filter(None, (_count(told.get(name)) for name in _TOTALS)), None)
    if found is None:
        found = max(filter(None, map(_count, _closed_over(told))), default=None)
    warm = next(filter(None, (_count(told.get(name)) for name in _WARM_UPS)), None)
    behind = counts_to(told["learning_rate"]) if warm and hasattr(told.get("learning_rate"), "__dict__") else None
    return found if warm is None else warm + (behind or 0)


def _inner(scheduler: object) -> object:
    """What a wrapper of Accelerate's leads to."""
    return getattr(scheduler, "scheduler", scheduler)


def _closed_over(told: dict[str, Any]) -> Iterator[object]:
    """What the functions of a LambdaLR or LambdaDecay were made with, as transformers makes them."""
    functions = told.get("lr_lambdas") or [told.get("lr_lambda")]
    for function in functions if isinstance(functions, (list, tuple)) else ():
        if isinstance(function, partial):
            known: dict[str, Any] = dict(function.keywords)
        else:
            known = dict(getclosurevars(function).nonlocals) if isfunction(function) else {}
        if _PHASES[-1] in known and "num_training_steps" not in known:
            yield sum(_count(known.get(name)) or 0 for name in _PHASES)
        yield next((known[name] for name in _CLOSED_OVER if name in known), None)


def _count(value: object) -> int | None:
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 1 else None
