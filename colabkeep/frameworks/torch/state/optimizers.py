"""Optimizers: state by parameter name, groups with every setting, exactly.

The tree has "kind", "class", "groups", "state", "other", "more", "loose", "graded" and "inner": `groups` name their
parameters and hold the settings; `state` is by parameter name; `other` is state under keys that are no parameters;
`more` is what a subclass or hook adds to `state_dict()`; `loose` are the values of parameters that no module
of the run holds, which nobody else would keep; `graded` names the parameters that have a gradient; `inner` are the
states of optimizers that this one holds, where there are any.

One whose `state_dict()` has not the two entries of torch's own is an object that tells its state, and no more.

Gradients themselves are not kept: the next step clears them. But `zero_grad(set_to_none=False)` makes them zero, and by
a zero gradient moments still move a parameter that a step did not use, while one without a gradient stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import torch

from colabkeep.frameworks.common.names import ParameterNames
from colabkeep.frameworks.common.objects import told_state
from colabkeep.frameworks.common.shelf import Shelf
from colabkeep.frameworks.common.trees import child, encode
from colabkeep.frameworks.common.watch import Watch
from colabkeep.frameworks.torch.state.copies import Copies
from colabkeep.frameworks.torch.state.host_memory import HostMemory
from colabkeep.frameworks.torch.state.leaves import TensorLeaves, refuse_dataless
from colabkeep.frameworks.torch.state.nested import tell_inner
from colabkeep.frameworks.torch.state.staging import Slot, expect_slots
from colabkeep.frameworks.torch.state.tensors import Entry, Tensors
from colabkeep.vocabulary.errors import NotStorable
from colabkeep.vocabulary.state import Tree

__all__ = ["OptimizerRecorder", "parameter_names"]

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
        self._shelf: Shelf[Slot] = Shelf()
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
