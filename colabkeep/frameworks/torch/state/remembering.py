"""What the top of an epoch may do to torch's objects, and undoing it where it had been done before."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch

from colabkeep.frameworks.common.describing import NOT_PLAIN, plain
from colabkeep.frameworks.common.remembering import Memory, combined, remember_modules, remember_objects
from colabkeep.frameworks.torch.state.modes import ordinary
from colabkeep.frameworks.torch.state.places import Places
from colabkeep.frameworks.torch.state.settings import attributes

__all__ = ["Options", "remember"]


def remember(parts: Mapping[str, object]) -> Memory:
    """Take the small state of the parts. Until it is put back, a parameter group whose parameters an optimizer has
    already is not added to it again."""
    modules = {name: part for name, part in parts.items() if isinstance(part, torch.nn.Module)}
    optimizers = [part for part in parts.values() if isinstance(part, torch.optim.Optimizer)]
    others = {n: part for n, part in parts.items() if not isinstance(part, (torch.nn.Module, torch.optim.Optimizer))}
    parameters = {f"{part}.{name}": p for part, each in modules.items() for name, p in Places(each).parameters()}
    return combined(
        [
            *(_remember_optimizer(optimizer) for optimizer in optimizers),
            remember_objects(others, _clone_other),
            *(_remember_buffers(module) for module in modules.values()),
            remember_modules({name: attributes(each) for name, each in modules.items()}, parameters, _version),
        ]
    )


class Options:
    """The parameter groups of optimizers and their options, at one moment."""

    def __init__(self, optimizers: list[torch.optim.Optimizer]) -> None:
        self._groups = [(optimizer, list(optimizer.param_groups)) for optimizer in optimizers]
        self._options = [{**group} for _, groups in self._groups for group in groups]

    def put_back(self) -> None:
        """As they were; a group that came since is gone."""
        options = iter(self._options)
        for optimizer, groups in self._groups:
            optimizer.param_groups[:] = groups
            for group in groups:
                kept = next(options)
                for key in [key for key in group if key not in kept]:
                    del group[key]
                group.update(kept)


def _remember_optimizer(optimizer: torch.optim.Optimizer) -> Memory:
    options = [
        {key: value if key == "params" else _copied(value) for key, value in group.items()}
        for group in optimizer.param_groups
    ]
    graded = [
        parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.grad is not None
    ]
    held, add = vars(optimizer), optimizer.add_param_group
    before = held.get("add_param_group")
    known = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}

    def add_new(param_group: dict[str, Any]) -> None:
        given = param_group["params"]
        listed = [given] if isinstance(given, torch.Tensor) else list(given)
        if not listed or not all(id(each[1] if isinstance(each, tuple) else each) in known for each in listed):
            add({**param_group, "params": listed})

    held["add_param_group"] = add_new

    def put_back() -> None:
        if before is None:
            del held["add_param_group"]
        else:
            held["add_param_group"] = before
        for group, kept in zip(optimizer.param_groups, options, strict=False):  # one that is new stays, behind them
            group.update({key: value for key, value in kept.items() if key != "params"})
        for parameter in graded:  # what zero_grad() took: by a gradient of zero, moments still move a parameter
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    return put_back


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return deepcopy(value) if plain(value) is not NOT_PLAIN else value


def _remember_buffers(module: torch.nn.Module) -> Memory:
    owners = [each._buffers for _, each in Places(module).modules if each._buffers]
    with ordinary():
        kept = [(owner, key, value, _clone(value)) for owner in owners for key, value in owner.items()]

    def put_back() -> None:
        for owner, key, value, copy in kept:
            owner[key] = value
            if value is not None and copy is not None and value.shape == copy.shape:
                with torch.no_grad():
                    value.copy_(copy)

    return put_back


def _clone(value: torch.Tensor | None) -> torch.Tensor | None:
    return None if value is None or torch.nn.parameter.is_lazy(value) else value.detach().clone()


def _version(parameter: torch.Tensor) -> int:
    return -1 if parameter.is_inference() else parameter._version


def _clone_other(value: Any) -> Any:
    if not isinstance(value, torch.Generator):
        return value
    twin = torch.Generator(value.device)
    twin.set_state(value.get_state())
    return twin
