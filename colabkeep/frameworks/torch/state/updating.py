"""Stored optimizer state into a live optimizer: through its own `load_state_dict`, then made exact."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from colabkeep.frameworks.common.names import ParameterNames
from colabkeep.frameworks.common.trees import like
from colabkeep.frameworks.torch.state.groups import OF_THE_DEVICE, regroup
from colabkeep.frameworks.torch.state.leaves import native
from colabkeep.frameworks.torch.state.loading import fill
from colabkeep.frameworks.torch.state.nested import inner_optimizers, load
from colabkeep.frameworks.torch.state.optimizers import parameter_names
from colabkeep.frameworks.torch.state.unguarded import is_torchs_own
from colabkeep.vocabulary.state import Tree

__all__ = ["restore_optimizer"]


def restore_optimizer(optimizer: torch.optim.Optimizer, tree: Tree, names: ParameterNames) -> None:
    """Give the optimizer its stored groups and state; every tensor bit-exact, in memory of its own, at its parameter.

    Large tensors of state may stay in the memory of `tree`, which must not be used again.
    """
    regroup(optimizer, tree["groups"], names)
    named = parameter_names(optimizer, names)
    place = {name: i for i, name in enumerate(name for group in named for name in group)}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for name, leaf in tree["loose"].items():
        fill(parameters[place[name]], leaf)
    # In one go: groups often share one tensor as their learning rate, and must go on sharing it.
    kept = {key: tree[key] for key in ("groups", "state", "other", "more")}
    stored = native(kept, devices=True, adopting=is_torchs_own(optimizer))
    state = {place[name]: entry for name, entry in stored["state"].items()}
    groups = [
        _group(live, then, [place[name] for name in group])
        for live, then, group in zip(optimizer.param_groups, stored["groups"], named, strict=True)
    ]
    load(optimizer, {"state": {**state, **stored["other"]}, "param_groups": groups, **stored["more"]})
    _restore_state(optimizer, parameters, state)
    for name, inner in inner_optimizers(optimizer).items():
        if name in tree.get("inner", {}):
            told = native(tree["inner"][name], devices=True)
            load(inner, told)
            _restore_state(inner, [p for group in inner.param_groups for p in group["params"]], told.get("state", {}))
    if "graded" in tree:
        _restore_gradients(parameters, {place[name] for name in tree["graded"]})
    # It has stepped, in an earlier life: torch must not warn when an epoch's end, resumed, begins with the scheduler.
    vars(optimizer)["_opt_called"] = True


def _restore_state(
    optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter], state: Mapping[int, Any]
) -> None:
    """Every entry as it was stored, whatever loading made of it."""
    for i, entry in state.items():
        parameter = parameters[i]
        if parameter in optimizer.state:
            optimizer.state[parameter] = _exact(optimizer.state[parameter], entry)


def _restore_gradients(parameters: list[torch.nn.Parameter], graded: set[int]) -> None:
    """Zero where there was a gradient, whatever it was: it had been used. None where there was none."""
    for i, parameter in enumerate(parameters):
        parameter.grad = torch.zeros_like(parameter) if i in graded else None


def _group(live: Mapping[str, Any], stored: Mapping[str, Any], indices: list[int]) -> dict[str, Any]:
    options = stored["options"]
    parameters = live["params"]
    if parameters and parameters[0].device.type != stored["device"]:
        options = {key: value for key, value in options.items() if key not in OF_THE_DEVICE}
    # What an older torch did not have yet keeps the live group's setting.
    return {**live, **options, "params": indices}


def _exact(loaded: Any, stored: Any) -> Any:
    """`loaded`, with what load_state_dict changed put right.

    It casts floating state to the parameter's dtype (float32 moments of a bfloat16 parameter lose
    their bits) and rebuilds containers. Where the optimizer put a tensor on a device, it stays
    there; where it arranged its state anew (a subclass), that is left as it is.
    """
    if isinstance(stored, torch.Tensor) and isinstance(loaded, torch.Tensor):
        return loaded if loaded.dtype == stored.dtype else stored.to(loaded.device)
    if isinstance(stored, dict) and isinstance(loaded, dict):
        return like(stored, ((k, _exact(v, stored[k]) if k in stored else v) for k, v in loaded.items()))
    if isinstance(stored, (list, tuple)) and isinstance(loaded, (list, tuple)) and len(stored) == len(loaded):
        return type(stored)(map(_exact, loaded, stored))
    return loaded if isinstance(loaded, torch.Tensor) else stored
