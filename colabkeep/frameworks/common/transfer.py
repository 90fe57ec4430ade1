"""The members of a batch of any shape, each moved by a function; its containers keep their type."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, MutableMapping
from typing import Any

__all__ = ["moved"]


def moved(value: Any, moves: Callable[[Any], bool], move: Callable[[Any], Any]) -> Any:
    """`value` with `move(member)` for each member that `moves(member)`; the user's containers are not changed.

    Knows tuples, named tuples, lists, mappings and dataclasses; anything else stays as it is.
    """
    if moves(value):
        return move(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(moved(member, moves, move) for member in value))
    if isinstance(value, (tuple, list)):
        return type(value)(moved(member, moves, move) for member in value)
    if isinstance(value, MutableMapping):
        mapping = copy.copy(value)  # keeps what a subclass knows besides its items
        mapping.update({key: moved(member, moves, move) for key, member in value.items()})
        return mapping
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        record = copy.copy(value)
        for field in dataclasses.fields(value):
            # The way around frozen: the copy is not anybody's yet.
            object.__setattr__(record, field.name, moved(getattr(value, field.name), moves, move))
        return record
    return value
