"""What a run leaves on the objects that it trained, so that the next one knows them again.

A dict of plain data under one attribute: it is no part of `state_dict()`, and is read back without colabkeep.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from colabkeep.vocabulary.settings import Item, Plain, same

__all__ = ["MARK", "as_written", "left", "mark", "marked"]

MARK = "_colabkeep_left"

Moved = Mapping[str, Mapping[str, "tuple[Plain, Plain]"]]
"""Item → option → (as written, as it was left)."""


def mark(target: object, record: Mapping[str, Any]) -> None:
    """Leave the record; on nothing that has no attributes of its own."""
    held = getattr(target, "__dict__", None)
    if type(held) is dict:
        held[MARK] = dict(record)


def marked(target: object) -> Mapping[str, Any]:
    """What was left there last; nothing if nobody did."""
    held = getattr(target, "__dict__", None)
    found = held.get(MARK) if type(held) is dict else None
    return found if isinstance(found, dict) else {}


def left(written: Mapping[str, Item], now: Mapping[str, Item]) -> dict[str, dict[str, list[Plain]]]:
    """The options that are not as written, with both values."""
    found = {
        name: {
            option: [written[name].options.get(option), value]
            for option, value in item.options.items()
            if not same(written[name].options.get(option), value)
        }
        for name, item in now.items()
        if name in written
    }
    return {name: options for name, options in found.items() if options}


def as_written(now: Mapping[str, Item], moved: Moved) -> dict[str, Item]:
    """The items with the values that were written, where they are as a run left them."""
    return {name: _as_written(item, moved.get(name, {})) for name, item in now.items()}


def _as_written(item: Item, moved: Mapping[str, Any]) -> Item:
    known = {key: was for key, (was, then) in moved.items() if key in item.options and same(item.options[key], then)}
    return Item(kind=item.kind, sure=item.sure, options={**item.options, **known}, frozen=item.frozen)
