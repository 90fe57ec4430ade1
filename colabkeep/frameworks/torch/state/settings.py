"""How torch's objects are set up: modules, parameter groups, schedulers; and new settings for old state."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from colabkeep.frameworks.common.attributes import Attributes, Kind
from colabkeep.frameworks.common.describing import NOT_PLAIN, described, is_library, plain
from colabkeep.frameworks.common.marker import as_written, left, mark, marked
from colabkeep.frameworks.common.setup import Setup
from colabkeep.frameworks.torch.state.groups import OF_THE_DEVICE
from colabkeep.frameworks.torch.state.leaves import native
from colabkeep.frameworks.torch.state.places import Places
from colabkeep.frameworks.torch.state.replay import Replay, Start, count_of, inside, untouched
from colabkeep.vocabulary.settings import GROUP, Change, Item, Settings
from colabkeep.vocabulary.state import Tree

__all__ = ["attributes", "describe", "setup"]

_NO_OPTIONS = frozenset({"params", "param_names", *OF_THE_DEVICE})
_COUNTERS = frozenset(
    {"last_epoch", "_step_count", "_last_lr", "_get_lr_called_within_step", "_is_initial", "_initial_step", "verbose"}
    | {"best", "num_bad_epochs", "cooldown_counter", "mode_worse", "T_cur", "T_i"}
    | {"optimizer", "base_lrs"}  # what they began with stands in the groups
)
_SCHEDULED = frozenset(
    {"lr", "initial_lr", "max_lr", "min_lr", "swa_lr", "base_momentum", "max_momentum"}
)  # what a schedule is computed from, in the groups
_SAMPLES, _EACH = 16, 64  # parameters, and numbers of each, by which weights are known again


def setup(parts: Mapping[str, object]) -> Setup:
    """The settings of a run's parts, before anything is touched."""
    modules = {name: attributes(part) for name, part in parts.items() if isinstance(part, torch.nn.Module)}
    return Setup(modules, TorchOptimizing(parts), _digest)


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
            items[owner] = Item(kind=item.kind, sure=item.sure, options={**item.options, key: held})
    return items


class TorchOptimizing:
    """See `colabkeep.frameworks.base.PartsSettings`."""

    def __init__(self, parts: Mapping[str, object]) -> None:
        self._optimizers = {n: part for n, part in parts.items() if isinstance(part, torch.optim.Optimizer)}
        self._schedulers = {n: part for n, part in parts.items() if isinstance(part, LRScheduler)}
        self._replays: list[Replay] = []
        self.replaced: frozenset[str] = frozenset()

    def written(self) -> Settings:
        found: dict[str, Mapping[str, Item]] = {n: _as_written(part) for n, part in self._optimizers.items()}
        return {**found, **{n: _schedule_items(part) for n, part in self._schedulers.items()}}

    def reached(self, trees: Mapping[str, Tree]) -> Settings:
        stored = {name: trees[name] for name in self._optimizers if name in trees}
        return {name: _stored(tree) for name, tree in stored.items() if tree.get("kind") == "optimizer"}

    def keepable(self, change: Change) -> bool:
        return change.option != "" and "()" not in f"{change.item}.{change.option}"

    def plan(self, changes: Sequence[Change], trees: Mapping[str, Tree]) -> list[str]:
        self.replaced = frozenset(c.part for c in changes if c.part in self._schedulers and not (c.option or c.item))
        self._replays, wrong = [], []
        for name, optimizer in self._optimizers.items():
            start = Start(optimizer, self._of(optimizer))
            theirs = [change for change in changes if change.part == name or change.part in start.schedulers]
            if theirs:
                replay = Replay(name, start, theirs, trees)
                wrong += replay.rehearse(_SCHEDULED)
                self._replays.append(replay)
        return wrong

    def apply(self) -> None:
        for replay in self._replays:
            replay.apply()

    def keep(self, changes: Sequence[Change]) -> None:
        """All that can be kept is restored already."""

    def trained(self) -> list[str]:
        found = [f"{name} has the state of {n} steps" for name, part in self._optimizers.items() if (n := _steps(part))]
        counted = {name: count_of(vars(part)) for name, part in self._schedulers.items() if not untouched(part)}
        return found + [f"{name} has counted to {n}" for name, n in counted.items() if n]

    def leave(self, who: Mapping[str, Any], written: Settings, *, failed: bool) -> None:
        for name, optimizer in self._optimizers.items():
            groups = _groups(optimizer)
            if failed:  # a rate may be a tensor on a device that answers no more
                groups = [{key: v for key, v in group.items() if not isinstance(v, torch.Tensor)} for group in groups]
            then, now = written.get(name, {}), _group_items(groups)
            if len(then) == 1 < len(now):  # the only one had no number
                then = dict(zip(now, then.values(), strict=False))
            mark(optimizer, {**who, "moved": left(then, now), "groups": [len(then), len(now)]})

    def _of(self, optimizer: torch.optim.Optimizer) -> dict[str, LRScheduler]:
        return {name: each for name, each in self._schedulers.items() if each.optimizer is optimizer}


def attributes(module: torch.nn.Module) -> Attributes:
    """The plain attributes, modes and trained parameters of a module."""
    places = Places(module)
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


def _schedule_items(scheduler: LRScheduler) -> dict[str, Item]:
    """The scheduler and those inside it. One of the user's own class that has counted may have counters of its own."""
    found = {}
    for name, each in inside(scheduler):
        kind = type(each)
        held = vars(each) if is_library(kind.__module__) or untouched(scheduler) else {}
        options: dict[str, Any] = {}
        for key, value in held.items():
            if key in _COUNTERS:
                continue
            functions = value if isinstance(value, list) and value and all(map(callable, value)) else [value]
            if callable(functions[0]):
                options |= _of_functions(key, functions)
            elif (short := plain(value)) is not NOT_PLAIN:
                options[key] = short
        found[name] = Item(kind=kind.__name__, sure=True, options=options)
    return found


def _of_functions(key: str, functions: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    same = all(function is functions[0] for function in functions)
    for i, function in enumerate(functions[:1] if same else functions):
        start = f"{key}()" if same else f"{key}[{i}]()"
        for name, item in described(function).items():
            if item.sure:
                yield ".".join(filter(None, (start, name))), item.kind
                yield from ((".".join(filter(None, (start, name, key))), value) for key, value in item.options.items())


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
    found = [each for each in module.parameters() if not each.is_meta and each.layout is torch.strided and each.numel()]
    some = found[:: max(1, len(found) // _SAMPLES)]
    bits = hashlib.sha256()
    for each in some:
        if not torch.nn.parameter.is_lazy(each):
            bits.update(repr(each.detach()[(0,) * max(0, each.dim() - 1)].reshape(-1)[:_EACH].tolist()).encode())
    return bits.hexdigest()[:16] if some else ""


_TORCH = Kind(
    base=frozenset(vars(torch.nn.Module())) | {"_compiled_call_impl"},
    package="torch",
    private=False,
    trained=lambda parameter: bool(parameter.requires_grad),
    train=lambda parameter, flag: parameter.requires_grad_(flag),
)
