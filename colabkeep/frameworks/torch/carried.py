"""What torch leaves out when an optimizer or a parameter is pickled, and the training in another process needs: hooks,
and whatever else an optimizer holds."""

from __future__ import annotations

import copyreg
import warnings
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch


def carried(value: Any) -> Any:
    """How `value` is made again in another process, as `object.__reduce__` tells it; NotImplemented: as it tells
    itself.

    Raises:
        TypeError: it has hooks that cannot go along.
    """
    if isinstance(value, torch.optim.Optimizer):
        return _optimizer(value)
    if isinstance(value, torch.Tensor) and value.is_leaf and (hooks := _hooks(value)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that it leaves hooks out
            reduced = value.__reduce_ex__(2)  # type: ignore[no-untyped-call]
        if len(reduced) != 2:
            raise TypeError(f"hooks on a {type(value).__name__} cannot go along with it")
        return *reduced, hooks, None, None, _hook  # behind the tensor itself: they may hold it
    return NotImplemented


_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def _hooks(tensor: torch.Tensor) -> dict[str, Any]:
    held = {name: getattr(tensor, name) for name in _HOOKS}
    return {name: hooks for name, hooks in held.items() if hooks}


def _hook(tensor: torch.Tensor, hooks: Mapping[str, Any]) -> None:
    for name, each in hooks.items():
        setattr(tensor, name, each)


def _optimizer(value: torch.optim.Optimizer) -> Any:
    if type(value).__getstate__ is not torch.optim.Optimizer.__getstate__:  # its author decides what travels
        return NotImplemented
    held = dict(vars(value))
    counted, own = hasattr(held.get("step"), "_wrapped_by_lr_sched"), None
    if counted:  # by a scheduler, which holds the optimizer by a weak reference there
        own = held.pop("step").__wrapped__
    if own is type(value).step:
        own = None
    return copyreg.__newobj__, (type(value),), (held, counted, own), None, None, _fill  # type: ignore[attr-defined]


def _fill(optimizer: Any, told: tuple[dict[str, Any], bool, Callable[..., Any] | None]) -> None:
    held, counted, own = told
    optimizer.__setstate__(held)
    if counted:
        optimizer.step = _counted(optimizer, own or type(optimizer).step)


def _counted(optimizer: Any, step: Callable[..., Any]) -> Callable[..., Any]:
    """As a scheduler of torch's does it: it warns where `step` was not called before its own."""

    @wraps(step)
    def counting(*args: Any, **words: Any) -> Any:
        optimizer._opt_called = True
        return step(optimizer, *args, **words)

    counting._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    return counting
