"""Stored state into live modules and optimizers, in place: compared first, by the parameters' names, then made
exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from operator import attrgetter
from typing import Any

import torch

from colabkeep.core.errors import Incompatible
from colabkeep.core.state import HostTensor, Tagged, Tree
from colabkeep.frameworks.shared.modules import (
    ParameterNames,
    class_differences,
    group_differences,
    scheduler_differences,
    tie_differences,
)
from colabkeep.frameworks.shared.settings import marked
from colabkeep.frameworks.shared.trees import like, object_differences
from colabkeep.frameworks.torch.leaves import copy_all, native, view_host, view_leaf
from colabkeep.frameworks.torch.modules import Place, Places
from colabkeep.frameworks.torch.optimizers import inner_differences, inner_optimizers, load, parameter_names
from colabkeep.frameworks.torch.staging import dtype_of, plain_name

__all__ = [
    "OF_THE_DEVICE",
    "Options",
    "Unguarded",
    "check_optimizer",
    "describe",
    "fill",
    "group_count_differences",
    "is_torchs_own",
    "module_differences",
    "optimizer_differences",
    "regroup",
    "restore_module",
    "restore_optimizer",
    "schedule_differences",
]

_VERSION = attrgetter("_version")


class Unguarded:
    """Those parameters, and whether they were changed since the last mark. 0.14 µs for each at a mark.

    What optimizers of torch's own train changes in a step that is heard, and is left out. Not seen is what writes
    through `.data` in place.
    """

    def __init__(self, modules: Iterable[torch.nn.Module], optimizers: Iterable[torch.optim.Optimizer]) -> None:
        optimizers = list(optimizers)
        heard = {
            id(parameter)
            for optimizer in optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.requires_grad
        }
        if not all(map(is_torchs_own, optimizers)):
            heard = set()
        held = {id(p): p for module in modules for _, p in Places(module).parameters()}
        self.parameters = [p for key, p in held.items() if key not in heard and _tells(p)]
        self._marked: tuple[list[int], list[int]] = [], []

    def mark(self) -> None:
        """The training is between two steps."""
        self._marked = self._look()

    @property
    def changed(self) -> bool:
        """Was one of them changed since?"""
        return self._look() != self._marked

    def _look(self) -> tuple[list[int], list[int]]:
        return list(map(_VERSION, self.parameters)), list(map(torch.Tensor.data_ptr, self.parameters))


def is_torchs_own(optimizer: torch.optim.Optimizer) -> bool:
    """Is it of one of torch's own classes, whose ways are known?"""
    return type(optimizer).__module__.startswith("torch.optim.")


def _tells(parameter: torch.Tensor) -> bool:
    """Has it a version and an address?"""
    strided = parameter.layout is torch.strided and not torch.nn.parameter.is_lazy(parameter)
    return strided and not parameter.is_inference()


def restore_module(part: str, module: torch.nn.Module, tree: Tree) -> None:
    """Give every parameter and buffer its stored value, then hand over extra state.

    Parameters and persistent buffers are filled in place, so that optimizers, ties and strides stay.
    Non-persistent buffers may have grown since the module was built: such a one is replaced.
    """
    places = Places(module)
    live = {place.name: place for place in places.places}
    device = next((p.tensor.device for p in places.places if p.tensor is not None), torch.device("cpu"))
    fills: list[tuple[torch.Tensor, torch.Tensor]] = []
    done: dict[int, torch.Tensor] = {}  # what became of each live tensor: a tied one is filled once
    for name, leaf in {**tree["weights"], **tree["transient"]}.items():
        place = live.get(name) or _registered(name, dict(places.modules))
        before = place.tensor
        if leaf is None:
            place.owner[place.key] = None
        elif before is not None and id(before) in done:
            place.owner[place.key] = done[id(before)]
        elif before is None or (source := source_of(before, leaf)) is None:
            if place.parameter:
                raise Incompatible(
                    problem=f"{part}: the parameter {name} has another shape or dtype than the checkpoint's.",
                    remedy="Build the model as it was, or start again under another run_name.",
                )
            made = native(leaf).to(device if before is None else before.device)
            place.owner[place.key] = made
            if before is not None:
                done[id(before)] = made
        else:
            fills.append((before, source))
            done[id(before)] = before
    copy_all([target for target, _ in fills], [source for _, source in fills])
    for name, each in places.extras():
        if name in tree["extra"]:
            each.set_extra_state(native(tree["extra"][name], devices=True))


def fill(tensor: torch.Tensor, leaf: Tree) -> bool:
    """Copy a stored tensor into a live one. False, and nothing done, if that cannot be in place."""
    source = source_of(tensor, leaf)
    if source is None:
        return False
    copy_all([tensor], [source])
    return True


def source_of(tensor: torch.Tensor, leaf: Tree) -> torch.Tensor | None:
    """The stored tensor, in its file's buffer, if it can be copied into this live one as it is; else None."""
    if tensor.layout is not torch.strided or describe(leaf) != (tuple(tensor.shape), plain_name(tensor.dtype)):
        return None
    if any(step == 0 and size > 1 for size, step in zip(tensor.shape, tensor.stride(), strict=True)):
        return None  # expanded: one number in memory stands for many
    return view_host(leaf) if isinstance(leaf, HostTensor) else view_leaf(leaf.value)


def describe(leaf: Tree) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of a stored tensor; "sparse float32" for one that is no block of memory."""
    if isinstance(leaf, HostTensor):
        dtype = dtype_of(leaf.dtype)
        return leaf.shape, leaf.dtype if dtype is None else plain_name(dtype)
    value = leaf.value
    if leaf.kind == "torch.sparse":
        return tuple(value["size"]), f"sparse {describe(value['parts'][-1])[1]}"
    host: HostTensor = value["data"]
    shape, dtype_text = describe(host)
    if "dtype" in value:
        shape, dtype_text = host.shape[:-1], value["dtype"]
    if "stride" in value:
        shape = tuple(view_leaf(value).shape) if prod(shape) else shape
    return shape, dtype_text


def _registered(name: str, modules: dict[str, torch.nn.Module]) -> Place:
    """The place of a buffer that the module registers later in its life: registered now."""
    prefix, _, key = name.rpartition(".")
    owner = modules[prefix]
    owner.register_buffer(key, None, persistent=False)
    return Place(name, owner._buffers, key, parameter=False, kept=False)


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


_COUNTS = frozenset(("step", "eta", "mu", "mu_product", "func_evals", "n_iter"))  # a tensor, or a number
_TENSORS = frozenset(
    ("acc_delta", "ax", "exp_avg", "exp_avg_sq", "exp_inf", "max_exp_avg_sq", "prev", "square_avg", "step_size", "sum")
)


def check_optimizer(optimizer: torch.optim.Optimizer, tree: Tree) -> None:
    """What an optimizer of another class keeps, and what somebody has added to one of torch's, nobody knows.

    Raises:
        ValueError: a setting, or an entry of a parameter's state, is of a kind that the class never has there.
    """
    if not is_torchs_own(optimizer):
        return
    for group, live in zip(tree["groups"], optimizer.param_groups, strict=False):
        for name, value in native(group["options"]).items():
            if name in optimizer.defaults and not (_alike(live[name], value) and _is_set(live[name], value)):
                raise ValueError(f"the setting {name} of an optimizer is {value!r:.80}")
    for name, entry in tree["state"].items():
        if not isinstance(entry, dict):
            raise ValueError(f"an optimizer's state of {name} is {entry!r:.80}")
        for key, value in entry.items():
            if not _fits(key, value):
                raise ValueError(f"{key} in an optimizer's state of {name} is {value!r:.80}")


def _fits(key: str, value: Tree) -> bool:
    if isinstance(value, HostTensor) or (isinstance(value, Tagged) and value.kind in ("torch.tensor", "torch.sparse")):
        return True
    return _is_number(value) if key in _COUNTS else key not in _TENSORS and (key != "momentum_buffer" or value is None)


def _alike(live: Any, stored: Any) -> bool:
    """May the one take the other's place? None leaves the choice to torch."""
    if live is None or stored is None:
        return isinstance(stored if live is None else live, (bool, int, float, str, type(None)))
    if isinstance(live, bool) or isinstance(stored, bool):
        return stored in (0, 1) and live in (0, 1)
    if isinstance(live, (tuple, list)):
        return isinstance(stored, (tuple, list)) and len(live) == len(stored) and all(map(_alike, live, stored))
    numbers = (int, float, torch.Tensor)
    return isinstance(stored, numbers if isinstance(live, numbers) else type(live))


def _is_set(live: Any, stored: Any) -> bool:
    """A number is never left to torch; one among several may be (Adafactor's eps)."""
    return stored is not None or not _is_number(live)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


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
    for name, keys in tree.get("host", {}).items():
        entry = optimizer.state[parameters[place[name]]]
        entry.update({key: entry[key].cpu() for key in keys if isinstance(entry.get(key), torch.Tensor)})
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


def module_differences(part: str, module: torch.nn.Module, tree: Tree) -> Iterator[str]:
    """Names, shapes, dtypes and ties of parameters and buffers."""
    wrong = object_differences(part, module, tree, kind="module")
    if wrong:
        yield from wrong
        return
    places = Places(module)
    live = {place.name: place for place in places.places if place.kept}
    weights = tree["weights"]
    for name in weights.keys() - live.keys():
        yield f"{part}: {name} is in the checkpoint, and not in this {type(module).__name__}."
    for name, place in live.items():
        if name in weights:
            yield from _tensor_differences(part, place, weights[name])
        elif place.tensor is not None:
            yield f"{part}: {name} is in this {type(module).__name__}, and not in the checkpoint."
    yield from _transient_differences(part, dict(places.modules), tree["transient"])
    shared = [name for name in weights if name in live]
    yield from tie_differences(part, shared, {n: id(weights[n]) for n in shared}, {n: _memory(live[n]) for n in shared})
    extras = {name for name, _ in places.extras()}
    for name in extras ^ tree["extra"].keys():
        side = "this model, and not in the checkpoint" if name in extras else "the checkpoint, and not in this model"
        yield f"{part}: extra state of the module {name or type(module).__name__!r} is in {side}."


def optimizer_differences(
    part: str, optimizer: torch.optim.Optimizer, tree: Tree, names: ParameterNames
) -> Iterator[str]:
    """Class, groups, and which parameters they train.

    Raises:
        ValueError: no session writes what is stored there.
    """
    own = isinstance(tree, dict) and tree.get("kind") == "object"  # its state has a form of its own
    wrong = object_differences(part, optimizer, tree, kind="object" if own else "optimizer")
    if wrong:
        yield from wrong
        return
    yield from class_differences(part, optimizer, tree)
    if own:
        return
    yield from inner_differences(part, optimizer, tree)
    named, stored = parameter_names(optimizer, names), [group["params"] for group in tree["groups"]]
    if len(named) != len(stored):
        yield from group_count_differences(part, optimizer, stored, names)
        return
    yield from group_differences(part, stored, named)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    place = dict(zip((name for group in named for name in group), parameters, strict=True))
    for name, leaf in tree["loose"].items():
        if name in place:
            yield from _shape_differences(part, name, place[name], leaf)
    check_optimizer(optimizer, tree)


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


def _tensor_differences(part: str, place: Place, leaf: Tree) -> Iterator[str]:
    tensor = place.tensor
    if tensor is None:
        return  # a buffer that the first forward fills: restored from the checkpoint
    if torch.nn.parameter.is_lazy(tensor):
        yield f"{part}: {place.name} has no shape yet; run one forward pass before resuming."
        return
    yield from _shape_differences(part, place.name, tensor, leaf)


def _shape_differences(part: str, name: str, tensor: torch.Tensor, leaf: Tree) -> Iterator[str]:
    shape, dtype = describe(leaf)
    sparse = "" if tensor.layout is torch.strided else "sparse "
    if shape != tuple(tensor.shape):
        yield f"{part}: {name} has shape {shape} in the checkpoint and {tuple(tensor.shape)} now."
    if dtype != sparse + plain_name(tensor.dtype):
        yield f"{part}: {name} is {dtype} in the checkpoint and {sparse}{plain_name(tensor.dtype)} now."


def _transient_differences(part: str, modules: dict[str, torch.nn.Module], transient: dict[str, Tree]) -> Iterator[str]:
    for name in transient:
        owner = name.rpartition(".")[0]
        if owner not in modules:
            yield f"{part}: the checkpoint has a buffer {name}, and this model has no module {owner!r}."


def _memory(place: Place) -> object:
    """Equal for two places that share one tensor, or one piece of memory in the same way."""
    tensor = place.tensor
    if tensor is None or tensor.layout is not torch.strided or torch.nn.parameter.is_lazy(tensor) or not tensor.numel():
        return place.name if tensor is None else id(tensor)
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
