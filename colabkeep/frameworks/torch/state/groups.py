"""Parameter groups: at one moment, and those that came in the middle of a training, found again by the names of their
parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from colabkeep.frameworks.common.marker import marked
from colabkeep.frameworks.common.names import ParameterNames
from colabkeep.frameworks.torch.state.leaves import native
from colabkeep.frameworks.torch.state.optimizers import parameter_names
from colabkeep.vocabulary.state import Tree

__all__ = ["OF_THE_DEVICE", "Options", "group_count_differences", "regroup"]

OF_THE_DEVICE = ("fused", "foreach", "capturable")
"""Settings that choose a kernel. Saved on another kind of device they may be impossible here."""


class Options:
    """The parameter groups of optimizers and their options, at the last mark."""

    def __init__(self, optimizers: list[torch.optim.Optimizer]) -> None:
        self._optimizers = optimizers
        self.mark()

    def mark(self) -> None:
        """Remember them."""
        self._groups = [(here := optimizer.param_groups, [*here], [*map(dict, here)]) for optimizer in self._optimizers]

    def put_back(self) -> None:
        """As they were; a group that came since is gone."""
        for here, groups, options in self._groups:
            here[:] = groups
            for group, kept in zip(groups, options, strict=True):
                for key in [key for key in group if key not in kept]:
                    del group[key]
                group.update(kept)


def group_count_differences(
    part: str, optimizer: torch.optim.Optimizer, stored: Sequence[Sequence[str]], names: ParameterNames
) -> list[str]:
    """Why the groups of the checkpoint, of another number, cannot be made of those here; empty if they can."""
    live = parameter_names(optimizer, names)
    if len(live) > len(stored):
        if _came_in_training(optimizer, len(stored)) and _fit(live, stored):
            return []
    elif _order(live, stored) is not None:
        order = _order(live, stored) or []
        added = [name for group, there in zip(stored, order, strict=True) if there is None for name in group]
        return [
            f"{part}: it was given {name} in the training, and no model of this run has a parameter of that name."
            for name in added
            if names.parameter(name) is None
        ]
    return [f"{part}: it had {len(stored)} parameter groups, and has {len(live)} now."]


def regroup(optimizer: torch.optim.Optimizer, groups: Sequence[Tree], names: ParameterNames) -> None:
    """Give the optimizer the groups of the checkpoint, after `group_count_differences` found none: those that were
    added in the training are added again, those that were added after the checkpoint are let go."""
    live, here = parameter_names(optimizer, names), optimizer.param_groups
    if len(live) > len(groups):
        del here[len(groups) :]
    elif len(live) < len(groups):
        order = _order(live, [group["params"] for group in groups]) or []
        before = list(here)
        for group, there in zip(groups, order, strict=True):
            if there is None:
                optimizer.add_param_group(_new_group(group, names, named="param_names" in before[0]))
        added = iter(here[len(before) :])
        here[:] = [next(added) if there is None else before[there] for there in order]


def _new_group(group: Mapping[str, Any], names: ParameterNames, *, named: bool) -> dict[str, Any]:
    parameters: list[Any] = [names.parameter(name) for name in group["params"]]
    here = not parameters or parameters[0].device.type == group["device"]
    stored = native(group["options"], devices=True)
    options = {key: value for key, value in stored.items() if here or key not in OF_THE_DEVICE}
    if named:  # torch wants all groups with names, or none
        parameters = list(zip((name.partition(".")[2] for name in group["params"]), parameters, strict=True))
    return {**options, "params": parameters}


def _came_in_training(optimizer: torch.optim.Optimizer, stored: int) -> bool:
    """Were the groups beyond those `stored` added by a run that this process trained?"""
    written, left = marked(optimizer).get("groups", (0, 0))
    return bool(written <= stored < left == len(optimizer.param_groups))


def _order(live: Sequence[Sequence[str]], stored: Sequence[Sequence[str]]) -> list[int | None] | None:
    """For each stored group the number of the live one with its parameters, None for one to be added; None in all if a
    live one was not stored so, or a parameter would be in two."""
    places = {frozenset(group): i for i, group in enumerate(live)}
    order = [places.pop(frozenset(group), None) for group in stored]
    held = {name for group in live for name in group}
    twice = any(held.intersection(group) for group, there in zip(stored, order, strict=True) if there is None)
    return None if places or twice else order


def _fit(live: Sequence[Sequence[str]], stored: Sequence[Sequence[str]]) -> bool:
    return all(set(group) == set(then) for group, then in zip(live, stored, strict=False))
