"""What torch leaves out or refuses when it pickles, and the training in another process needs: hooks, whatever else an
optimizer holds, parametrized modules, tensors of newer types."""

from __future__ import annotations

import copyreg
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import torch
from torch.nn.utils import parametrize


def carried(value: Any) -> Any:
    """How `value` is made again in another process, as `object.__reduce__` tells it; NotImplemented: as it tells
    itself.

    Raises:
        TypeError: it has hooks that cannot go along.
    """
    if isinstance(value, torch.optim.Optimizer):
        return _optimizer(value)
    if isinstance(value, torch.nn.Module) and parametrize.is_parametrized(value):
        names = list(value.parametrizations)  # type: ignore[arg-type]
        return _parametrized, (parametrize.type_before_parametrizations(value), names), vars(value)
    if type(value) in (torch.Tensor, torch.nn.Parameter) and not _is_pickled(value):
        return _as_bytes(value)
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


def _parametrized(kind: type[torch.nn.Module], names: Sequence[str]) -> torch.nn.Module:
    """An empty module of the class that torch makes of `kind` when it parametrizes tensors of these names."""
    made = kind.__new__(kind)
    torch.nn.Module.__init__(made)
    for name in names:
        made.register_parameter(name, torch.nn.Parameter(torch.empty(0)))
        parametrize.register_parametrization(made, name, torch.nn.Identity(), unsafe=True)
    empty: torch.nn.Module = type(made).__new__(type(made))
    return empty


_PICKLED = frozenset(
    {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16}
    | {torch.float32, torch.float64, torch.complex64, torch.complex128}
)
"""Of others, such as float8, torch's `__reduce_ex__` is made for `torch.save` alone."""


def _is_pickled(value: torch.Tensor) -> bool:
    return value.dtype in _PICKLED or value.layout is not torch.strided or value.is_quantized


def _as_bytes(value: torch.Tensor) -> Any:
    held = torch.empty(0, dtype=torch.uint8, device=value.device).set_(value.untyped_storage())
    place = value.storage_offset(), tuple(value.size()), value.stride()
    return _of_bytes, (type(value), held, value.dtype, place, value.requires_grad)


def _of_bytes(kind: type, held: torch.Tensor, dtype: torch.dtype, place: tuple[Any, ...], trained: bool) -> Any:
    made = torch.empty(0, dtype=dtype, device=held.device).set_(held.untyped_storage(), *place)
    return torch.nn.Parameter(made, requires_grad=trained) if kind is torch.nn.Parameter else made
