"""Optimizers around another one, as for sharpness-aware minimization: the inner one's state, and what the two share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from colabkeep.frameworks.common.trees import Leaf, encode
from colabkeep.vocabulary.state import Tree

__all__ = ["inner_differences", "inner_optimizers", "load", "tell_inner"]


def inner_optimizers(optimizer: torch.optim.Optimizer) -> dict[str, torch.optim.Optimizer]:
    """The optimizers that it holds and whose state torch's `state_dict()` leaves out, by attribute. A class with a
    `state_dict` of its own tells there what it needs."""
    if type(optimizer).state_dict is not torch.optim.Optimizer.state_dict:
        return {}
    held = ((name, each) for name, each in vars(optimizer).items() if isinstance(each, torch.optim.Optimizer))
    return {name: each for name, each in held if each.state is not optimizer.state}


def tell_inner(part: str, optimizer: torch.optim.Optimizer, leaf: Leaf) -> dict[str, Tree]:
    """What each of them tells.

    Raises:
        NotStorable: a value in its state or groups.
    """
    inner = inner_optimizers(optimizer)
    return {name: encode(each.state_dict(), f"{part}.{name}", leaf) for name, each in inner.items()}


def inner_differences(part: str, optimizer: torch.optim.Optimizer, tree: Mapping[str, Any]) -> Iterator[str]:
    """Those that were stored and are not there now. Earlier versions stored none."""
    for name in tree.get("inner", {}).keys() - inner_optimizers(optimizer).keys():
        yield f"{part}: it had an optimizer inside, {name}, and has none there now."


def load(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """`load_state_dict`, with the parameter groups in the dicts that they were in: an optimizer inside or around this
    one, and a line of the user's such as `head = optimizer.param_groups[1]`, go on sharing them. Torch makes new ones;
    a class that loads in a way of its own knows who has which.
    """
    listed, groups = optimizer.param_groups, list(optimizer.param_groups)
    optimizer.load_state_dict(state)
    if type(optimizer).load_state_dict is not torch.optim.Optimizer.load_state_dict:
        return
    for group, loaded in zip(groups, map(dict, optimizer.param_groups), strict=True):
        group.clear()
        group.update(loaded)
    listed[:] = groups
    optimizer.param_groups = listed
