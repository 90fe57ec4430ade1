"""How torch's objects are set up, and new settings taken in the middle of a training: the schedule keeps its count."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from colabkeep.core.settings import GROUP, Change, Item, Settings
from colabkeep.core.state import Tree
from colabkeep.frameworks.shared.describe import NOT_PLAIN, described, is_library, plain
from colabkeep.frameworks.shared.settings import Attributes, Kind, Setup, as_written, left, mark, marked
from colabkeep.frameworks.shared.trees import FUNCTIONS
from colabkeep.frameworks.torch.leaves import native
from colabkeep.frameworks.torch.modules import Places
from colabkeep.frameworks.torch.restore import OF_THE_DEVICE

__all__ = [
    "Replay",
    "Start",
    "attributes",
    "count_of",
    "describe",
    "inside",
    "setup",
    "untouched",
]

_REMEMBERED = ("best", "num_bad_epochs", "cooldown_counter", "last_epoch", "_last_lr")
"""What a plateau scheduler has learnt."""

_AGAIN = "Run the cells that build the optimizer and the scheduler again, then this one."


def inside(scheduler: LRScheduler, name: str = "") -> Iterator[tuple[str, LRScheduler]]:
    """The scheduler, and those that it chains, runs one after another, or leads to."""
    yield name, scheduler
    for key, each in _inner(scheduler):
        yield from inside(each, ".".join(filter(None, (name, key))))


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


class Start:
    """An optimizer and its schedulers as they were handed in: what a schedule is run again from."""

    def __init__(self, optimizer: torch.optim.Optimizer, schedulers: Mapping[str, LRScheduler]) -> None:
        self.optimizer = optimizer
        self.schedulers = schedulers
        self.options = [_own_options(group) for group in optimizer.param_groups]
        self.states = {name: _state(each) for name, each in schedulers.items()}

    def put_back(self) -> None:
        """As it was handed in."""
        for group, options in zip(self.optimizer.param_groups, self.options, strict=True):
            group.update(deepcopy(options))
        for name, each in self.schedulers.items():
            _put(each, self.states[name])


class Replay:
    """The change of one optimizer's settings and its schedule's: first tried and taken back, later put on what was
    restored."""

    def __init__(self, part: str, start: Start, changes: Sequence[Change], trees: Mapping[str, Tree]) -> None:
        self._part = part
        self._start = start
        self._changes = changes
        self._trees = trees
        self._options: list[dict[str, Any]] = []
        self._states: dict[str, Any] = {}
        self._plateaus: dict[str, Any] = {}

    def rehearse(self, scheduled: frozenset[str]) -> list[str]:
        """Find out what the new settings are at the checkpoint's count. Everything is as it was afterwards; sentences
        where that cannot be done. `scheduled`: the options of a group that a schedule starts from."""
        start, own = self._start, [change for change in self._changes if change.part == self._part]
        groups = _group_numbers(own, len(start.options))
        self._options = [{key: start.options[i][key] for key in keys} for i, keys in enumerate(groups)]
        # Those that wait for what was measured do not count.
        counting = {name: each for name, each in start.schedulers.items() if not isinstance(each, ReduceLROnPlateau)}
        for name in start.schedulers:
            if name not in counting and any(change.part == name for change in self._changes):
                self._plateaus[name] = start.states[name]
        wanted = any(scheduled.intersection(keys) for keys in groups)
        wanted = wanted or any(change.part in counting for change in self._changes)
        if not counting or not wanted:
            return []
        wrong = self._obstacle(counting)
        return [wrong] if wrong else self._run(counting, scheduled)

    def apply(self) -> None:
        """Put the new settings on what was restored."""
        groups = self._start.optimizer.param_groups
        for group, options in zip(groups, self._options, strict=False):  # later ones were added in the training
            group.update(deepcopy(options))
        for name, state in self._states.items():
            _put(self._start.schedulers[name], state)
        for name, state in self._plateaus.items():
            scheduler = self._start.schedulers[name]
            learnt = {key: value for key, value in vars(scheduler).items() if key in _REMEMBERED}
            if vars(scheduler)["mode"] != state["own"]["mode"]:
                del learnt["best"]  # of another measure
            _put(scheduler, state)
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
                return (
                    f"{name} has counted to {count_of(vars(each))} already, and a schedule with new settings is run "
                    f"from its beginning. {_AGAIN}"
                )
        tree = self._trees.get(self._part)
        if tree is not None and len(tree.get("groups", ())) != len(self._start.options):
            return (
                f"{self._part} was given parameter groups in the training, for which a schedule with new settings "
                "cannot be run again. Keep the old settings, or begin another run."
            )
        return ""

    def _run(self, counting: Mapping[str, LRScheduler], scheduled: frozenset[str]) -> list[str]:
        start, optimizer = self._start, self._start.optimizer
        try:
            for name, each in counting.items():
                stored = count_of(native(self._trees.get(name, {}).get("state") or {}))
                steps = stored - count_of(vars(each))
                try:
                    _step(each, steps)
                except Exception as error:  # noqa: BLE001  # whatever a schedule raises, it is told and taken back
                    return [
                        f"{name} cannot take {steps} steps with its new settings, and the run has taken them: {error}"
                    ]
                self._states[name] = _state(each)
            for options, before, group in zip(self._options, start.options, optimizer.param_groups, strict=True):
                now = _own_options(group)
                moved = {key for key in now if key in scheduled or not _equal(now[key], before.get(key))}
                options.update({key: now[key] for key in moved})
        finally:
            start.put_back()
        return []


def _group_numbers(changes: Sequence[Change], count: int) -> list[set[str]]:
    """The changed options of each group."""
    found: list[set[str]] = [set() for _ in range(count)]
    for change in changes:
        number = int(change.item.rpartition("[")[2].rstrip("]")) if change.item else 0
        found[number].add(change.option)
    return found


def _step(scheduler: LRScheduler, times: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no step of the optimizer came before: there were, in earlier sessions
        for _ in range(times):
            scheduler.step()


def _own_options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copied(value) for key, value in group.items() if key not in ("params", "param_names")}


def _inner(scheduler: LRScheduler) -> Iterator[tuple[str, LRScheduler]]:
    for key, value in vars(scheduler).items():
        if isinstance(value, LRScheduler):
            yield key, value
        elif isinstance(value, (list, tuple)):
            yield from ((f"{key}[{i}]", each) for i, each in enumerate(value) if isinstance(each, LRScheduler))


def _state(scheduler: LRScheduler) -> dict[str, Any]:
    """Its own attributes, and those of the schedulers inside it."""
    own = {key: _copied(value) for key, value in vars(scheduler).items() if key != "optimizer"}
    inside = [_state(each) for _, each in _inner(scheduler)]
    return {"own": own, "functions": [deepcopy(vars(each)) for each in _functions(scheduler)], "inside": inside}


def _put(scheduler: LRScheduler, state: Mapping[str, Any]) -> None:
    vars(scheduler).update({key: _copied(value) for key, value in state["own"].items()})
    for function, held in zip(_functions(scheduler), state["functions"], strict=True):
        vars(function).update(deepcopy(held))
    for (_, each), inner in zip(_inner(scheduler), state["inside"], strict=True):
        _put(each, inner)


def _functions(scheduler: LRScheduler) -> list[Any]:
    """Learning rates that are objects, and may count. Torch keeps their attributes, too."""
    lambdas = vars(scheduler).get("lr_lambdas", ())
    return [each for each in lambdas if hasattr(each, "__dict__") and not isinstance(each, FUNCTIONS)]


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
            items[owner] = replace(item, options={**item.options, key: held})
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
