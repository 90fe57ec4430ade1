"""Taking new settings of an optimizer and its schedule in the middle of a training: the schedule keeps its count."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from colabkeep.frameworks.common.describing import NOT_PLAIN, plain
from colabkeep.frameworks.common.trees import FUNCTIONS
from colabkeep.frameworks.torch.state.leaves import native
from colabkeep.vocabulary.settings import Change
from colabkeep.vocabulary.state import Tree

__all__ = ["Replay", "Start", "count_of", "inside", "untouched"]

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
        self.options = [_options(group) for group in optimizer.param_groups]
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
                now = _options(group)
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


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
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
