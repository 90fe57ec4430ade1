"""Stored state back into torch's objects: leaves, modules and optimizers, in place; compared first, by the parameters'
names, then made exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from operator import attrgetter
from typing import Any

import torch

from colabkeep.core.errors import CheckpointDamaged, CheckpointUnsupported
from colabkeep.core.state import HostTensor, Tagged, Tree
from colabkeep.frameworks.shared.capture import ParameterNames
from colabkeep.frameworks.shared.restore import (
    class_differences,
    group_differences,
    restore_tensors,
    scheduler_differences,
    tensor_differences,
    transient_differences,
    weight_differences,
)
from colabkeep.frameworks.shared.settings import marked
from colabkeep.frameworks.shared.trees import Rebuild, like, native_leaf, object_differences, rebuild, restore_object
from colabkeep.frameworks.torch.capture import (
    CONSTANTS,
    TensorPlaces,
    dtype_name,
    dtype_of,
    extras,
    inner_optimizers,
    is_expanded,
    memory_order,
    metrics,
    parameter_names,
    parameters_of,
    plain_name,
)
from colabkeep.frameworks.torch.shells import KIND as SHELL
from colabkeep.frameworks.torch.shells import put_together, settle

OF_THE_DEVICE = ("fused", "foreach", "capturable")
"""Settings that choose a kernel. Saved on another kind of device they may be impossible here."""


def native(tree: Tree, *, devices: bool = False, adopting: bool = False) -> Any:
    """The tree in torch's own objects, in fresh memory; with `devices`, where tensors were. With `adopting`, in the
    memory that they were read to, where they can stay there: the tree must not be used again."""

    def leaf(node: HostTensor | Tagged, inner: Rebuild) -> Any:
        if isinstance(node, HostTensor):
            kept = _adopted(node) if adopting else None
            return view_host(node).clone() if kept is None else kept
        return _native_tagged(node, inner, devices)

    return rebuild(tree, leaf)


# For state that the framework makes anew anyway, as an optimizer's: to copy 336 MB of Adam's moments takes up to a
# second, nearly all of it for the pages of fresh memory.
#
# Torch cannot resize a storage that it did not allocate. Its own optimizers never ask for that; others may, to keep
# their state elsewhere between two steps, so theirs is copied. Whoever does so by hand with one of torch's own has to
# give the tensors memory of torch's after a resume: `state[p][key] = state[p][key].clone()`.


_LARGE = 2**20  # bytes: of less, the file's whole buffer is not to be kept
_ALIGNED = 64
"""Bytes, as torch's own allocator aligns (c10/core/alignment.h). On memory that was not, LBFGS went on with other bits:
some kernels sum up in another order there."""


def _adopted(host: HostTensor) -> torch.Tensor | None:
    """The tensor in its file's own memory, for good; None if it cannot stay there and must be copied.

    It keeps the file's whole buffer alive, so this is for tensors that are most of what is in it.
    """
    kind = dtype_of(host.dtype)
    if kind is None or not host.fresh or host.data.readonly or host.data.nbytes < _LARGE:
        return None
    storage = torch.frombuffer(host.data, dtype=torch.uint8).untyped_storage()
    if storage.data_ptr() % _ALIGNED:
        return None
    # A tensor with a storage of its own, and no view of another one: it is like any that the framework made.
    rows = torch.empty(host.shape, dtype=kind, device="meta").stride()
    return torch.empty(0, dtype=kind, device="cpu").set_(storage, 0, torch.Size(host.shape), rows)


def view_host(host: HostTensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The bytes as a row-major tensor that lives in the file's buffer: to be copied from, never kept.

    Raises:
        CheckpointUnsupported: this torch has no such dtype.
    """
    if host.referred:
        raise ValueError("this weight is named by its checksum, and has no bytes here")
    kind = dtype or dtype_of(host.dtype)
    if kind is None:
        raise CheckpointUnsupported(
            problem=f"The checkpoint holds a tensor of dtype {host.dtype}, which torch {torch.__version__} lacks.",
            remedy="Install a newer torch.",
        )
    shape = host.shape if dtype is None or dtype_name(dtype) else host.shape[:-1]
    if not host.data.nbytes:
        return torch.empty(shape, dtype=kind, device="cpu")
    data = bytearray(host.data) if host.data.readonly else host.data
    raw = torch.frombuffer(data, dtype=torch.uint8)
    if raw.data_ptr() % kind.itemsize:
        raw = raw.clone()  # as bytes: torch 2.4 crashes in a transposing copy from memory that is not aligned
    return raw.view(kind).view(shape)


def view_leaf(value: Tree) -> torch.Tensor:
    """The same for the inside of a tagged tensor, with its own order of dimensions.

    Raises:
        CheckpointDamaged: its strides cannot be those of its shape.
    """
    rows = view_host(value["data"], _constant("torch.dtype", value["dtype"]) if "dtype" in value else None)
    stride = value.get("stride")
    if stride is None:
        return rows
    order = sorted(range(len(stride)), key=lambda d: -stride[d])
    shape = [0] * len(stride)
    for size, d in zip(rows.shape, order, strict=True):
        shape[d] = size
    if memory_order(shape, stride) != order:
        raise CheckpointDamaged(
            problem=f"A tensor of shape {tuple(shape)} is stored with strides {stride}, which do not fit.",
            remedy="Resume from another checkpoint; this one was not written by colabkeep as it is.",
        )
    # as_strided and not permute: the strides of dimensions of size one are kept too.
    return rows.as_strided(shape, stride)


def _native_tagged(node: Tagged, inner: Rebuild, devices: bool) -> Any:
    kind, value = node.kind, node.value
    if kind == "torch.tensor":
        return _native_tensor(value, devices)
    if kind == "torch.sparse":
        return _native_sparse(value, inner)
    if kind == "torch.generator":
        generator = torch.Generator(torch.device(value["device"]))
        generator.set_state(inner(value["state"]))
        return generator
    if kind == SHELL:
        return put_together(inner(value))
    if kind == "torch.Size":
        return torch.Size(value)
    if kind == "torch.device":
        return torch.device(value)
    if kind in CONSTANTS.values():
        return _constant(kind, value)
    return native_leaf(node)


def _constant(kind: str, name: str) -> Any:
    found = getattr(torch, name, None)
    if CONSTANTS.get(type(found)) != kind:
        raise CheckpointUnsupported(
            problem=f"The checkpoint names the {kind} {name!r}, which torch {torch.__version__} lacks.",
            remedy="Install a newer torch.",
        )
    return found


def _native_tensor(value: Tree, devices: bool) -> torch.Tensor:
    source = view_leaf(value)
    # clone() keeps the strides of gapless memory, whatever their order.
    made = source.clone()
    if devices and "device" in value:
        made = made.to(_at_hand(value["device"]))
    if "parameter" in value:
        return torch.nn.Parameter(made, requires_grad=value["parameter"])
    return made.requires_grad_() if value.get("requires_grad") else made


def _native_sparse(value: Tree, inner: Rebuild) -> torch.Tensor:
    parts, size = [inner(part) for part in value["parts"]], value["size"]
    if value["layout"] == "sparse_coo":
        indices, values = parts
        return torch.sparse_coo_tensor(
            indices, values, size, device=values.device, is_coalesced=value["coalesced"], check_invariants=True
        )
    layout = _constant("torch.layout", value["layout"])
    compressed, plain, values = parts
    return torch.sparse_compressed_tensor(
        compressed, plain, values, size, layout=layout, device=values.device, check_invariants=True
    )


def _at_hand(name: str) -> torch.device:
    """The device of that name if this machine has it, else the first of its kind, else the CPU."""
    device = torch.device(name)
    module = getattr(torch, device.type, None)
    count = module.device_count() if module is not None and module.is_available() else 0
    if count == 0:
        return torch.device("cpu")
    return device if (device.index or 0) < count else torch.device(device.type, 0)


def restore_module(part: str, module: torch.nn.Module, tree: Tree) -> None:
    """Give every parameter and buffer its stored value, then hand over extra state, and to metrics what they counted.
    Earlier versions did not store that."""
    places = TensorPlaces(module)
    device = next((p.tensor.device for p in places.places if p.tensor is not None), torch.device("cpu"))

    def make(leaf: Tree, before: torch.Tensor | None) -> torch.Tensor:
        made: torch.Tensor = native(leaf)
        return made.to(device if before is None else before.device)

    fills = restore_tensors(part, places, tree, _source_of, make)
    with torch.no_grad():
        for target, source in fills:
            target.copy_(source)
    for name, each in extras(places):
        if name in tree["extra"]:
            each.set_extra_state(native(tree["extra"][name], devices=True))
    for name, metric in metrics(places):
        for key, value in native(tree.get("metrics", {}).get(name, {})).items():
            here = [each.to(metric.device) for each in value] if isinstance(value, list) else value.to(metric.device)
            setattr(metric, key, here)


def _source_of(tensor: torch.Tensor, leaf: Tree) -> torch.Tensor | None:
    """The stored tensor, in its file's buffer, if it can be copied into this live one as it is; else None."""
    if tensor.layout is not torch.strided or _shape_and_dtype(leaf) != (tuple(tensor.shape), plain_name(tensor.dtype)):
        return None
    if is_expanded(tensor):
        return None
    return view_host(leaf) if isinstance(leaf, HostTensor) else view_leaf(leaf.value)


def _shape_and_dtype(leaf: Tree) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of a stored tensor; "sparse float32" for one that is no block of memory."""
    if isinstance(leaf, HostTensor):
        dtype = dtype_of(leaf.dtype)
        return leaf.shape, leaf.dtype if dtype is None else plain_name(dtype)
    value = leaf.value
    if leaf.kind == "torch.sparse":
        return tuple(value["size"]), f"sparse {_shape_and_dtype(value['parts'][-1])[1]}"
    host: HostTensor = value["data"]
    shape, dtype_text = _shape_and_dtype(host)
    if "dtype" in value:
        shape, dtype_text = host.shape[:-1], value["dtype"]
    if "stride" in value:
        shape = tuple(view_leaf(value).shape) if prod(shape) else shape
    return shape, dtype_text


def is_torchs_own(optimizer: torch.optim.Optimizer) -> bool:
    """Is it of one of torch's own classes, whose ways are known?"""
    return type(optimizer).__module__.startswith("torch.optim.")


def _load(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
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


def _group_count_differences(
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


def _regroup(optimizer: torch.optim.Optimizer, groups: Sequence[Tree], names: ParameterNames) -> None:
    """Give the optimizer the groups of the checkpoint, after `_group_count_differences` found none: those that were
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


def restore_optimizer(optimizer: torch.optim.Optimizer, tree: Tree, names: ParameterNames) -> None:
    """Give the optimizer its stored groups and state; every tensor bit-exact, in memory of its own, at its parameter.

    Large tensors of state may stay in the memory of `tree`, which must not be used again.
    """
    _regroup(optimizer, tree["groups"], names)
    named = parameter_names(optimizer, names)
    place = {name: i for i, name in enumerate(name for group in named for name in group)}
    parameters: list[Any] = list(parameters_of(optimizer))
    for name, leaf in tree["loose"].items():
        source = _source_of(parameters[place[name]], leaf)
        if source is not None:
            with torch.no_grad():
                parameters[place[name]].copy_(source)
    # In one go: groups often share one tensor as their learning rate, and must go on sharing it.
    kept = {key: tree[key] for key in ("groups", "state", "other", "more")}
    stored = native(kept, devices=True, adopting=is_torchs_own(optimizer))
    state = {place[name]: entry for name, entry in stored["state"].items()}
    groups = [
        _group(live, then, [place[name] for name in group])
        for live, then, group in zip(optimizer.param_groups, stored["groups"], named, strict=True)
    ]
    _load(optimizer, {"state": {**state, **stored["other"]}, "param_groups": groups, **stored["more"]})
    _restore_state(optimizer, parameters, state)
    for name, keys in tree.get("host", {}).items():
        entry = optimizer.state[parameters[place[name]]]
        entry.update({key: entry[key].cpu() for key in keys if isinstance(entry.get(key), torch.Tensor)})
    for name, inner in inner_optimizers(optimizer).items():
        if name in tree.get("inner", {}):
            told = native(tree["inner"][name], devices=True)
            _load(inner, told)
            _restore_state(inner, list(parameters_of(inner)), told.get("state", {}))
    if "graded" in tree:
        _restore_gradients(parameters, {place[name] for name in tree["graded"]})
    # It has stepped, in an earlier life: torch must not warn when an epoch's end, resumed, begins with the scheduler.
    vars(optimizer)["_opt_called"] = True


def _restore_state(optimizer: torch.optim.Optimizer, parameters: list[Any], state: Mapping[int, Any]) -> None:
    """Every entry as it was stored, whatever loading made of it."""
    for i, entry in state.items():
        parameter = parameters[i]
        if parameter in optimizer.state:
            optimizer.state[parameter] = _exact(optimizer.state[parameter], entry)
            for each in entry.values() if isinstance(entry, dict) else ():
                if not isinstance(each, torch.Tensor) and hasattr(each, "__dict__"):
                    settle(each, parameter.device)


def _restore_gradients(parameters: list[Any], graded: set[int]) -> None:
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


def module_differences(part: str, module: torch.nn.Module, tree: Tree) -> Iterator[str]:
    """Names, shapes, dtypes and ties of parameters and buffers."""
    wrong = object_differences(part, module, tree, kind="module")
    if wrong:
        yield from wrong
        return
    places = TensorPlaces(module)
    yield from weight_differences(part, places, tree["weights"], attrgetter("tensor"), _tensor_differences, _memory)
    yield from transient_differences(part, dict(places.modules), tree["transient"], "module")
    telling = {name for name, _ in extras(places)}
    for name in telling ^ tree["extra"].keys():
        side = "this model, and not in the checkpoint" if name in telling else "the checkpoint, and not in this model"
        yield f"{part}: extra state of the module {name or type(module).__name__!r} is in {side}."


def optimizer_differences(
    part: str, optimizer: torch.optim.Optimizer, tree: Tree, names: ParameterNames
) -> Iterator[str]:
    """Class, groups, and which parameters they train."""
    own = isinstance(tree, dict) and tree.get("kind") == "object"  # its state has a form of its own
    wrong = object_differences(part, optimizer, tree, kind="object" if own else "optimizer")
    if wrong:
        yield from wrong
        return
    yield from class_differences(part, optimizer, tree)
    if own:
        return
    for name in tree.get("inner", {}).keys() - inner_optimizers(optimizer).keys():  # earlier versions stored none
        yield f"{part}: it had an optimizer inside, {name}, and has none there now."
    named, stored = parameter_names(optimizer, names), [group["params"] for group in tree["groups"]]
    if len(named) != len(stored):
        yield from _group_count_differences(part, optimizer, stored, names)
        return
    yield from group_differences(part, stored, named)
    place = dict(zip((name for group in named for name in group), parameters_of(optimizer), strict=True))
    for name, leaf in tree["loose"].items():
        if name in place:
            yield from _tensor_differences(part, name, place[name], leaf)


def schedule_differences(part: str, scheduler: torch.optim.lr_scheduler.LRScheduler, tree: Tree) -> Iterator[str]:
    """Class, and functions that nobody can bring back: those for groups that were added in the training."""
    wrong = list(scheduler_differences(part, scheduler, tree))
    yield from wrong
    now, then = vars(scheduler).get("lr_lambdas"), None if wrong else tree["state"].get("lr_lambdas")
    if then is not None and now is not None and len(then) > len(now):
        yield (
            f"{part}: it had functions for {len(then)} parameter groups and has {len(now)} now; functions cannot be "
            "stored. Use a schedule without functions, or build the optimizer with all groups, frozen until they train."
        )


def _tensor_differences(part: str, name: str, tensor: torch.Tensor, leaf: Tree) -> Iterator[str]:
    if torch.nn.parameter.is_lazy(tensor):
        yield f"{part}: {name} has no shape yet; run one forward pass before resuming."
        return
    sparse = "" if tensor.layout is torch.strided else "sparse "
    now = tuple(tensor.shape), sparse + plain_name(tensor.dtype)
    yield from tensor_differences(part, name, _shape_and_dtype(leaf), now)


def _memory(tensor: torch.Tensor) -> object:
    """Equal for two that are one tensor, or one piece of memory in the same way."""
    if tensor.layout is not torch.strided or torch.nn.parameter.is_lazy(tensor) or not tensor.numel():
        return id(tensor)
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def restore_helper(target: Any, tree: Tree) -> None:
    """Hand a stored state to a scheduler, scaler or any other object.

    A scaler that was off has an empty state, which one that is on would refuse: it begins anew, as it would have there.
    """
    if isinstance(target, torch.amp.GradScaler) and not tree["state"]:
        return
    restore_object(target, tree, lambda stored: native(stored, devices=True))
