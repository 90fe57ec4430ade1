"""What metrics and callbacks come to remember while they work, kept without their help: they have no state_dict."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import paddle

__all__ = ["Memories", "storable"]

_PLAIN = frozenset({type(None), bool, int, float, str, bytes})
_FITS_OWN = frozenset({"model", "params"})  # what fit gives to each callback


class Changes:
    """The attributes of an object that are not what they were when this was made.

    What did not change is the constructor's word: the user may give another one in the next session.
    """

    def __init__(self, target: object) -> None:
        self._target = target
        self._before = {name: copy.deepcopy(v) if storable(v) else v for name, v in _attributes(target)}

    def state_dict(self) -> dict[str, Any]:
        """Name → value, as far as it can be stored."""
        return {name: value for name, value in self._changed() if storable(value)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Remember again."""
        for name, value in state.items():
            setattr(self._target, name, value)

    def unkept(self) -> list[str]:
        """What changed and cannot be stored."""
        return [f"{type(self._target).__name__}.{name}" for name, value in self._changed() if not storable(value)]

    def _changed(self) -> Iterable[tuple[str, Any]]:
        missing = object()
        return [(n, v) for n, v in _attributes(self._target) if not _same(self._before.get(n, missing), v)]


class Memories:
    """The changes of several objects, recognized by their class and their place among those of that class."""

    def __init__(self, targets: Sequence[object]) -> None:
        seen: Counter[str] = Counter()
        self._changes: dict[str, Changes] = {}
        for target in targets:
            kind = type(target).__name__
            self._changes[f"{kind}[{seen[kind]}]"] = Changes(target)
            seen[kind] += 1

    def state_dict(self) -> dict[str, Any]:
        """By object, what changed."""
        return {name: state for name, changes in self._changes.items() if (state := changes.state_dict())}

    def load_state_dict(self, state: Mapping[str, Any]) -> list[str]:
        """Remember again; returns the objects that are not here any more."""
        for name, changes in self._changes.items():
            changes.load_state_dict(state.get(name, {}))
        return [name for name in state if name not in self._changes]

    def unkept(self) -> list[str]:
        """What changed and cannot be stored."""
        return [line for changes in self._changes.values() for line in changes.unkept()]


def _attributes(target: object) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in vars(target).items() if name not in _FITS_OWN]


def storable(value: Any) -> bool:
    """Can a checkpoint hold it? Numbers, texts, arrays, and lists, tuples and dictionaries of them; no classes of the
    user's own that are like these."""
    kind = type(value)
    if kind is dict:
        return all(type(key) in (str, int) and storable(member) for key, member in value.items())
    if kind in (list, tuple):
        return all(storable(member) for member in value)
    if isinstance(value, (np.generic, np.ndarray)):
        return value.dtype.kind in "biufc" and (kind is np.ndarray or isinstance(value, np.generic))
    return kind in _PLAIN or isinstance(value, paddle.Tensor)


def _same(before: Any, now: Any) -> bool:
    if before is now and not isinstance(now, (list, dict, np.ndarray)):
        return True
    if type(before) is not type(now) or not storable(now):
        return False
    if isinstance(now, dict):
        return before.keys() == now.keys() and all(_same(before[key], now[key]) for key in now)
    if isinstance(now, (list, tuple)):
        return len(before) == len(now) and all(map(_same, before, now))
    if isinstance(now, (np.ndarray, paddle.Tensor)):
        return bool(np.array_equal(np.asarray(before), np.asarray(now)))
    return bool(before == now)
