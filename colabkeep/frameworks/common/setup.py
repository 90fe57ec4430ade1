"""The `PartsSettings` promise: modules as in every framework; optimizers and schedulers as an adapter knows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from colabkeep.frameworks.common.attributes import Attributes, Values
from colabkeep.frameworks.common.marker import as_written, left, mark, marked
from colabkeep.vocabulary.settings import Change, Item, Plain, Settings, same
from colabkeep.vocabulary.state import Tree

__all__ = ["NoOptimizing", "Optimizing", "Setup"]

_FROZEN = "requires_grad"


class Optimizing(Protocol):
    """The optimizers and schedulers among the parts of a run. What they are asked is said in `PartsSettings`."""

    replaced: frozenset[str]

    def written(self) -> Settings: ...
    def reached(self, trees: Mapping[str, Tree]) -> Settings: ...
    def keepable(self, change: Change) -> bool: ...
    def plan(self, changes: Sequence[Change], trees: Mapping[str, Tree]) -> list[str]: ...
    def apply(self) -> None: ...
    def keep(self, changes: Sequence[Change]) -> None: ...
    def trained(self) -> list[str]: ...
    def leave(self, who: Mapping[str, Any], written: Settings, *, failed: bool) -> None: ...


class NoOptimizing:
    """There are none."""

    replaced: frozenset[str] = frozenset()

    def written(self) -> Settings:
        return {}

    def reached(self, trees: Mapping[str, Tree]) -> Settings:
        return {}

    def keepable(self, change: Change) -> bool:
        return False

    def plan(self, changes: Sequence[Change], trees: Mapping[str, Tree]) -> list[str]:
        return []

    def apply(self) -> None:
        """Nothing was planned."""

    def keep(self, changes: Sequence[Change]) -> None:
        """Nothing has options."""

    def trained(self) -> list[str]:
        return []

    def leave(self, who: Mapping[str, Any], written: Settings, *, failed: bool) -> None:
        """Nobody is there to be marked."""


class Setup:
    """See `colabkeep.frameworks.base.PartsSettings`. `digest` tells the weights of a module from others, by samples."""

    def __init__(self, modules: Mapping[str, Attributes], optimizing: Optimizing, digest: Callable[[Any], str]) -> None:
        self._modules = modules
        self._optimizing = optimizing
        self._digest = digest
        self.replaced: frozenset[str] = frozenset()
        self._written: Settings = {}

    def written(self) -> Settings:
        found = {part: _of_module(attributes) for part, attributes in self._modules.items()}
        return {**found, **self._optimizing.written()}

    def reached(self, trees: Mapping[str, Tree], moved: Mapping[str, Tree]) -> Settings:
        modules = {part: _items(each.get("attributes", {})) for part, each in moved.items()}
        return {**modules, **self._optimizing.reached(trees)}

    def keepable(self, change: Change) -> bool:
        if change.part not in self._modules:
            return self._optimizing.keepable(change)
        return change.option != "" and "()" not in change.option

    def plan(self, changes: Sequence[Change], trees: Mapping[str, Tree]) -> list[str]:
        wrong = self._optimizing.plan([change for change in changes if change.part not in self._modules], trees)
        self.replaced = self._optimizing.replaced
        return wrong

    def settle(
        self, written: Settings, moved: Mapping[str, Tree], *, new: Sequence[Change], kept: Sequence[Change]
    ) -> None:
        for part, attributes in self._modules.items():
            theirs = {change.where for change in new if change.part == part}
            if part in written and part in moved:
                _restore(attributes, part, written[part], moved[part], theirs)
        self._optimizing.keep([change for change in kept if change.part not in self._modules])
        self._optimizing.apply()

    def begin(self, written: Settings) -> None:
        self._written = written
        for part, attributes in self._modules.items():
            attributes.begin(written.get(part, {}))

    def moved(self) -> dict[str, Tree]:
        return {part: attributes.moved() for part, attributes in self._modules.items()}

    def mark(self) -> None:
        for attributes in self._modules.values():
            if attributes.restless:
                attributes.mark()

    def rewind(self) -> str | None:
        clauses = (attributes.rewind() for attributes in self._modules.values())
        moved = {part: clause for part, clause in zip(self._modules, clauses, strict=True) if clause}
        return next(
            (f"{part}.{name} may have been changed in the middle of the step" for part, name in moved.items()), None
        )

    def trained(self) -> list[str]:
        found = []
        for part, attributes in self._modules.items():
            was = marked(attributes.root)
            if was.get("digest") and was["digest"] == self._digest(attributes.root):
                found.append(f"{part} holds the weights that the run {was['run']!r} had at step {was['step']}")
        return found + self._optimizing.trained()

    def leave(self, run: str, step: int, *, failed: bool) -> None:
        who = {"run": run, "step": step}
        for part, attributes in self._modules.items():
            moved = left(self._written.get(part, {}), _items(attributes.values()))
            record = {**who, "digest": "" if failed else self._digest(attributes.root), "moved": moved}
            was = next((item.frozen for item in self._written.get(part, {}).values()), ())
            if set(was) != set(attributes.frozen()):
                record[_FROZEN] = [list(was), list(attributes.frozen())]
            mark(attributes.root, record)
        self._optimizing.leave(who, self._written, failed=failed)


def _of_module(attributes: Attributes) -> dict[str, Item]:
    record = marked(attributes.root)
    items = as_written(attributes.items(), record.get("moved", {}))
    was, then = record.get(_FROZEN, ((), None))
    if then is not None and set(then) == set(attributes.frozen()):
        first, item = next(iter(items.items()))
        items[first] = replace(item, frozen=tuple(was))
    return items


def _items(values: Values) -> dict[str, Item]:
    return {name: Item(kind="", sure=True, options=options) for name, options in values.items()}


def _restore(
    attributes: Attributes, part: str, written: Mapping[str, Item], moved: Tree, new: set[tuple[str, str, str]]
) -> None:
    """Put everything where the checkpoint had it, but for what is `new`."""
    then: Values = moved.get("attributes", {})
    targets: dict[str, dict[str, Plain]] = {}
    for name, live in attributes.values().items():
        known = written[name].options if name in written else {}
        wanted = {**{key: known[key] for key in live if key in known}, **then.get(name, {})}
        targets[name] = {
            key: value
            for key, value in wanted.items()
            if (part, name, key) not in new and not (key in live and same(live[key], value))
        }
    attributes.put_values(targets)
    if (part, "", _FROZEN) not in new:
        attributes.put_frozen(moved.get("frozen", next((item.frozen for item in written.values()), ())))
    attributes.put_modes(moved["modes"])
