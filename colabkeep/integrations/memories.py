"""What the callbacks and metrics of somebody else's trainer have come to remember, kept from outside."""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

_PLAIN = frozenset({type(None), bool, int, float, str, bytes})


class Memories:
    """What several objects have come to remember since this was made: their attributes that are not what they were.

    What did not change is the constructor's word: the user may give another one in the next session. An object is
    recognized by its class and its place among those of that class. `tensor`: the framework's. `given`: attributes that
    the trainer sets.
    """

    def __init__(self, targets: Iterable[object], tensor: type, given: frozenset[str] = frozenset()) -> None:
        self._tensor, self._given = tensor, given
        seen: Counter[str] = Counter()
        self._targets: dict[str, tuple[object, dict[str, Any]]] = {}
        for target in targets:
            kind = type(target).__name__
            before = {
                name: self._copied(value) if self.storable(value) else value for name, value in self._attributes(target)
            }
            self._targets[f"{kind}[{seen[kind]}]"] = target, before
            seen[kind] += 1

    def state_dict(self) -> dict[str, Any]:
        """By object, what changed, as far as it can be stored."""
        states = {key: {n: _plain(v) for n, v in self._changed(key) if self.storable(v)} for key in self._targets}
        return {key: state for key, state in states.items() if state}

    def load_state_dict(self, state: Mapping[str, Any]) -> list[str]:
        """Remember again; returns the objects that are not here any more."""
        for key, (target, _) in self._targets.items():
            for name, value in state.get(key, {}).items():
                setattr(target, name, _filled(getattr(target, name, None), value))
        return [key for key in state if key not in self._targets]

    def unkept(self) -> set[str]:
        """What changed and cannot be stored."""
        return {
            f"{type(target).__name__}.{name}"
            for key, (target, _) in self._targets.items()
            for name, value in self._changed(key)
            if not self.storable(value)
        }

    def storable(self, value: Any) -> bool:
        """Can a checkpoint hold it? Numbers, texts, arrays, and lists, tuples and dictionaries of them; no classes of
        the user's own that are like these."""
        kind = type(value)
        if kind in (dict, defaultdict):
            return all(type(key) in (str, int) and self.storable(member) for key, member in value.items())
        if kind in (list, tuple):
            return all(self.storable(member) for member in value)
        if isinstance(value, (np.generic, np.ndarray)):
            return value.dtype.kind in "biufc" and (kind is np.ndarray or isinstance(value, np.generic))
        return kind in _PLAIN or isinstance(value, self._tensor)

    def _copied(self, value: Any) -> Any:
        """As it is now. Of a tensor that came out of a computation (a loss), torch copies the numbers only."""
        if isinstance(value, dict):
            copied = copy.copy(value)
            copied.update((key, self._copied(member)) for key, member in value.items())
            return copied
        if type(value) in (list, tuple):
            return type(value)(map(self._copied, value))
        return copy.deepcopy(value if getattr(value, "grad_fn", None) is None else value.detach())

    def _attributes(self, target: object) -> list[tuple[str, Any]]:
        return [(name, value) for name, value in vars(target).items() if name not in self._given]

    def _changed(self, key: str) -> list[tuple[str, Any]]:
        (target, before), missing = self._targets[key], object()
        return [(n, v) for n, v in self._attributes(target) if not self._same(before.get(n, missing), v)]

    def _same(self, before: Any, now: Any) -> bool:
        if before is now and not isinstance(now, (list, dict, np.ndarray)):
            return True
        if type(before) is not type(now) or not self.storable(now):
            return False
        if isinstance(now, dict):
            return before.keys() == now.keys() and all(self._same(before[key], now[key]) for key in now)
        if isinstance(now, (list, tuple)):
            return len(before) == len(now) and all(map(self._same, before, now))
        if isinstance(now, (np.ndarray, self._tensor)):
            return bool(np.array_equal(_array(before), _array(now)))
        return bool(before == now)


def _plain(value: Any) -> Any:
    """A value that can be stored, with dictionaries as they are stored."""
    if isinstance(value, dict):
        return {key: _plain(member) for key, member in value.items()}
    return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value


def _filled(there: Any, value: Any) -> Any:
    """`value`, in the dictionaries that are there: others may hold them, and some make what they lack."""
    if not isinstance(there, dict) or not isinstance(value, dict):
        return value
    members = {key: _filled(there.get(key), member) for key, member in value.items()}
    there.clear()
    there.update(members)
    return there


def _array(value: Any) -> Any:
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
