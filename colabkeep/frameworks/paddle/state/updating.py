"""Stored optimizer state into a live optimizer, past the names that Paddle generates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import paddle
from paddle.base import unique_name
from paddle.base.layer_helper import LayerHelper
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from colabkeep.frameworks.common.names import ParameterNames
from colabkeep.frameworks.paddle.state.leaves import fill, native
from colabkeep.frameworks.paddle.state.loading import fits
from colabkeep.frameworks.paddle.state.memory import place_name
from colabkeep.frameworks.paddle.state.optimizers import group_parameters, masters_of, parameter_names
from colabkeep.frameworks.paddle.state.schedulers import restore_scheduler
from colabkeep.vocabulary.state import Tree

__all__ = ["create_accumulators", "restore_optimizer"]


def restore_optimizer(optimizer: Any, tree: Tree, names: ParameterNames) -> None:
    """Give the optimizer its stored state; every tensor bit-exact, in place, or in memory of its own at its parameter.

    Paddle's own `set_state_dict` is not used: it puts what it does not know yet aside under generated names, and a
    model that was built again in the same notebook never asks for those.
    """
    named = list(chain.from_iterable(parameter_names(optimizer, names)))
    parameters = dict(zip(named, chain.from_iterable(group_parameters(optimizer)), strict=True))
    optimizer._accumulators_holder = {}
    _forget(optimizer, [parameter for name, parameter in parameters.items() if name not in tree["state"]])
    create_accumulators(optimizer, [parameters[name] for name in (*tree["masters"], *tree["state"])])
    pairs = [(parameters[name], leaf) for name, leaf in tree["loose"].items()]
    for name, leaf in tree["masters"].items():
        place = masters_of(optimizer), parameters[name].name, "fp32_master"
        _fill_or_make(place, leaf, parameters[name], pairs)
    for name, leaves in tree["state"].items():
        parameter = parameters[name]
        master = masters_of(optimizer).get(parameter.name)
        for kind, leaf in leaves.items():
            entries = optimizer._accumulators[kind]
            key = master.name if master is not None and parameter.name not in entries else parameter.name
            _fill_or_make((entries, key, kind), leaf, parameter, pairs)
    fill(pairs)
    for i, group in enumerate(tree["groups"]):
        _restore_group(optimizer, i, group["options"])
    _restore_rate(optimizer, tree["learning_rate"])
    for name, value in native(tree["more"], devices=True).items():
        _restore_attribute(optimizer, name, value)
    _restore_gradients(parameters, set(tree["graded"]))
    if "inner" in tree:
        restore_optimizer(optimizer.inner_optimizer, tree["inner"], names)


def create_accumulators(optimizer: Optimizer, parameters: Iterable[Any]) -> None:
    """Have the optimizer make its accumulators for these parameters, as its first step does, each where it belongs."""
    wanted = {id(parameter): parameter for parameter in parameters}
    if wanted:
        optimizer.helper = optimizer.helper or LayerHelper(type(optimizer).__name__)  # Paddle 2 has none before a step
        block = paddle.static.default_main_program().global_block()
        optimizer._create_accumulators(block, list(wanted.values()))


def _forget(optimizer: Optimizer, parameters: Iterable[Any]) -> None:
    """Let go of the state of parameters that had none: the optimizer has stepped since, or another one was stored."""
    spelt = "_already_create_accumulator"
    created: set[str] = getattr(optimizer, spelt if hasattr(optimizer, spelt) else "_already_create_accumulater")  # 2.6
    for parameter in parameters:
        master = masters_of(optimizer).get(parameter.name)
        for entries in optimizer._accumulators.values():
            entries.pop(parameter.name, None)
            if master is not None:
                entries.pop(master.name, None)
        created.discard(parameter.name)


def _fill_or_make(
    place: tuple[dict[str, Any], str, str], leaf: Tree, parameter: Any, pairs: list[tuple[Any, Tree]]
) -> None:
    """Note the copy of a stored tensor into its place; make one where the optimizer has none that fits.

    `place`: the dict, the key in it, and the kind of tensor it is for.
    """
    entries, key, kind = place
    live = entries.get(key)
    if live is not None and fits(live, leaf):
        pairs.append((live, leaf))
        return
    made = native(leaf).to(place_name(parameter.place))
    made.name = unique_name.generate(f"{key}_{kind}") if live is None else live.name
    entries[key] = made


def _restore_gradients(parameters: Mapping[str, Any], graded: set[str]) -> None:
    """Zero where there was a gradient, whatever it was: it had been used. None where there was none."""
    for name, parameter in parameters.items():
        if name in graded:
            parameter.grad = paddle.zeros_like(parameter)
        else:
            parameter.clear_gradient(False)  # to none; Paddle 3.3 ignores the argument when it is named


def _restore_group(optimizer: Optimizer, index: int, options: Mapping[str, Any]) -> None:
    if not options:
        return
    group = optimizer._param_groups[index]
    group.update(options)
    if "learning_rate" in options:  # Paddle reads it here
        for parameter in group["params"]:
            parameter.optimize_attr["learning_rate"] = options["learning_rate"]


def _restore_rate(optimizer: Optimizer, stored: Tree) -> None:
    live = optimizer._learning_rate
    if isinstance(live, LRScheduler):
        restore_scheduler(live, native(stored["state"], devices=True))
    else:
        optimizer.set_lr(stored)


def _restore_attribute(optimizer: Optimizer, name: str, value: Any) -> None:
    live = vars(optimizer).get(name)
    if isinstance(live, dict):  # LBFGS: a defaultdict, which stays the one it made
        live.clear()
        live.update(value)
    else:
        vars(optimizer)[name] = value
