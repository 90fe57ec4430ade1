"""What was stored against what is there now, in sentences. Touches nothing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from paddle import nn
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from colabkeep.frameworks.common.compare import class_differences, group_differences, tie_differences
from colabkeep.frameworks.common.names import ParameterNames
from colabkeep.frameworks.common.objects import object_differences
from colabkeep.frameworks.paddle.state.dtypes import plain_name
from colabkeep.frameworks.paddle.state.leaves import shape_and_dtype
from colabkeep.frameworks.paddle.state.optimizers import group_parameters, parameter_names
from colabkeep.frameworks.paddle.state.places import Places, held_by
from colabkeep.vocabulary.state import Tree

__all__ = ["layer_differences", "optimizer_differences"]


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
