"""Stored state back into Paddle's objects: leaves, layers and optimizers, in place, past the names that Paddle
generates; compared first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import paddle
from paddle import nn
from paddle.amp import AmpScaler
from paddle.base import framework, unique_name
from paddle.base.layer_helper import LayerHelper
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from colabkeep.core.errors import CheckpointUnsupported
from colabkeep.core.state import HostTensor, Tagged, Tree
from colabkeep.frameworks.paddle.capture import (
    TensorPlaces,
    copy_host,
    cpu_tensor,
    dtype_of,
    group_parameters,
    has_data,
    is_somewhere,
    masters_of,
    on_cpu,
    parameter_names,
    place_name,
    plain_name,
    size_of,
)
from colabkeep.frameworks.paddle.rng import revived_state
from colabkeep.frameworks.shared.capture import ParameterNames, TensorPlace
from colabkeep.frameworks.shared.restore import (
    class_differences,
    group_differences,
    restore_tensors,
    tensor_differences,
    transient_differences,
    weight_differences,
)
from colabkeep.frameworks.shared.trees import native_leaf, object_differences, rebuild, restore_object


def _shape_and_dtype(leaf: Tree) -> tuple[tuple[int, ...], str]:
    """Those of a stored tensor."""
    host = _host_of(leaf)
    if isinstance(leaf, Tagged) and "dtype" in leaf.value:
        return host.shape[:-1], leaf.value["dtype"]
    dtype = dtype_of(host.dtype)
    return host.shape, host.dtype if dtype is None else plain_name(dtype)


def _fill(pairs: list[tuple[Any, Tree]]) -> None:
    """Copy stored tensors into live ones of the same shape and dtype, in place, wherever they are."""
    for tensor, leaf in pairs:
        if size_of(tensor) and on_cpu(tensor) and tensor.is_contiguous():
            copy_host(tensor, _host_of(leaf))
        elif size_of(tensor):
            tensor.copy_(_fresh(leaf), True)


def native(tree: Tree, *, devices: bool = False) -> Any:
    """The tree in Paddle's own objects, in fresh memory; with `devices`, where tensors were."""
    return rebuild(
        tree, lambda node, _: _fresh(node) if isinstance(node, HostTensor) else _native_tagged(node, devices)
    )


def _host_of(leaf: Tree) -> HostTensor:
    host: HostTensor = leaf if isinstance(leaf, HostTensor) else leaf.value["data"]
    return host


def _dtype(name: str) -> Any:
    found = dtype_of(name)
    if found is None:
        raise CheckpointUnsupported(
            problem=f"The checkpoint holds a tensor of dtype {name}, which Paddle {paddle.__version__} lacks.",
            remedy="Install a newer Paddle, or load these weights with the framework that made them.",
        )
    return found


def _fresh(leaf: Tree) -> Any:
    """A stored tensor on the CPU, in memory of its own."""
    host = _host_of(leaf)
    shape, dtype = _shape_and_dtype(leaf)
    tensor = cpu_tensor(shape, _dtype(dtype))
    copy_host(tensor, host)
    return tensor


def _native_tagged(node: Tagged, devices: bool) -> Any:
    if node.kind == "paddle.tensor":
        return _native_tensor(node, devices)
    if node.kind == "paddle.dtype":
        return _dtype(node.value)
    if node.kind == "paddle.place":
        return paddle.device._convert_to_place(node.value)
    if node.kind == "paddle.generator_state":
        return revived_state(node.value)
    return native_leaf(node)


def _native_tensor(node: Tagged, devices: bool) -> Any:
    value, tensor = node.value, _fresh(node)
    if devices and "device" in value:
        tensor = tensor._copy_to(paddle.device._convert_to_place(_at_hand(value["device"])), True)
    if "parameter" in value:
        return framework.EagerParamBase.from_tensor(tensor, trainable=value["parameter"])
    tensor.stop_gradient = not value.get("requires_grad", False)
    return tensor


def _at_hand(name: str) -> str:
    """The device of that name if this machine has it, else the first of its kind, else the CPU."""
    kind = name.partition(":")[0]
    found = [each for each in paddle.device.get_available_device() if each.partition(":")[0] == kind]
    return name if name in found else (*found, "cpu")[0]


def restore_scheduler(scheduler: LRScheduler, state: Mapping[str, Any]) -> None:
    """Give a scheduler what `scheduler_state` told."""
    vars(scheduler).update(state["own"])
    for key, inner in state["inside"].items():
        restore_scheduler(vars(scheduler)[key], inner)
    if state["told"]:
        scheduler.set_state_dict({**scheduler.state_dict(), **state["told"]})


def restore_helper(target: Any, tree: Tree) -> None:
    """Hand a stored state to a scheduler, scaler or any other object.

    A scaler that was off has an empty state, which one that is on would refuse: it begins anew, as it would have there.
    """
    if isinstance(target, LRScheduler):
        restore_scheduler(target, native(tree["state"], devices=True))
    elif not (isinstance(target, AmpScaler) and not tree["state"]):
        restore_object(target, tree, lambda stored: native(stored, devices=True))


def _held_by(place: TensorPlace) -> Any:
    """The tensor in a place; None for a buffer that the first forward pass will fill (the dropout state of an LSTM)."""
    tensor = place.tensor
    return tensor if place.parameter or tensor is None or has_data(tensor) else None


def restore_layer(part: str, layer: nn.Layer, tree: Tree) -> None:
    """Give every parameter and buffer its stored value."""
    places = TensorPlaces(layer)
    held = (place.tensor for place in places.places)
    device = next((place_name(each.place) for each in held if each is not None and is_somewhere(each)), "cpu")

    def make(leaf: Tree, before: Any) -> Any:
        return native(leaf).to(place_name(before.place) if before is not None and is_somewhere(before) else device)

    _fill(restore_tensors(part, places, tree, lambda before, leaf: leaf if fits(before, leaf) else None, make))


def fits(tensor: Any, leaf: Tree) -> bool:
    """Can the stored tensor be copied into this live one as it is?"""
    return _shape_and_dtype(leaf) == (tuple(tensor.shape), plain_name(tensor.dtype)) and has_data(tensor)


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
    _fill(pairs)
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
    places = TensorPlaces(layer)
    yield from weight_differences(part, places, tree["weights"], _held_by, _tensor_differences, id)
    yield from transient_differences(part, dict(places.modules), tree["transient"], "layer")


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
    return tensor_differences(part, name, _shape_and_dtype(leaf), (tuple(tensor.shape), plain_name(tensor.dtype)))
