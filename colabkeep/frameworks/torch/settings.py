"""How torch's objects are set up, and new settings taken in the middle of a training: the schedule keeps its count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from operator import attrgetter
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from colabkeep.core.settings import GROUP, Change, Item, Settings
from colabkeep.core.state import Tree
from colabkeep.frameworks.shared.describe import NOT_PLAIN, plain
from colabkeep.frameworks.shared.settings import (
    Attributes,
    Kind,
    Setup,
    as_written,
    counted_already,
    digest_of,
    is_value,
    left,
    mark,
    marked,
    put_schedule,
    schedule_items,
    schedule_state,
    steps_wrong,
)
from colabkeep.frameworks.torch.capture import TensorPlaces
from colabkeep.frameworks.torch.restore import OF_THE_DEVICE, native

_REMEMBERED = ("best", "num_bad_epochs", "cooldown_counter", "last_epoch", "_last_lr")
"""What a plateau scheduler has learnt."""


def count_of(state: Mapping[str, Any]) -> int:
    """How often it was stepped, from its attributes or its stored state. One that chains others has no count."""
    if "last_epoch" in state or not state.get("_schedulers"):
        return int(state.get("last_epoch", 0))
    first = state["_schedulers"][0]
    return count_of(first if isinstance(first, dict) else vars(first))


def untouched(scheduler: LRScheduler) -> bool:
    """Is it as it was built? One that was built to begin at a later epoch is."""
    state = vars(scheduler)
    return count_of(state) == 0 or ("_schedulers" not in state and state.get("_step_count") == 1)


class Replay:
    """The change of one optimizer's settings and its schedule's, run again from how they were handed in: first tried
    and taken back, later put on what was restored."""

    def __init__(
        self,
        part: str,
        optimizer: torch.optim.Optimizer,
        schedulers: Mapping[str, LRScheduler],
        changes: Sequence[Change],
        trees: Mapping[str, Tree],
    ) -> None:
        self._part, self._optimizer, self._schedulers = part, optimizer, schedulers
        self._changes, self._trees = changes, trees
        self._built = [_own_options(group) for group in optimizer.param_groups]
        self._begun = {name: schedule_state(each, LRScheduler) for name, each in schedulers.items()}
        self._options: list[dict[str, Any]] = []
        self._states: dict[str, Any] = {}
        self._plateaus: dict[str, Any] = {}

    def rehearse(self) -> list[str]:
        """Find out what the new settings are at the checkpoint's count. Everything is as it was afterwards; sentences
        where that cannot be done."""
        own = [change for change in self._changes if change.part == self._part]
        groups = _group_numbers(own, len(self._built))
        self._options = [{key: self._built[i][key] for key in keys} for i, keys in enumerate(groups)]
        # Those that wait for what was measured do not count.
        counting = {name: each for name, each in self._schedulers.items() if not isinstance(each, ReduceLROnPlateau)}
        for name in self._schedulers:
            if name not in counting and any(change.part == name for change in self._changes):
                self._plateaus[name] = self._begun[name]
        wanted = any(_SCHEDULED.intersection(keys) for keys in groups)
        wanted = wanted or any(change.part in counting for change in self._changes)
        if not counting or not wanted:
            return []
        wrong = self._obstacle(counting)
        return [wrong] if wrong else self._run(counting)

    def apply(self) -> None:
        """Put the new settings on what was restored."""
        groups = self._optimizer.param_groups
        for group, options in zip(groups, self._options, strict=False):  # later ones were added in the training
            group.update(deepcopy(options))
        for name, state in self._states.items():
            put_schedule(self._schedulers[name], LRScheduler, state)
        for name, state in self._plateaus.items():
            scheduler = self._schedulers[name]
            learnt = {key: value for key, value in vars(scheduler).items() if key in _REMEMBERED}
            if vars(scheduler)["mode"] != state[0]["mode"]:
                del learnt["best"]  # of another measure
            put_schedule(scheduler, LRScheduler, state)
            vars(scheduler).update(learnt)

    def _obstacle(self, counting: Mapping[str, LRScheduler]) -> str:
        names = ", ".join(counting)
        if len(counting) > 1:
            return (
                f"{names} drive one optimizer, and colabkeep does not know in which order they were stepped, so their "
                "schedule cannot be run again with new settings. Keep the old ones, or begin another run."
            )
        for name, each in counting.items():
            if not untouched(each):
                return counted_already(name, count_of(vars(each)))
        tree = self._trees.get(self._part)
        if tree is not None and len(tree.get("groups", ())) != len(self._built):
            return (
                f"{self._part} was given parameter groups in the training, for which a schedule with new settings "
                "cannot be run again. Keep the old settings, or begin another run."
            )
        return ""

    def _run(self, counting: Mapping[str, LRScheduler]) -> list[str]:
        try:
            for name, each in counting.items():
                stored = count_of(native(self._trees.get(name, {}).get("state") or {}))
                steps = stored - count_of(vars(each))
                if wrong := steps_wrong(name, each.step, steps):
                    return [wrong]
                self._states[name] = schedule_state(each, LRScheduler)
            for options, before, group in zip(self._options, self._built, self._optimizer.param_groups, strict=True):
                now = _own_options(group)
                moved = {key for key in now if key in _SCHEDULED or not _equal(now[key], before.get(key))}
                options.update({key: now[key] for key in moved})
        finally:
            for group, built in zip(self._optimizer.param_groups, self._built, strict=True):
                group.update(deepcopy(built))
            for name, each in self._schedulers.items():
                put_schedule(each, LRScheduler, self._begun[name])
        return []


def _group_numbers(changes: Sequence[Change], count: int) -> list[set[str]]:
    """The changed options of each group."""
    found: list[set[str]] = [set() for _ in range(count)]
    for change in changes:
        number = int(change.item.rpartition("[")[2].rstrip("]")) if change.item else 0
        found[number].add(change.option)
    return found


def _own_options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copied(value) for key, value in group.items() if key not in ("params", "param_names")}


def _copied(value: Any) -> Any:
    """What stepping may change inside is copied; functions, and whatever else a scheduler knows, stay the same."""
    return deepcopy(value) if isinstance(value, torch.Tensor) or plain(value) is not NOT_PLAIN else value


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and bool(one.equal(other))
    return bool(one == other)


_NO_OPTIONS = frozenset({"params", "param_names", *OF_THE_DEVICE})
_COUNTERS = frozenset(
    {"last_epoch", "_step_count", "_last_lr", "_get_lr_called_within_step", "_is_initial", "_initial_step", "verbose"}
    | {"best", "num_bad_epochs", "cooldown_counter", "mode_worse", "T_cur", "T_i"}
    | {"optimizer", "base_lrs"}  # what they began with stands in the groups
)
_SCHEDULED = frozenset(
    {"lr", "initial_lr", "max_lr", "min_lr", "swa_lr", "base_momentum", "max_momentum"}
)  # what a schedule is computed from, in the groups


def describe(value: object) -> dict[str, Item] | None:
    """The items of a module without parameters, such as a loss; None of anything else."""
    if not isinstance(value, torch.nn.Module) or next(value.parameters(), None) is not None:
        return None
    items = attributes(value).items()
    for name, buffer in value.named_buffers():  # the weights of the classes
        owner, _, key = name.rpartition(".")
        held = plain(buffer)
        if held is not NOT_PLAIN:
            item = items[owner]
            items[owner] = replace(item, options={**item.options, key: held})
    return items


class TorchSetup(Setup):
    """See `colabkeep.frameworks.base.PartsSettings`."""

    def __init__(self, parts: Mapping[str, object]) -> None:
        modules = {name: attributes(part) for name, part in parts.items() if isinstance(part, torch.nn.Module)}
        super().__init__(modules, _digest)
        self._optimizers = {n: part for n, part in parts.items() if isinstance(part, torch.optim.Optimizer)}
        self._schedulers = {n: part for n, part in parts.items() if isinstance(part, LRScheduler)}
        self._replays: list[Replay] = []

    def written(self) -> Settings:
        found: dict[str, Mapping[str, Item]] = {n: _as_written(part) for n, part in self._optimizers.items()}
        return {**super().written(), **found, **{n: _schedule(part) for n, part in self._schedulers.items()}}

    def reached(self, trees: Mapping[str, Tree], moved: Mapping[str, Tree]) -> Settings:
        stored = {name: trees[name] for name in self._optimizers if name in trees}
        reached = {name: _stored(tree) for name, tree in stored.items() if tree.get("kind") == "optimizer"}
        return {**super().reached(trees, moved), **reached}

    def keepable(self, change: Change) -> bool:
        return is_value(change)

    def plan(self, changes: Sequence[Change], trees: Mapping[str, Tree]) -> list[str]:
        self.replaced = frozenset(c.part for c in changes if c.part in self._schedulers and not (c.option or c.item))
        self._replays, wrong = [], []
        for name, optimizer in self._optimizers.items():
            schedulers = {n: each for n, each in self._schedulers.items() if each.optimizer is optimizer}
            theirs = [change for change in changes if change.part == name or change.part in schedulers]
            if theirs:
                replay = Replay(name, optimizer, schedulers, theirs, trees)
                wrong += replay.rehearse()
                self._replays.append(replay)
        return wrong

    def settle(
        self, written: Settings, moved: Mapping[str, Tree], *, new: Sequence[Change], kept: Sequence[Change]
    ) -> None:
        super().settle(written, moved, new=new, kept=kept)
        for replay in self._replays:
            replay.apply()

    def trained(self) -> list[str]:
        found = [f"{name} has the state of {n} steps" for name, part in self._optimizers.items() if (n := _steps(part))]
        counted = {name: count_of(vars(part)) for name, part in self._schedulers.items() if not untouched(part)}
        return [*super().trained(), *found, *(f"{name} has counted to {n}" for name, n in counted.items() if n)]

    def leave(self, run: str, step: int, *, failed: bool) -> None:
        super().leave(run, step, failed=failed)
        for name, optimizer in self._optimizers.items():
            groups = _groups(optimizer)
            if failed:  # a rate may be a tensor on a device that answers no more
                groups = [{key: v for key, v in group.items() if not isinstance(v, torch.Tensor)} for group in groups]
            then, now = self.then(name), _group_items(groups)
            if len(then) == 1 < len(now):  # the only one had no number
                then = dict(zip(now, then.values(), strict=False))
            told = {"moved": left(then, now), "groups": [len(then), len(now)]}
            mark(optimizer, {"run": run, "step": step, **told})


def attributes(module: torch.nn.Module) -> Attributes:
    """The plain attributes, modes and trained parameters of a module."""
    places = TensorPlaces(module)
    return Attributes(_TORCH, places.modules, places.parameters())


def _as_written(optimizer: torch.optim.Optimizer) -> dict[str, Item]:
    """The groups that the user built. Of an optimizer that others trained nobody knows what was written."""
    record, groups = marked(optimizer), _groups(optimizer)
    if not record:
        items = _group_items(groups)
        return {name: Item(kind=GROUP, sure=True) for name in items} if _is_trained(optimizer) else items
    then, now = record["groups"]
    items = as_written(_group_items(groups), record["moved"])
    if len(groups) != now or then == now:
        return items
    built = list(items.values())[:then]
    return {"": built[0]} if then == 1 else dict(zip(items, built, strict=False))


def _groups(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = getattr(optimizer, "param_groups", [])  # some are half made: a save will tell
    return found


def _group_items(groups: Sequence[Mapping[str, Any]]) -> dict[str, Item]:
    names = [""] if len(groups) == 1 else [f"param_groups[{i}]" for i in range(len(groups))]
    return {
        name: Item(kind=GROUP, sure=True, options=_options(group)) for name, group in zip(names, groups, strict=True)
    }


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: plain(value) for key, value in group.items() if key not in _NO_OPTIONS}
    return {key: value for key, value in found.items() if value is not NOT_PLAIN}


def _stored(tree: Tree) -> dict[str, Item]:
    return _group_items([native(group["options"]) for group in tree["groups"]])


def _schedule(scheduler: LRScheduler) -> dict[str, Item]:
    return schedule_items(scheduler, LRScheduler, _COUNTERS, fresh=untouched(scheduler))


def _is_trained(optimizer: torch.optim.Optimizer) -> bool:
    return bool(vars(optimizer).get("_opt_called") or _steps(optimizer))


def _steps(optimizer: torch.optim.Optimizer) -> int:
    """How many steps its state tells of; 1 where it tells that there were some. A state may be there from the start."""
    found = 0
    for entry in getattr(optimizer, "state", {}).values():
        count = entry.get("step") if isinstance(entry, dict) else None
        if count is not None:
            found = max(found, int(count))
        elif isinstance(entry, dict) and entry.get("momentum_buffer") is not None:
            found = max(found, 1)
    return found


def _digest(module: torch.nn.Module) -> str:
    lazy = torch.nn.parameter.is_lazy
    found = [p for p in module.parameters() if not p.is_meta and p.layout is torch.strided and not lazy(p)]
    return digest_of([each.detach() for each in found if each.numel()])


# Tells that a module has what no checkpoint holds and the next session makes anew: compiled code; from transformers 5.0
# on (utils/output_capturing.py) the hooks that collect hidden states, which are empty where the mark is put back alone;
# and that Accelerate prepared it, which of several processes tells the wrapper around it.
_MADE_ANEW = {"_compiled_call_impl", "_output_capturing_hooks_installed", "_is_accelerate_prepared"}

_TORCH = Kind(
    base=frozenset(vars(torch.nn.Module())) | _MADE_ANEW,
    package="torch",
    private=False,
    trained=attrgetter("requires_grad"),
    train=lambda parameter, flag: parameter.requires_grad_(flag),
)
