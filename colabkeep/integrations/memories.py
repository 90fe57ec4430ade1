"""What the callbacks and metrics of somebody else's trainer have come to remember, kept from outside."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any
from weakref import ref

import numpy as np

from colabkeep.frameworks.shared.boundary import alike
from colabkeep.frameworks.shared.describe import is_library
from colabkeep.frameworks.shared.rng import stateful

_PLAIN = frozenset({type(None), bool, int, float, str, bytes})
_MISSING = object()


class Memories:
    """What several objects have come to remember since this was made: their attributes that are not what they were.

    What did not change is the constructor's word: the user may give another one in the next session. An object is
    recognized by its class and its place among those of that class. `tensor`: the framework's. `given`: attributes that
    the trainer sets. `kept`: tensors that the run has already, such as the weights that are trained; who holds one of
    them holds on to it.
    """

    def __init__(
        self,
        targets: Iterable[object],
        tensor: type,
        given: frozenset[str] = frozenset(),
        kept: Iterable[object] = (),
    ) -> None:
        self._tensor, self._given = tensor, given
        self._kept = {id(each): each for each in kept}
        seen: Counter[str] = Counter()
        self._targets: dict[str, tuple[object, dict[str, tuple[type, Any]]]] = {}
        for target in targets:
            kind = type(target).__name__
            before = {name: (type(value), self._noted(value)) for name, value in self._attributes(target)}
            self._targets[f"{kind}[{seen[kind]}]"] = target, before
            seen[kind] += 1

    def state_dict(self) -> dict[str, Any]:
        """By object, what changed, as far as it can be stored."""
        states = {
            key: {name: _plain(told(value)) for name, value in self._changed(key) if self._is_kept(key, name, value)}
            for key in self._targets
        }
        return {key: state for key, state in states.items() if state}

    def load_state_dict(self, state: Mapping[str, Any]) -> list[str]:
        """Remember again; returns the objects that are not here any more."""
        for key, (target, _) in self._targets.items():
            for name, value in state.get(key, {}).items():
                setattr(target, name, filled(getattr(target, name, None), value))
        return [key for key in state if key not in self._targets]

    def unkept(self) -> set[str]:
        """What changed and cannot be stored. Of an object of the user's own class only its numbers, texts and tensors
        are looked at, and how long what it holds is."""
        return {
            f"{type(target).__name__}.{name}"
            for key, (target, _) in self._targets.items()
            for name, value in self._changed(key)
            if not self._is_kept(key, name, value)
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
        own = isinstance(value, self._tensor) and id(value) not in self._kept
        return kind in _PLAIN or (own and _is_dense(value))

    def _is_kept(self, key: str, name: str, value: Any) -> bool:
        """What a checkpoint has a list or a state of must be there, in the next session, to be filled."""
        state = told(value)
        kind, _ = self._targets[key][1].get(name, (None, None))
        return self.storable(state) and (state is value or kind is type(value))

    def _noted(self, value: Any) -> Any:
        """By what it is found later whether it changed."""
        state = told(value)
        if self.storable(state):
            return self._copied(state)
        if type(value) in (list, dict):
            return copy.copy(value)
        return _look(value) if _is_own(value) else value

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
        target, before = self._targets[key]
        nothing = (type(None), _MISSING)
        return [(n, v) for n, v in self._attributes(target) if not self._is_as_noted(*before.get(n, nothing), v)]

    def _is_as_noted(self, kind: type, noted: Any, value: Any) -> bool:
        state = told(value)
        if self.storable(state):
            return alike(noted, state)
        if type(value) is list:
            return type(noted) is list and len(noted) == len(value) and all(map(_is, noted, value))
        if type(value) is dict:
            return type(noted) is dict and noted.keys() == value.keys() and all(_is(noted[k], value[k]) for k in value)
        if _is_own(value):
            return kind is type(value) and bool(noted == _look(value))
        return noted is value


def told(value: Any) -> Any:
    """What a checkpoint has of it: of a generator of random numbers its state, of a deque or a set its members."""
    if type(value) in (deque, set):
        return list(value)
    if type(value) in (OrderedDict, Counter):
        return dict(value)
    if hasattr(value, "state_dict"):
        return value
    generator = stateful(value)
    return value if generator is value else generator.state_dict()


def _plain(value: Any) -> Any:
    """A value that can be stored, with dictionaries as they are stored."""
    if isinstance(value, dict):
        return {key: _plain(member) for key, member in value.items()}
    return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value


def filled(there: Any, value: Any) -> Any:
    """`value`, in what is there: others may hold it, and some dictionaries make what they lack."""
    kind = type(there)
    if isinstance(value, list) and kind in (list, deque, set):
        there.clear()
        (there.update if kind is set else there.extend)(value)
        return there
    if there is not None and not hasattr(there, "state_dict") and stateful(there) is not there:
        stateful(there).load_state_dict(value)
        return there
    if not isinstance(there, dict) or not isinstance(value, dict):
        return value
    members = {key: filled(there.get(key), member) for key, member in value.items()}
    there.clear()
    there.update(members)
    return there


def _is(one: Any, other: Any) -> bool:
    return one is other


def _is_dense(tensor: Any) -> bool:
    """A tensor of torch's may be sparse, or nested."""
    return str(getattr(tensor, "layout", "torch.strided")) == "torch.strided" and not getattr(
        tensor, "is_nested", False
    )


def _is_own(value: object) -> bool:
    """Is it an object of a class of the user's own alone, with nothing that tells its state?"""
    kinds = type(value).__mro__[:-1]
    tells = hasattr(value, "state_dict") or not hasattr(value, "__dict__")
    return not tells and not any(is_library(kind.__module__) for kind in kinds)


def _look(value: Any) -> tuple[Any, ...]:
    """The object, its numbers and texts, how long what it holds is, and which tensors of torch are in it, each with
    torch's count of its changes."""
    members = sorted(vars(value).items())
    plain = [(name, member) for name, member in members if type(member) in _PLAIN]
    held = [member.values() if type(member) is dict else member for _, member in members if type(member) in _HOLDING]
    tensors = [each for each in chain(vars(value).values(), *held) if hasattr(each, "is_inference")]
    versions = [(_Same(ref(each)), None if each.is_inference() else each._version) for each in tensors]
    lengths = [(name, len(member)) for name, member in members if type(member) in _HOLDING]
    return _Same(value), plain, lengths, versions


_HOLDING = (list, dict, set, deque)


class _Same:
    """Equal to another one of the same object."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other._value is self._value

    __hash__ = None  # type: ignore[assignment]
