"""Optimizers, schedulers and scalers, out: state by the names the user gave the parameters; and one recorder for
each part.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import paddle
from paddle import nn
from paddle.amp import AmpScaler
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from colabkeep.core.state import Tree
from colabkeep.frameworks.paddle.layers import Entry, LayerRecorder, Recall, Tensors
from colabkeep.frameworks.paddle.leaves import TensorLeaves, native, refuse_dataless
from colabkeep.frameworks.paddle.staging import Copies, Slot
from colabkeep.frameworks.shared.modules import ParameterNames, Watch
from colabkeep.frameworks.shared.trees import SlotCache, child, encode, encode_object, restore_object

__all__ = [
    "MORE",
    "ObjectRecorder",
    "OptimizerRecorder",
    "Recorders",
    "group_parameters",
    "masters_of",
    "parameter_names",
    "restore_helper",
    "restore_scheduler",
    "scheduler_state",
]

_WARMED = "LinearWarmup_LR"  # under which LinearWarmup tells the state of the scheduler inside it


def scheduler_state(scheduler: LRScheduler) -> dict[str, Any]:
    """The state of a scheduler: its numbers, the schedulers inside it, and what else it tells.

    What it tells is not enough: CosineAnnealingWarmRestarts leaves out where in its cycle it is, and the best loss
    of a ReduceOnPlateau, a tensor, is told as a number, with which the next comparison is rounded differently.
    """
    own = {key: value for key, value in vars(scheduler).items() if _is_number(value)}
    inside = {key: scheduler_state(value) for key, value in vars(scheduler).items() if isinstance(value, LRScheduler)}
    told = {key: value for key, value in scheduler.state_dict().items() if key not in own and key != _WARMED}
    return {"own": own, "inside": inside, "told": told}


def restore_scheduler(scheduler: LRScheduler, state: Mapping[str, Any]) -> None:
    """Give a scheduler what `scheduler_state` told."""
    vars(scheduler).update(state["own"])
    for key, inner in state["inside"].items():
        restore_scheduler(vars(scheduler)[key], inner)
    if state["told"]:
        scheduler.set_state_dict({**scheduler.state_dict(), **state["told"]})


def _is_number(value: object) -> bool:
    return type(value) in (int, float) or isinstance(value, paddle.Tensor)


def restore_helper(target: Any, tree: Tree) -> None:
    """Hand a stored state to a scheduler, scaler or any other object.

    A scaler that was off has an empty state, which one that is on would refuse: it begins anew, as it would have there.
    """
    if isinstance(target, LRScheduler):
        restore_scheduler(target, native(tree["state"], devices=True))
    elif not (isinstance(target, AmpScaler) and not tree["state"]):
        restore_object(target, tree, lambda stored: native(stored, devices=True))


# The tree has "kind", "class", "groups", "state", "masters", "learning_rate", "more", "loose" and "graded": `groups`
# name their parameters and hold their settings; `state` is by parameter name, then by kind of accumulator; `masters`
# are the float32 weights behind half-precision parameters; `learning_rate` is a number, or the state of the scheduler
# in its place; `more` is state under no parameter; `loose` are the values of parameters that no layer of the run holds,
# which nobody else would keep; `graded` names the parameters that have a gradient.
#
# Gradients themselves are not kept: the next step clears them. But `clear_grad()` makes them zero, and by a gradient of
# zero moments still move a parameter that a step did not use, while one without a gradient stays where it is.
#
# Paddle's own `state_dict()` has names such as "linear_0.w_0_moment1_0", with counters that go on when the model is
# built again in the same notebook.


MORE = ("state", "_global_step_var")
"""Attributes with state under no parameter: those of LBFGS and LookAhead."""

_MADE_BY = re.compile(r"_(?:fp32_master_\d+_)?(?P<kind>.+?)_\d+$")  # behind a parameter's name, in Paddle's own state


def group_parameters(optimizer: Optimizer) -> list[list[Any]]:
    """The parameters of each group; of the one there is where the user made none."""
    groups = optimizer._param_groups
    if groups and isinstance(groups[0], dict):
        return [group["params"] for group in groups]
    return [groups]


def parameter_names(optimizer: Optimizer, names: ParameterNames) -> list[list[str]]:
    """The names of each group's parameters; "group0.1" for one that no layer holds."""
    return [
        [names.get(parameter) or f"group{i}.{j}" for j, parameter in enumerate(parameters)]
        for i, parameters in enumerate(group_parameters(optimizer))
    ]


def masters_of(optimizer: Optimizer) -> dict[str, Any]:
    """The float32 weights behind half-precision parameters, by the parameter's generated name."""
    masters: dict[str, Any] = optimizer._master_weights
    return masters


class OptimizerRecorder:
    """Captures one optimizer, with a plan as long as its tensors are the same objects."""

    def __init__(self, part: str, optimizer: Optimizer, recall: Recall) -> None:
        self.part = part
        self._recall = recall
        self.target = optimizer
        self._leaves = TensorLeaves(devices=True)
        self._loose_leaves = TensorLeaves(devices=False)
        self._shelf: SlotCache[Slot] = SlotCache()
        self._plan: _Plan | None = None
        # LookAhead drives another optimizer, and has accumulators of its own.
        inner = getattr(optimizer, "inner_optimizer", None)
        self._inner = None if inner is None else OptimizerRecorder(f"{part}.inner_optimizer", inner, recall)

    def record(self, copies: Copies, names: ParameterNames) -> Tree:
        """The optimizer's tree; its tensors are filled when `copies` runs.

        Raises:
            NotStorable: a value in its state or groups.
        """
        plan = self._planned(names)
        copies.take(plan.tensors)
        self._leaves.turn(copies)
        self._loose_leaves.turn(copies)
        tree = {
            "kind": "optimizer",
            "class": type(self.target).__name__,
            "groups": [
                {"params": named, "options": options}
                for named, options in zip(plan.named, _options(self.target), strict=True)
            ],
            "state": plan.state,
            "masters": plan.masters,
            "learning_rate": self._learning_rate(),
            "more": self._more(),
            "loose": {
                name: self._loose_leaves(parameter.detach(), f"{self.part}: parameter {name}")
                for name, parameter in plan.loose.items()
            },
        }
        tree["graded"] = plan.graded()
        if self._inner is not None:
            tree["inner"] = self._inner.record(copies, names)
        self._leaves.sweep()
        self._loose_leaves.sweep()
        return tree

    def slots(self, names: ParameterNames) -> Iterator[Slot]:
        """The slots of a plan that holds now.

        Raises:
            NotStorable: a value in its state.
        """
        yield from self._planned(names).tensors.slots
        if self._inner is not None:
            yield from self._inner.slots(names)

    def _planned(self, names: ParameterNames) -> _Plan:
        if self._plan is None or not self._plan.holds(names):
            self._shelf.turn()
            self._plan = _Plan(self.part, self.target, names, self._shelf, self._recall)
            self._shelf.sweep()
        return self._plan

    def _learning_rate(self) -> Tree:
        rate = self.target._learning_rate
        if not isinstance(rate, LRScheduler):
            return rate
        state = encode(scheduler_state(rate), f"{self.part}.learning_rate", self._leaves)
        return {"class": type(rate).__name__, "state": state}

    def _more(self) -> dict[str, Tree]:
        held = {name: vars(self.target).get(name) for name in MORE}
        found = {name: value for name, value in held.items() if value is not None}
        return {name: encode(value, child(self.part, name), self._leaves) for name, value in found.items()}


class _Plan:
    """What a capture of an optimizer does, as long as it keeps the same tensors."""

    def __init__(
        self, part: str, optimizer: Optimizer, names: ParameterNames, shelf: SlotCache[Slot], recall: Recall
    ) -> None:
        self._optimizer, self._names = optimizer, names
        self._part, self._shelf = part, shelf
        self.named = parameter_names(optimizer, names)
        self._parameters = list(chain.from_iterable(group_parameters(optimizer)))
        structured = dict(zip((p.name for p in self._parameters), chain.from_iterable(self.named), strict=True))
        self.loose = {
            name: parameter
            for name, parameter in zip(chain.from_iterable(self.named), self._parameters, strict=True)
            if names.get(parameter) is None
        }
        self._held = optimizer._accumulators, optimizer._accumulators_holder, masters_of(optimizer)
        self._watch = Watch([*self._held, *optimizer._accumulators.values()])
        self._entries: dict[int, Entry] = {}
        self.masters: dict[str, Tree] = {}
        for name, master in masters_of(optimizer).items():
            if name in structured:  # else of a parameter that it does not train any more
                self._show(master, f"masters[{structured[name]!r}]", self.masters, structured[name])
        self.state: dict[str, dict[str, Tree]] = {}
        for name, kind, tensor in _accumulators(optimizer, structured):
            self._show(tensor, f"state[{name!r}].{kind}", self.state.setdefault(name, {}), kind)
        self.tensors = Tensors(list(self._entries.values()), recall)

    def holds(self, names: ParameterNames) -> bool:
        """Has the optimizer still the parameters, names and tensors that were planned for?"""
        optimizer = self._optimizer
        now = [id(parameter) for group in group_parameters(optimizer) for parameter in group]
        held = optimizer._accumulators, optimizer._accumulators_holder, masters_of(optimizer)
        return (
            names is self._names
            and all(one is other for one, other in zip(held, self._held, strict=True))
            and now == list(map(id, self._parameters))
            and self._watch.unchanged()
            and self.tensors.fits()
        )

    def graded(self) -> list[str]:
        """The names of the parameters that have a gradient, be it zero."""
        named = zip(chain.from_iterable(self.named), self._parameters, strict=True)
        return [name for name, parameter in named if parameter.grad is not None]

    def _show(self, tensor: Any, where: str, section: dict[str, Tree], key: str) -> None:
        if id(tensor) not in self._entries:
            path = f"{self._part}.{where}"
            refuse_dataless(tensor, path)
            slot = self._shelf.take(path)
            if slot is None or not slot.fits(tensor):
                slot = Slot(tensor, lasting=True)
            self._entries[id(tensor)] = Entry(tensor, self._shelf.keep(path, slot))
        self._entries[id(tensor)].show(section, key)


def _accumulators(optimizer: Optimizer, structured: Mapping[str, str]) -> Iterator[tuple[str, str, Any]]:
    """Parameter, kind and tensor of each accumulator, also of those that were loaded and not used yet."""
    owner = dict(structured)
    owner |= {master.name: owner[name] for name, master in masters_of(optimizer).items() if name in owner}
    known = set()
    for kind, entries in optimizer._accumulators.items():
        for name, tensor in entries.items():
            known.add(tensor.name)
            if name in owner:
                yield owner[name], kind, tensor
    for told, tensor in optimizer._accumulators_holder.items():
        if told not in known:
            name = max((name for name in structured if told.startswith(f"{name}_")), key=len, default=None)
            made = _MADE_BY.match(told, 0 if name is None else len(name))
            if name is not None and made is not None:
                yield structured[name], made["kind"], tensor


def _options(optimizer: Optimizer) -> list[dict[str, Tree]]:
    """The settings of each group that are numbers or text. Objects (decay, clipping) come back with the code."""
    groups = optimizer._param_groups
    if not groups or not isinstance(groups[0], dict):
        return [{}]
    return [{key: value for key, value in group.items() if type(value) in (bool, int, float, str)} for group in groups]


class ObjectRecorder:
    """Captures whatever tells its own state: schedulers, scalers, random streams, the user's own."""

    def __init__(self, part: str, target: object) -> None:
        self.part = part
        self.target = target
        self._leaves = TensorLeaves(devices=True)

    def record(self, copies: Copies) -> Tree:
        """The object's tree; its tensors are filled when `copies` runs."""
        self._leaves.turn(copies)
        if isinstance(self.target, LRScheduler):
            state = encode(scheduler_state(self.target), self.part, self._leaves)
            tree: Tree = {"kind": "object", "class": type(self.target).__name__, "state": state}
        else:
            tree = encode_object(self.part, self.target, self._leaves)
        self._leaves.sweep()
        return tree


class Recorders:
    """The recorders of all parts, and the names of the parameters that they share."""

    def __init__(self) -> None:
        self.recall = Recall()
        self._layers: dict[str, LayerRecorder] = {}
        self._others: dict[str, OptimizerRecorder | ObjectRecorder] = {}
        self._names = ParameterNames(())

    def record(self, parts: Mapping[str, object], copies: Copies) -> dict[str, Tree]:
        """The trees of all parts; their tensors are filled when `copies` runs.

        Raises:
            NotStorable: a part cannot be kept.
        """
        self._refresh(parts)
        trees = {}
        for name in parts:
            other = self._others.get(name)
            if isinstance(other, OptimizerRecorder):
                trees[name] = other.record(copies, self._names)
            else:
                trees[name] = (other or self._layers[name]).record(copies)
        return trees

    def prepare(self, parts: Mapping[str, object]) -> Iterator[Slot]:
        """Plan for these parts; the slots of layers and optimizers, some of which may be new.

        Raises:
            NotStorable: a part cannot be kept.
        """
        self._refresh(parts)
        for layer in self._layers.values():
            yield from layer.slots()
        for other in self._others.values():
            if isinstance(other, OptimizerRecorder):
                yield from other.slots(self._names)

    def _refresh(self, parts: Mapping[str, object]) -> None:
        """Recorders for exactly these parts; the memory of those that are gone is let go."""
        layers: dict[str, LayerRecorder] = {}
        others: dict[str, OptimizerRecorder | ObjectRecorder] = {}
        renamed = False
        for name, target in parts.items():
            if isinstance(target, nn.Layer):
                layer = self._layers.get(name)
                if layer is None or layer.target is not target:
                    layer, renamed = LayerRecorder(name, target, self.recall), True
                elif layer.refresh():
                    renamed = True
                layers[name] = layer
            else:
                other = self._others.get(name)
                if other is None or other.target is not target:
                    if isinstance(target, Optimizer):
                        other = OptimizerRecorder(name, target, self.recall)
                    else:
                        other = ObjectRecorder(name, target)
                others[name] = other
        if renamed or list(layers) != list(self._layers):
            self._names = ParameterNames((name, layer.parameters()) for name, layer in layers.items())
        self._layers, self._others = layers, others
