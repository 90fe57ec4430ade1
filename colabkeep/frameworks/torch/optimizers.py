"""Optimizers, schedulers and scalers, out: state by parameter name, groups with every setting; and one recorder for
each part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import torch

from colabkeep.core.errors import NotStorable
from colabkeep.core.state import Tree
from colabkeep.frameworks.shared.modules import ParameterNames, Watch
from colabkeep.frameworks.shared.trees import (
    FUNCTIONS,
    Leaf,
    SlotCache,
    child,
    encode,
    encode_object,
    restore_object,
    told_state,
)
from colabkeep.frameworks.torch.copies import Copies
from colabkeep.frameworks.torch.leaves import TensorLeaves, native, refuse_dataless
from colabkeep.frameworks.torch.modules import Entry, ModuleRecorder, Tensors
from colabkeep.frameworks.torch.staging import HostMemory, Slot, expect_slots

__all__ = [
    "ObjectRecorder",
    "OptimizerRecorder",
    "Recorders",
    "inner_differences",
    "inner_optimizers",
    "load",
    "on_device",
    "parameter_names",
    "restore_helper",
    "scaler_state",
    "tell_inner",
    "tells_as_torch",
    "without_functions",
]


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


# The tree has "kind", "class", "groups", "state", "other", "more", "loose", "graded" and "inner": `groups` name their
# parameters and hold the settings; `state` is by parameter name; `other` is state under keys that are no parameters;
# `more` is what a subclass or hook adds to `state_dict()`; `loose` are the values of parameters that no module of the
# run holds, which nobody else would keep; `graded` names the parameters that have a gradient; `inner` are the states of
# optimizers that this one holds, where there are any; `host` names the state that is in host memory though its
# parameter is not, where there is any: torch's loading would move it to the parameter.
#
# One whose `state_dict()` has not the two entries of torch's own is an object that tells its state, and no more.
#
# Gradients themselves are not kept: the next step clears them. But `zero_grad(set_to_none=False)` makes them zero, and
# by a zero gradient moments still move a parameter that a step did not use, while one without a gradient stays where it
# is.


_GRADIENT = attrgetter("grad")


def parameter_names(optimizer: torch.optim.Optimizer, names: ParameterNames) -> list[list[str]]:
    """The names of each group's parameters; "group0.1" for one that no module holds."""
    return [
        [names.get(parameter) or f"group{i}.{j}" for j, parameter in enumerate(group["params"])]
        for i, group in enumerate(optimizer.param_groups)
    ]


class OptimizerRecorder:
    """Captures one optimizer, with a plan where its state is tensors by parameter, as nearly always."""

    def __init__(self, part: str, optimizer: torch.optim.Optimizer, memory: HostMemory) -> None:
        self.part = part
        self.target = optimizer
        self._memory = memory
        self._leaves = TensorLeaves(memory, devices=True)  # settings may hold tensors: a learning rate on the device
        self._state_leaves = TensorLeaves(memory, devices=False)  # state goes where its parameter is
        self._shelf: SlotCache[Slot] = SlotCache()
        self._plan: _Plan | None = None

    def refresh(self, names: ParameterNames) -> None:
        """Plan anew if the optimizer changed since."""
        if self._plan is None or not self._plan.holds(names):
            self._plan = self._new_plan(names)

    def slots(self) -> Sequence[Slot]:
        """The slots of the plan."""
        return () if self._plan is None else self._plan.tensors.slots

    def record(self, copies: Copies, names: ParameterNames) -> Tree:
        """The optimizer's tree; its tensors are filled when `copies` runs. After `refresh`.

        Raises:
            NotStorable: a value in its state or groups.
        """
        optimizer = self.target
        self._leaves.turn(copies)
        self._state_leaves.turn(copies)
        if self._plan is None:
            told = optimizer.state_dict()
            if not told.keys() >= {"state", "param_groups"}:
                return self._by_itself(told)
            groups, named = told["param_groups"], parameter_names(optimizer, names)
            state, other = self._slow_state(told["state"], list(_flat(named)))
            more = {key: value for key, value in told.items() if key not in ("state", "param_groups")}
        else:
            copies.take(self._plan.tensors)
            groups, named = optimizer.param_groups, self._plan.named
            state, other, more = self._plan.state, {}, {}
        tree = {
            "kind": "optimizer",
            "class": type(optimizer).__name__,
            "groups": [self._group(i, group, named[i]) for i, group in enumerate(groups)],
            "state": state,
            "other": encode(other, f"{self.part}.state", self._leaves),
            "more": encode(more, self.part, self._leaves),
            "loose": self._loose(names),
            "graded": _graded(named, optimizer),
        }
        inner = tell_inner(self.part, optimizer, self._state_leaves)
        if inner:
            tree["inner"] = inner
        if host := _on_host(named, optimizer):
            tree["host"] = host
        self._leaves.sweep()
        self._state_leaves.sweep()
        return tree

    def _by_itself(self, told: Any) -> Tree:
        tree = told_state(self.target, told, self.part, self._leaves)
        self._leaves.sweep()
        self._state_leaves.sweep()
        return tree

    def _group(self, i: int, group: Mapping[str, Any], named: list[str]) -> Tree:
        options = {key: value for key, value in group.items() if key not in ("params", "param_names")}
        parameters = self.target.param_groups[i]["params"]
        return {
            "params": named,
            "device": parameters[0].device.type if parameters else "cpu",
            "options": encode(options, f"{self.part}.param_groups[{i}]", self._leaves),
        }

    def _slow_state(self, told: Mapping[Any, Any], flat: list[str]) -> tuple[dict[str, Tree], dict[Any, Any]]:
        state, other = {}, {}
        for key, value in told.items():
            if type(key) is int and key < len(flat):
                path = f"{self.part}.state[{flat[key]!r}]"
                state[flat[key]] = encode(value, path, self._state_leaves)
            else:
                other[key] = value
        return state, other

    def _loose(self, names: ParameterNames) -> dict[str, Tree]:
        if self._plan is not None and self._plan.all_held:
            return {}
        named = parameter_names(self.target, names) if self._plan is None else self._plan.named
        found = {}
        for i, group in enumerate(self.target.param_groups):
            for j, parameter in enumerate(group["params"]):
                if names.get(parameter) is None:
                    found[named[i][j]] = self._state_leaves(
                        parameter.detach(), f"{self.part}.param_groups[{i}].params[{j}]"
                    )
        return found

    def _new_plan(self, names: ParameterNames) -> _Plan | None:
        optimizer = self.target
        inherited = type(optimizer).state_dict is torch.optim.Optimizer.state_dict
        if inherited and "_optimizer_state_dict_pre_hooks" not in vars(optimizer):
            raise _unmade(self.part, optimizer)
        told_plainly = (
            inherited
            and not optimizer._optimizer_state_dict_pre_hooks
            and not optimizer._optimizer_state_dict_post_hooks
        )
        known = {id(parameter) for parameter in _parameters(optimizer)}
        if not told_plainly or not all(
            id(key) in known and _is_plain_entry(entry) for key, entry in optimizer.state.items()
        ):
            return None
        self._shelf.turn()
        plan = _Plan(self.part, optimizer, names, self._slots, self._memory)
        self._shelf.sweep()
        return plan

    def _slots(self, wanted: Mapping[str, torch.Tensor]) -> dict[str, Slot]:
        for path, tensor in wanted.items():
            refuse_dataless(tensor, path)
        expect_slots(self._memory, self._shelf, wanted)
        return {path: self._slot(tensor, path) for path, tensor in wanted.items()}

    def _slot(self, tensor: torch.Tensor, path: str) -> Slot:
        slot = self._shelf.take(path)
        if slot is None or not slot.fits(tensor):
            slot = Slot(tensor, self._memory, keep_order=True)
        return self._shelf.keep(path, slot)


def _on_host(named: list[list[str]], optimizer: torch.optim.Optimizer) -> dict[str, list[str]]:
    """The state in host memory of parameters that are elsewhere, by parameter name."""
    found = {}
    for name, parameter in zip(_flat(named), _parameters(optimizer), strict=True):
        entry = None if parameter.is_cpu else optimizer.state.get(parameter)
        held = entry.items() if isinstance(entry, dict) else ()
        keys = [key for key, value in held if isinstance(value, torch.Tensor) and value.is_cpu and value.dim()]
        if keys:
            found[name] = keys
    return found


def _graded(named: list[list[str]], optimizer: torch.optim.Optimizer) -> list[str]:
    gradients = map(_GRADIENT, _parameters(optimizer))
    pairs = zip(_flat(named), gradients, strict=True)
    return [name for name, each in pairs if each is not None and each.layout is torch.strided]


def _is_plain_entry(entry: object) -> bool:
    """Is this state of a parameter a dict of tensors (or None), as torch's own optimizers keep it?"""
    return type(entry) is dict and all(
        type(name) is str and (value is None or (type(value) is torch.Tensor and value.layout is torch.strided))
        for name, value in entry.items()
    )


class _Plan:
    """What a capture of an optimizer does, as long as it keeps the same tensors."""

    def __init__(
        self,
        part: str,
        optimizer: torch.optim.Optimizer,
        names: ParameterNames,
        slots_for: Callable[[Mapping[str, torch.Tensor]], Mapping[str, Slot]],
        memory: HostMemory,
    ) -> None:
        self._optimizer, self._names = optimizer, names
        self.named = parameter_names(optimizer, names)
        self._parameters = list(_parameters(optimizer))
        self.all_held = all(names.get(parameter) is not None for parameter in self._parameters)
        name_of = dict(zip(map(id, self._parameters), _flat(self.named), strict=True))
        self.state: dict[str, Tree] = {}
        self._entries = optimizer.state  # loading a state replaces the dict itself
        self._watch = Watch([optimizer.state, *optimizer.state.values()])
        spots: list[tuple[torch.Tensor, dict[str, Tree], str]] = []
        paths: dict[int, str] = {}
        for parameter, entry in optimizer.state.items():
            name = name_of[id(parameter)]
            leaves: dict[str, Tree] = {}
            for key, value in entry.items():
                leaves[key] = None
                if value is not None:
                    paths.setdefault(id(value), child(f"{part}.state[{name!r}]", key))
                    spots.append((value, leaves, key))
            self.state[name] = leaves
        slots = slots_for({paths[id(value)]: value for value, _, _ in spots})
        entries: dict[int, Entry] = {}
        for value, leaves, key in spots:
            if id(value) not in entries:
                path = paths[id(value)]
                entries[id(value)] = Entry(path, value, slots[path])
            entries[id(value)].show(leaves, key)
        self.tensors = Tensors(list(entries.values()), memory)

    def holds(self, names: ParameterNames) -> bool:
        """Has the optimizer still the parameters, names and state tensors that were planned for?"""
        now = list(_parameters(self._optimizer))
        return (
            names is self._names
            and self._optimizer.state is self._entries
            and len(now) == len(self._parameters)
            and [len(group["params"]) for group in self._optimizer.param_groups] == list(map(len, self.named))
            and all(map(is_, now, self._parameters))
            and self._watch.unchanged()
            and self.tensors.fits()
        )


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    return chain.from_iterable(group["params"] for group in optimizer.param_groups)


def _flat(named: list[list[str]]) -> Iterator[str]:
    return chain.from_iterable(named)


def _unmade(part: str, optimizer: torch.optim.Optimizer) -> NotStorable:
    name = type(optimizer).__name__
    return NotStorable(
        problem=f"{part}: {name} cannot tell its state: torch's state_dict() needs what Optimizer.__init__ makes, and "
        f"{name}.__init__ does not call it.",
        remedy=f"Call super().__init__(params, defaults) in {name}.__init__; or, if it wraps another optimizer, give "
        "it a state_dict() and a load_state_dict() of its own that include the other's.",
    )


def tells_as_torch(scaler: torch.amp.GradScaler) -> bool:
    """Is its state what torch's own class tells, and on a GPU by now?"""
    scale = getattr(scaler, "_scale", None)
    own = type(scaler).state_dict is torch.amp.GradScaler.state_dict
    return own and scaler.is_enabled() and isinstance(scale, torch.Tensor) and scale.is_cuda


def scaler_state(scaler: torch.amp.GradScaler) -> dict[str, Any]:
    """What it would tell (torch/amp/grad_scaler.py, torch 2.4 to 2.13), but for the two numbers."""
    return {
        "scale": 0.0,
        "growth_factor": scaler.get_growth_factor(),
        "backoff_factor": scaler.get_backoff_factor(),
        "growth_interval": scaler.get_growth_interval(),
        "_growth_tracker": 0,
    }


def on_device(scaler: Any) -> Mapping[str, torch.Tensor]:
    """Those."""
    return {"scale": scaler._scale, "_growth_tracker": scaler._growth_tracker}


def without_functions(state: Any) -> Any:
    """A scheduler's state without the functions that it was built with.

    Torch leaves out lambdas itself, and forgets others (SWALR.anneal_func before 2.6, OneCycleLR before
    2.2). The constructor has put them into the new scheduler already.
    """
    if isinstance(state, dict):
        return {key: without_functions(value) for key, value in state.items() if not isinstance(value, FUNCTIONS)}
    if isinstance(state, list):
        return [without_functions(value) for value in state]
    return state


def restore_helper(target: Any, tree: Tree) -> None:
    """Hand a stored state to a scheduler, scaler or any other object.

    A scaler that was off has an empty state, which one that is on would refuse: it begins anew, as it would have there.
    """
    if isinstance(target, torch.amp.GradScaler) and not tree["state"]:
        return
    restore_object(target, tree, lambda stored: native(stored, devices=True))


class ObjectRecorder:
    """Captures whatever tells its own state: schedulers, scalers, random streams, the user's own."""

    def __init__(self, part: str, target: object, memory: HostMemory) -> None:
        self.part = part
        self.target = target
        self._leaves = TensorLeaves(memory, devices=True)

    def record(self, copies: Copies) -> Tree:
        """The object's tree; its tensors are filled when `copies` runs."""
        self._leaves.turn(copies)
        if isinstance(self.target, torch.amp.GradScaler) and tells_as_torch(self.target):
            tree = told_state(self.target, scaler_state(self.target), self.part, self._leaves)
            copies.fill(tree["state"], on_device(self.target))
        else:
            scheduler = isinstance(self.target, torch.optim.lr_scheduler.LRScheduler)
            tree = encode_object(self.part, self.target, self._leaves, without_functions if scheduler else None)
        self._leaves.sweep()
        return tree


class Recorders:
    """The recorders of all parts, and the names of the parameters that they share."""

    def __init__(self, memory: HostMemory) -> None:
        self._memory = memory
        self._modules: dict[str, ModuleRecorder] = {}
        self._others: dict[str, OptimizerRecorder | ObjectRecorder] = {}
        self._names = ParameterNames(())

    def record(self, parts: Mapping[str, object], copies: Copies) -> dict[str, Tree]:
        """The trees of all parts; their tensors are filled when `copies` runs. After `refresh`.

        Raises:
            NotStorable: a part cannot be kept.
        """
        trees = {}
        for name in parts:
            other = self._others.get(name)
            if isinstance(other, OptimizerRecorder):
                trees[name] = other.record(copies, self._names)
            else:
                trees[name] = (other or self._modules[name]).record(copies)
        return trees

    def prepare(self, parts: Mapping[str, object]) -> Iterator[Slot]:
        """Plan for these parts; the slots of modules and optimizers, some of which may be new.

        Raises:
            NotStorable: a part cannot be kept.
            MemoryFull: there is no room for a copy of it.
        """
        self.refresh(parts)
        for module in self._modules.values():
            yield from module.slots()
        for optimizer in self._optimizers():
            yield from optimizer.slots()

    def refresh(self, parts: Mapping[str, object]) -> None:
        """Plan for exactly these parts; the memory of those that are gone is let go.

        Raises:
            NotStorable: a part cannot be kept.
            MemoryFull: there is no room for a copy of it.
        """
        self._find(parts)
        for optimizer in self._optimizers():
            optimizer.refresh(self._names)

    def _optimizers(self) -> Iterator[OptimizerRecorder]:
        return (other for other in self._others.values() if isinstance(other, OptimizerRecorder))

    def _find(self, parts: Mapping[str, object]) -> None:
        modules: dict[str, ModuleRecorder] = {}
        others: dict[str, OptimizerRecorder | ObjectRecorder] = {}
        renamed = False
        for name, target in parts.items():
            if isinstance(target, torch.nn.Module):
                module = self._modules.get(name)
                if module is None or module.target is not target:
                    module, renamed = ModuleRecorder(name, target, self._memory), True
                elif module.refresh():
                    renamed = True
                modules[name] = module
            else:
                other = self._others.get(name)
                if other is None or other.target is not target:
                    if isinstance(target, torch.optim.Optimizer):
                        other = OptimizerRecorder(name, target, self._memory)
                    else:
                        other = ObjectRecorder(name, target, self._memory)
                others[name] = other
        renamed = renamed or list(modules) != list(self._modules)
        if renamed:
            self._names = ParameterNames((name, module.parameters()) for name, module in modules.items())
        self._modules, self._others = modules, others
