"""What the top of an epoch may do to torch's objects, and undoing it where it had been done before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import torch

from colabkeep.frameworks.common.describing import NOT_PLAIN, plain
from colabkeep.frameworks.common.remembering import Memory, combined, remember_modules, remember_objects
from colabkeep.frameworks.torch.state.boundary import Buffers
from colabkeep.frameworks.torch.state.places import Places
from colabkeep.frameworks.torch.state.settings import attributes

__all__ = ["remember"]


def remember(parts: Mapping[str, object]) -> Memory:
    """Take the small state of the parts. Until it is put back, a parameter group whose parameters an optimizer has
    already is not added to it again."""
    modules = {name: part for name, part in parts.items() if isinstance(part, torch.nn.Module)}
    optimizers = [part for part in parts.values() if isinstance(part, torch.optim.Optimizer)]
    others = {n: part for n, part in parts.items() if not isinstance(part, (torch.nn.Module, torch.optim.Optimizer))}
    parameters = {f"{part}.{name}": p for part, each in modules.items() for name, p in Places(each).parameters()}
    buffers = Buffers(modules.values())
    return combined(
        [
            *(_remember_optimizer(optimizer) for optimizer in optimizers),
            remember_objects(others, _clone_other),
            Memory(buffers.rewind),
            _remember_gradients([*parameters.values(), *_held(optimizers)]),
            remember_modules({name: attributes(each) for name, each in modules.items()}, parameters, _version),
        ]
    )


def _remember_optimizer(optimizer: torch.optim.Optimizer) -> Memory:
    options = [
        {key: value if key == "params" else _copied(value) for key, value in group.items()}
        for group in optimizer.param_groups
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

    def release() -> None:
        if before is None:
            del held["add_param_group"]
        else:
            held["add_param_group"] = before

    def put_back() -> None:
        for group, kept in zip(optimizer.param_groups, options, strict=False):  # one that is new stays, behind them
            group.update({key: value for key, value in kept.items() if key != "params"})

    return Memory(put_back, release)


def _held(optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[torch.Tensor]:
    return (parameter for each in optimizers for group in each.param_groups for parameter in group["params"])


def _remember_gradients(parameters: Iterable[torch.Tensor]) -> Memory:
    """Those that stand: in a resumed session, what the checkpoint had of them."""
    standing = ((each, each.grad) for each in parameters)
    found = {
        id(each): (each, grad, grad._version, grad.detach().clone()) for each, grad in standing if grad is not None
    }

    def put_back() -> None:
        for parameter, gradient, version, kept in found.values():
            parameter.grad = gradient if gradient._version == version else kept

    return Memory(put_back)


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return deepcopy(value) if plain(value) is not NOT_PLAIN else value


def _version(parameter: torch.Tensor) -> int:
    return -1 if parameter.is_inference() else parameter._version


def _clone_other(value: Any) -> Any:
    if not isinstance(value, torch.Generator):
        return value
    twin = torch.Generator(value.device)
    twin.set_state(value.get_state())
    return twin
