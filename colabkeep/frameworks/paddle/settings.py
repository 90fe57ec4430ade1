"""How Paddle's objects are set up: layers, the options of optimizers, schedulers; and new settings for old state.

An optimizer remembers what it was built with in its `_default_dict`, and computes with attributes of the same names
behind an underscore. A schedule is an object of its own: the optimizer only reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from paddle import nn
from paddle.base import unique_name
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler, ReduceOnPlateau

from colabkeep.core.settings import GROUP, Change, Item, Settings
from colabkeep.core.state import Tree
from colabkeep.frameworks.paddle.capture import TensorPlaces, groups_of, has_data, plain_options
from colabkeep.frameworks.shared.describe import NOT_PLAIN, described, plain
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
    samples,
    schedule_items,
    schedule_state,
    schedulers_in,
    steps_wrong,
)
from colabkeep.frameworks.shared.trees import FUNCTIONS

_RATE = "learning_rate"
_COUNTERS = frozenset(
    {"last_epoch", "last_lr", "best", "num_bad_epochs", "cooldown_counter", "T_cur", "T_i", "verbose", "_var_name"}
)
_LEARNT = ("best", "num_bad_epochs", "cooldown_counter", "last_epoch", "last_lr")
_OTHER_WORDS = frozenset({"name", "_name", "_data_format"})  # names, and what the first forward pass spells anew


def describe(value: object) -> dict[str, Item] | None:
    """The items of a layer without parameters, such as a loss; None of anything else."""
    if not isinstance(value, nn.Layer) or value.parameters():
        return None
    items = attributes(value).items()
    weight = plain(getattr(value, "weight", None))  # of the classes, a plain tensor
    if weight not in (None, NOT_PLAIN):
        root = items[""]
        items[""] = replace(root, options={**root.options, "weight": weight})
    return items


def attributes(layer: nn.Layer) -> Attributes:
    """The plain attributes, modes and trained parameters of a layer."""
    places = TensorPlaces(layer)
    return Attributes(_PADDLE, places.modules, places.parameters())


def samples_of(parameter: Any) -> str:
    """Some numbers of a parameter: other ones show that it was changed."""
    return samples(parameter) if has_data(parameter) and parameter.size else ""


class Options:
    """The learning rates and the options of the groups of optimizers, at the last mark."""

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self._optimizers = optimizers
        self.mark()

    def mark(self) -> None:
        """Remember them."""
        self._rates = [optimizer._learning_rate for optimizer in self._optimizers]
        self._groups = [[plain_options(group) for group in groups_of(optimizer)] for optimizer in self._optimizers]

    def put_back(self) -> None:
        """As they were."""
        for optimizer, rate, groups in zip(self._optimizers, self._rates, self._groups, strict=True):
            if isinstance(rate, float) and optimizer._learning_rate != rate:
                optimizer.set_lr(rate)
            for group, options in zip(groups_of(optimizer), groups, strict=False):
                group.update(options)


class PaddleSetup(Setup):
    """See `colabkeep.frameworks.base.PartsSettings`."""

    def __init__(self, parts: Mapping[str, object]) -> None:
        super().__init__(
            {name: attributes(part) for name, part in parts.items() if isinstance(part, nn.Layer)}, _digest
        )
        self._optimizers = {name: part for name, part in parts.items() if isinstance(part, Optimizer)}
        self._schedulers = {name: part for name, part in parts.items() if isinstance(part, LRScheduler)}
        known = {id(each) for each in self._schedulers.values()}
        for name, optimizer in self._optimizers.items():
            rate = optimizer._learning_rate
            if isinstance(rate, LRScheduler) and id(rate) not in known:  # attached, and not handed in itself
                self._schedulers[f"{name}.{_RATE}"] = rate
        self._planned: list[tuple[LRScheduler, list[dict[str, Any]]]] = []
        self._new: list[tuple[Any, str, str, Any]] = []

    def written(self) -> Settings:
        found = {name: _as_written(part) for name, part in self._optimizers.items()}
        return {**super().written(), **found, **{name: _schedule(part) for name, part in self._schedulers.items()}}

    def reached(self, trees: Mapping[str, Tree], moved: Mapping[str, Tree]) -> Settings:
        stored = {name: trees[name] for name in self._optimizers if name in trees}
        reached = {name: _stored(tree) for name, tree in stored.items() if tree.get("kind") == "optimizer"}
        return {**super().reached(trees, moved), **reached}

    def keepable(self, change: Change) -> bool:
        if change.part in self._optimizers and not change.item and change.option != _RATE:
            return is_value(change) and f"_{change.option}" in vars(self._optimizers[change.part])
        return is_value(change)

    def plan(self, changes: Sequence[Change], trees: Mapping[str, Tree]) -> list[str]:
        self._planned, self._new, wrong = [], [], []
        for name, scheduler in self._schedulers.items():
            if any(change.part == name for change in changes):
                wrong += self._plan_schedule(name, scheduler, trees)
        for change in changes:
            if change.part in self._optimizers:
                self._new.append((self._optimizers[change.part], change.item, change.option, change.after))
        return wrong

    def settle(
        self, written: Settings, moved: Mapping[str, Tree], *, new: Sequence[Change], kept: Sequence[Change]
    ) -> None:
        super().settle(written, moved, new=new, kept=kept)
        for change in kept:
            if change.part in self._optimizers:
                _set_option(self._optimizers[change.part], change.item, change.option, change.before)
            elif change.part in self._schedulers:
                inside = dict(schedulers_in(self._schedulers[change.part], LRScheduler))
                vars(inside[change.item])[change.option] = deepcopy(change.before)
        for scheduler, state in self._planned:
            if isinstance(scheduler, ReduceOnPlateau):
                learnt = {key: vars(scheduler)[key] for key in _LEARNT}
                if scheduler.base_lr != state[0]["base_lr"]:
                    del learnt["last_lr"]
                vars(scheduler).update({**state[0], **learnt})
            else:
                put_schedule(scheduler, LRScheduler, state)
        for optimizer, item, option, value in self._new:
            _set_option(optimizer, item, option, value)

    def trained(self) -> list[str]:
        found = [
            f"{name} has the state of earlier steps" for name, part in self._optimizers.items() if _has_state(part)
        ]
        counted = {name: each.last_epoch for name, each in self._schedulers.items() if each.last_epoch}
        return [*super().trained(), *found, *(f"{name} has counted to {n}" for name, n in counted.items())]

    def leave(self, run: str, step: int, *, failed: bool) -> None:
        super().leave(run, step, failed=failed)
        for name, optimizer in self._optimizers.items():
            moved = left(self.then(name), _option_items(optimizer))
            mark(optimizer, {"run": run, "step": step, "moved": moved})

    def _plan_schedule(self, name: str, scheduler: LRScheduler, trees: Mapping[str, Tree]) -> list[str]:
        if isinstance(scheduler, ReduceOnPlateau):
            self._planned.append((scheduler, [dict(vars(scheduler))]))
            return []
        if scheduler.last_epoch:
            return [counted_already(name, scheduler.last_epoch)]
        before = schedule_state(scheduler, LRScheduler)
        wrong = steps_wrong(name, scheduler.step, _count_in(trees, name))
        self._planned.append((scheduler, schedule_state(scheduler, LRScheduler)))
        put_schedule(scheduler, LRScheduler, before)
        return [wrong] if wrong else []


def _as_written(optimizer: Any) -> dict[str, Item]:
    """The options that the user wrote. Of an optimizer that others trained nobody knows them."""
    record, items = marked(optimizer), _option_items(optimizer)
    if record:
        return as_written(items, record["moved"])
    return {name: Item(kind=GROUP, sure=True) for name in items} if _has_state(optimizer) else items


def _option_items(optimizer: Any) -> dict[str, Item]:
    built = {key: _short(value) for key, value in getattr(optimizer, "_default_dict", {}).items()}
    if not isinstance(optimizer._learning_rate, LRScheduler):
        built[_RATE] = optimizer._learning_rate
    options = {key: value for key, value in built.items() if value is not NOT_PLAIN}
    found = {"": Item(kind=GROUP, sure=True, options=options)}
    for i, group in enumerate(groups_of(optimizer)):
        short = {key: _short(value) for key, value in group.items() if key != "params"}
        options = {key: value for key, value in short.items() if value is not NOT_PLAIN}
        found[f"param_groups[{i}]"] = Item(kind=GROUP, sure=True, options=options)
    return found


def _short(value: Any) -> Any:
    """A number or text, or an object such as a decay or a clipping in a text: "L2Decay(_coeff=0.01)"."""
    known = plain(value)
    if known is not NOT_PLAIN or not hasattr(value, "__dict__"):
        return known
    if isinstance(value, FUNCTIONS):
        return described(value)[""].kind
    held = {key: plain(each) for key, each in vars(value).items()}
    told = ", ".join(f"{key}={each}" for key, each in held.items() if each not in (NOT_PLAIN, None))
    return f"{type(value).__name__}({told})"


def _stored(tree: Tree) -> dict[str, Item]:
    rate = tree["learning_rate"]
    found = {"": Item(kind=GROUP, sure=True, options={} if isinstance(rate, dict) else {_RATE: rate})}
    for i, group in enumerate(tree["groups"]):
        found[f"param_groups[{i}]"] = Item(kind=GROUP, sure=True, options=group["options"])
    return found


def _set_option(optimizer: Any, item: str, option: str, value: Any) -> None:
    if item:
        group = groups_of(optimizer)[int(item.partition("[")[2].rstrip("]"))]
        if type(value) in (bool, int, float, str):
            group[option] = value
            if option == _RATE:  # Paddle reads it here
                for parameter in group["params"]:
                    parameter.optimize_attr[_RATE] = value
    elif option == _RATE:
        optimizer.set_lr(float(value))
    elif f"_{option}" in vars(optimizer) and plain(vars(optimizer)[f"_{option}"]) is not NOT_PLAIN:
        vars(optimizer)[f"_{option}"] = optimizer._default_dict[option] = value


def _has_state(optimizer: Any) -> bool:
    return any(entries for entries in optimizer._accumulators.values())


def _schedule(scheduler: LRScheduler) -> dict[str, Item]:
    return schedule_items(scheduler, LRScheduler, _COUNTERS, fresh=not scheduler.last_epoch)


def _count_in(trees: Mapping[str, Tree], name: str) -> int:
    """How often a stored schedule was stepped; one that is attached only is stored with its optimizer."""
    if name in trees:
        return int(trees[name]["state"]["own"]["last_epoch"])
    stored = trees[name.rpartition(".")[0]]["learning_rate"]
    return int(stored["state"]["own"]["last_epoch"]) if isinstance(stored, dict) else 0


def _digest(layer: nn.Layer) -> str:
    return digest_of([each for each in layer.parameters() if has_data(each) and each.size])


def _attributes_of_all() -> frozenset[str]:
    with unique_name.guard():  # making a layer must not change the names of the user's
        return frozenset(vars(nn.Layer()))


def _train(parameter: Any, flag: bool) -> None:
    parameter.stop_gradient = not flag


_PADDLE = Kind(
    base=_attributes_of_all() | _OTHER_WORDS,
    package="paddle",
    private=True,
    trained=lambda parameter: not parameter.stop_gradient,
    train=_train,
)
