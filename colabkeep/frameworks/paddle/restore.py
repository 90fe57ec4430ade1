"""Stored state into live layers and optimizers, in place, past the names that Paddle generates; compared first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import paddle
from paddle import nn
from paddle.base import unique_name
from paddle.base.layer_helper import LayerHelper
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from colabkeep.core.errors import Incompatible
from colabkeep.core.state import Tree
from colabkeep.frameworks.paddle.layers import Place, Places, held_by
from colabkeep.frameworks.paddle.leaves import fill, native, shape_and_dtype
from colabkeep.frameworks.paddle.optimizers import group_parameters, masters_of, parameter_names, restore_scheduler
from colabkeep.frameworks.paddle.staging import has_data, is_somewhere, place_name, plain_name
from colabkeep.frameworks.shared.modules import ParameterNames, class_differences, group_differences, tie_differences
from colabkeep.frameworks.shared.trees import object_differences

__all__ = [
    "create_accumulators",
    "fits",
    "layer_differences",
    "optimizer_differences",
    "restore_layer",
    "restore_optimizer",
]


def restore_layer(part: str, layer: nn.Layer, tree: Tree) -> None:
    """Give every parameter and buffer its stored value.

    Parameters and persistable buffers are filled in place, so that optimizers and ties stay.
    Other buffers may have grown since the layer was built: such a one is replaced.
    """
    places = Places(layer)
    live = {place.name: place for place in places.places}
    device = next(
        (place_name(p.tensor.place) for p in places.places if p.tensor is not None and is_somewhere(p.tensor)), "cpu"
    )
    pairs: list[tuple[Any, Tree]] = []
    done: dict[int, Any] = {}  # what became of each live tensor: a tied one is filled once
    for name, leaf in {**tree["weights"], **tree.get("transient", {})}.items():
        place = live.get(name) or _registered(name, dict(places.modules))
        before = place.tensor
        if leaf is None:
            place.owner[place.key] = None
        elif before is not None and id(before) in done:
            place.owner[place.key] = done[id(before)]
        elif before is not None and fits(before, leaf):
            pairs.append((before, leaf))
            done[id(before)] = before
        elif place.parameter:
            raise Incompatible(
                problem=f"{part}: the parameter {name} has another shape or dtype than the checkpoint's.",
                remedy="Build the model as it was, or start again under another run_name.",
            )
        else:
            made = native(leaf).to(place_name(before.place) if before is not None and is_somewhere(before) else device)
            place.owner[place.key] = made
            if before is not None:
                done[id(before)] = made
    fill(pairs)


def fits(tensor: Any, leaf: Tree) -> bool:
    """Can the stored tensor be copied into this live one as it is?"""
    return shape_and_dtype(leaf) == (tuple(tensor.shape), plain_name(tensor.dtype)) and has_data(tensor)


def _registered(name: str, layers: dict[str, Any]) -> Place:
    """The place of a buffer that the layer registers later in its life: registered now."""
    prefix, _, key = name.rpartition(".")
    owner = layers[prefix]
    owner.register_buffer(key, None, persistable=False)
    return Place(name, owner._buffers, key, parameter=False, kept=False)


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


def layer_differences(part: str, layer: nn.Layer, tree: Tree) -> Iterator[str]:
    """Names, shapes, dtypes and ties of parameters and buffers."""
    wrong = object_differences(part, layer, tree, kind="module")
    if wrong:
        yield from wrong
        return
    places = Places(layer)
    live = {place.name: held_by(place) for place in places.places if place.kept}
    weights = tree["weights"]
    for name in weights.keys() - live.keys():
        yield f"{part}: {name} is in the checkpoint, and not in this {type(layer).__name__}."
    for name, tensor in live.items():
        if tensor is None:
            continue  # a buffer that the first forward fills: restored from the checkpoint
        if name in weights:
            yield from _tensor_differences(part, name, tensor, weights[name])
        else:
            yield f"{part}: {name} is in this {type(layer).__name__}, and not in the checkpoint."
    layers = dict(places.modules)
    for name in tree["transient"]:
        owner = name.rpartition(".")[0]
        if owner not in layers:
            yield f"{part}: the checkpoint has a buffer {name}, and this model has no layer {owner!r}."
    shared = [name for name in weights if name in live]
    yield from tie_differences(
        part, shared, {name: id(weights[name]) for name in shared}, {name: _same(name, live[name]) for name in shared}
    )


def optimizer_differences(part: str, optimizer: Any, tree: Tree, names: ParameterNames) -> Iterator[str]:
    """Class, groups, which parameters they train, and whether a scheduler is attached."""
    wrong = object_differences(part, optimizer, tree, kind="optimizer")
    if wrong:
        yield from wrong
        return
    yield from class_differences(part, optimizer, tree)
    named, stored = parameter_names(optimizer, names), [group["params"] for group in tree["groups"]]
    yield from group_differences(part, stored, named)
    yield from _rate_differences(part, optimizer, tree["learning_rate"])
    place = dict(zip(chain.from_iterable(named), chain.from_iterable(group_parameters(optimizer)), strict=True))
    for name, leaf in tree["loose"].items():
        if name in place:
            yield from _tensor_differences(part, name, place[name], leaf)
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None and "inner" in tree:
        yield from optimizer_differences(f"{part}.inner_optimizer", inner, tree["inner"], names)


def _rate_differences(part: str, optimizer: Optimizer, stored: Tree) -> Iterator[str]:
    rate = optimizer._learning_rate
    now = type(rate).__name__ if isinstance(rate, LRScheduler) else "a number"
    then = stored["class"] if isinstance(stored, dict) else "a number"
    if now != then:
        yield f"{part}: its learning rate was {then} in the checkpoint, and is {now} now."


def _tensor_differences(part: str, name: str, tensor: Any, leaf: Tree) -> Iterator[str]:
    shape, dtype = shape_and_dtype(leaf)
    if shape != tuple(tensor.shape):
        yield f"{part}: {name} has shape {shape} in the checkpoint and {tuple(tensor.shape)} now."
    if dtype != plain_name(tensor.dtype):
        yield f"{part}: {name} is {dtype} in the checkpoint and {plain_name(tensor.dtype)} now."


def _same(name: str, tensor: Any) -> object:
    """Equal for two names that share one tensor."""
    return name if tensor is None else id(tensor)
