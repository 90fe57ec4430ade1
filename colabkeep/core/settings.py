"""How a training is set up beside its tensors: what the user wrote, compared with what was written when it began."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isnan
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

Plain: TypeAlias = Any
"""None, bool, int, float, str, and lists and dicts (with text as keys) of these."""

OnChange: TypeAlias = Literal["error", "keep", "apply"]
"""What to do where settings are not those that a run began with."""

GROUP = "group"
"""The `kind` of a parameter group. One that comes or goes is no change of settings: its parameters are compared."""

_SHORT = 60  # characters: a longer sequence is told by what differs in it
_LONGEST = 80  # characters of one value that are shown
_NAMES_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One thing that was set up: a module, a parameter group, a scheduler, a function.

    `kind`: its class or name. `sure`: is it known that its options decide about the training? Those of the user's own
    classes may be a counter or a label. What stands behind an "@" in an option's name says what compiled it. `frozen`:
    names of parameters in it that are not trained. `doubtful`: options of unknown meaning in an item that is sure.
    """

    kind: str
    sure: bool
    options: Mapping[str, Plain] = field(default_factory=dict)
    frozen: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()


Settings: TypeAlias = Mapping[str, Mapping[str, Item]]
"""Part of the run → name inside it ("" for the part itself) → item. The part "" is the call of the training itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One value that is not what it was. `option` is "" where the item itself became another, came or went."""

    part: str
    item: str
    option: str
    before: Plain
    after: Plain
    sure: bool
    text: str

    @property
    def where(self) -> tuple[str, str, str]:
        """Part, item and option."""
        return self.part, self.item, self.option

    def __str__(self) -> str:
        return self.text


@runtime_checkable
class TellsSettings(Protocol):
    """A part of a run that brings settings of the call itself."""

    def written_settings(self) -> Mapping[str, Item]:
        """By item, as they are written now; "" is the call itself."""
        ...

    def reached_settings(self, state: Any) -> Mapping[str, Plain]:
        """The options of the call in a stored state of this part. Such a value is no change."""
        ...


def changes(then: Settings, now: Settings) -> list[Change]:
    """What differs, in the order of `now`. Parts that only one side has are left to whoever compares parts.

    An option that only one side has is no change where the options are known: another version of the framework has it.
    """
    found: list[Change] = []
    for part, items in now.items():
        if part in then:
            for name in dict.fromkeys([*items, *then[part]]):
                found += _of_item((part, name), then[part].get(name), items.get(name))
    return found


def same(one: Plain, other: Plain) -> bool:
    """Do two values set the same? Numbers by value (1, 1.0 and True are one setting), and NaN is NaN."""
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return one == other or (isnan(one) and isnan(other))
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    return type(one) is type(other) and bool(one == other)


def to_text(settings: Settings) -> str:
    """As one line of JSON, in which items that are alike stand once: a network has few kinds of layers."""
    parts = {part: [[_record(item), names] for item, names in _alike(items)] for part, items in settings.items()}
    return json.dumps(parts, ensure_ascii=False, separators=(",", ":"))


def from_text(text: str) -> dict[str, dict[str, Item]]:
    """What `to_text` wrote, equal in the sense of `same`.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: it was not `to_text`.
    """
    return {
        part: {name: _item(record) for record, names in rows for name in names}
        for part, rows in json.loads(text).items()
    }


def _of_item(place: tuple[str, str], then: Item | None, now: Item | None) -> Iterator[Change]:
    path = ".".join(filter(None, place))
    if then is None or now is None:
        known = then or now
        if known is not None and known.kind != GROUP:
            kinds = then.kind if then else "nothing", now.kind if now else "nothing"
            yield _change(place, "", kinds, sure=known.sure, text=f"{path}: {kinds[0]} → {kinds[1]}")
        return
    sure = then.sure or now.sure
    if then.kind != now.kind:
        yield _change(place, "", (then.kind, now.kind), sure=sure, text=f"{path}: {then.kind} → {now.kind}")
        return
    for option in dict.fromkeys([*now.options, *then.options]):
        certain = sure and option not in now.doubtful and option not in then.doubtful
        if certain and (option not in then.options or option not in now.options):
            continue
        before, after = then.options.get(option), now.options.get(option)
        if not same(before, after):
            text = "; ".join(_told_of(path, option, before, after))
            yield _change(place, option, (before, after), sure=certain, text=text)
    if set(then.frozen) != set(now.frozen):
        text = "; ".join(_frozen_told(path, then.frozen, now.frozen))
        yield _change(place, "requires_grad", (list(then.frozen), list(now.frozen)), sure=True, text=text)


def _change(place: tuple[str, str], option: str, values: tuple[Plain, Plain], *, sure: bool, text: str) -> Change:
    part, item = place
    return Change(part=part, item=item, option=option, before=values[0], after=values[1], sure=sure, text=text)


def _told_of(path: str, option: str, before: Plain, after: Plain) -> Iterator[str]:
    label, _, compiled = option.partition("@")
    if compiled and label == "code":
        yield f"{path}: its code was edited"
    else:
        yield from _told(".".join(filter(None, (path, label))), before, after)


def _told(path: str, before: Plain, after: Plain) -> Iterator[str]:
    """ "lr: 0.01 → 0.0001"; of long lists and dicts of one shape only the members that differ."""
    long = max(len(repr(before)), len(repr(after))) > _SHORT
    if long and isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
        for key, value in before.items():
            if not same(value, after[key]):
                yield from _told(f"{path}.{key}", value, after[key])
    elif long and isinstance(before, (list, tuple)) and isinstance(after, (list, tuple)) and len(before) == len(after):
        for i, (one, other) in enumerate(zip(before, after, strict=True)):
            if not same(one, other):
                yield from _told(f"{path}[{i}]", one, other)
    else:
        yield f"{path}: {_shown(before)} → {_shown(after)}"


def _frozen_told(path: str, then: tuple[str, ...], now: tuple[str, ...]) -> Iterator[str]:
    start = f"{path}." if path else ""
    for names, was in (([n for n in now if n not in then], True), ([n for n in then if n not in now], False)):
        if names:
            more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
            yield f"requires_grad of {', '.join(start + n for n in names[:_NAMES_SHOWN])}{more}: {was} → {not was}"


def _shown(value: Plain) -> str:
    text = repr(tuple(value) if isinstance(value, list) else value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _alike(items: Mapping[str, Item]) -> Iterator[tuple[Item, list[str]]]:
    found: dict[str, tuple[Item, list[str]]] = {}
    for name, item in items.items():
        found.setdefault(json.dumps(_record(item)), (item, []))[1].append(name)
    yield from found.values()


def _record(item: Item) -> list[Any]:
    return [item.kind, item.sure, item.options, list(item.frozen), *([list(item.doubtful)] if item.doubtful else [])]


def _item(record: list[Any]) -> Item:
    kind, sure, options, frozen, *more = record
    doubtful = tuple(more[0]) if more else ()
    return Item(kind=kind, sure=sure, options=dict(options), frozen=tuple(frozen), doubtful=doubtful)
