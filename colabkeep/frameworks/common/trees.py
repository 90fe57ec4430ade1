"""Live state as a tree of plain values, and back: the walk that all adapters share."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from datetime import date, datetime, timedelta
from enum import Enum
from pathlib import PosixPath, WindowsPath
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, TypeAlias

from colabkeep.vocabulary.errors import NotStorable
from colabkeep.vocabulary.state import HostTensor, Tagged, Tree

__all__ = ["FUNCTIONS", "Leaf", "Rebuild", "child", "encode", "like", "not_storable", "rebuild", "stateful_remedy"]

Leaf: TypeAlias = Callable[[Any, str], Tree]
"""What to store for a value that is not plain, given its path.

Raises:
    NotStorable: nothing can be stored for it.
"""

Rebuild: TypeAlias = Callable[[Tree], Any]

FUNCTIONS = (FunctionType, MethodType, BuiltinFunctionType)

_DEEPEST = 100  # containers inside one another; a state that is deeper is a linked structure, not a record
_MAPPINGS = (dict, OrderedDict, defaultdict, Counter)
_CONTAINERS = frozenset({*_MAPPINGS, list, tuple, set, frozenset, deque})
# Exact types: a subclass (an IntEnum, a namedtuple) would come back as something else.
_PLAIN = frozenset(
    {type(None), bool, int, float, complex, str, bytes, datetime, date, timedelta, slice, range}
    | {PosixPath, WindowsPath}
)


def encode(value: Any, path: str, leaf: Leaf) -> Tree:
    """A copy of `value` made of plain values and what `leaf` gives for all others.

    Raises:
        NotStorable: a value, at any depth, that has no exact plain form.
    """
    return _Walk(leaf).value(value, path)


def rebuild(tree: Tree, leaf: Callable[[HostTensor | Tagged, Rebuild], Any]) -> Any:
    """The tree with each `HostTensor` and `Tagged` replaced by what `leaf` makes of it.

    `leaf` gets the node and a function that rebuilds a tree inside it. One `HostTensor` met twice
    becomes one object.
    """
    made: dict[int, Any] = {}

    def inner(node: Tree) -> Any:
        kind = type(node)
        if kind is HostTensor:
            if id(node) not in made:
                made[id(node)] = leaf(node, inner)
            return made[id(node)]
        if kind is Tagged:
            return leaf(node, inner)
        if kind not in _CONTAINERS:
            return node
        if isinstance(node, dict):
            return like(node, ((inner(key), inner(member)) for key, member in node.items()))
        return like(node, (inner(member) for member in node))

    return inner(tree)


def child(path: str, key: object) -> str:
    """The path of a member, as one would write it in Python."""
    if isinstance(key, str) and key.isidentifier():
        return f"{path}.{key}" if path else key
    return f"{path}[{key!r:.80}]"


def not_storable(value: object, path: str, remedy: str | None = None) -> NotStorable:
    """The error for a value without a plain form, with a remedy that fits its type."""
    kind = type(value)
    return NotStorable(
        problem=f"{path} is a {kind.__module__}.{kind.__qualname__}, which cannot be stored exactly without pickle.",
        remedy=remedy or _remedy(value),
        path=path,
    )


def stateful_remedy(path: str) -> str:
    """What to do about an object that has no way to tell its state."""
    return (
        f"Give its class state_dict() and load_state_dict() that speak in numbers, text, lists, dicts and tensors, "
        f"or leave {path} out of the state."
    )


def _remedy(value: object) -> str:
    if isinstance(value, FUNCTIONS):
        return "Leave the function out of state_dict(); the code that builds the object brings it back."
    if isinstance(value, Enum):
        return "Store its .value and turn it back into the enum in load_state_dict()."
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return "Store tuple(x) or x._asdict(), and turn it back into the named tuple in load_state_dict()."
    if isinstance(value, (int, float, str, bytes, *_CONTAINERS)):
        base = next(t for t in type(value).__mro__ if t in _PLAIN or t in _CONTAINERS)
        return f"Store {base.__name__}(x), and turn it back in load_state_dict()."
    if hasattr(value, "state_dict"):
        return "Store its state_dict(), or hand it over as a part of its own: state={...}."
    return "Store plain values instead (numbers, text, lists, dicts, tensors), or leave it out of the state."


class _Walk:
    """One walk; it knows which containers it is inside of."""

    def __init__(self, leaf: Leaf) -> None:
        self._leaf = leaf
        self._open: set[int] = set()

    def value(self, value: Any, path: str) -> Tree:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is bytearray:
            return bytearray(value)
        if kind is HostTensor or kind is Tagged:
            return value  # storable already, and kept as it is by who made it
        if kind not in _CONTAINERS:
            return self._leaf(value, path)
        if _all_plain(value):  # the members need no look each: a history of floats may be long
            return value if kind is tuple or kind is frozenset else value.copy()
        return self._container(value, path)

    def _container(self, value: Any, path: str) -> Tree:
        mark = id(value)
        if mark in self._open or len(self._open) >= _DEEPEST:
            fault = "contains itself" if mark in self._open else f"is nested deeper than {_DEEPEST} containers"
            raise NotStorable(
                problem=f"{path:.200} {fault}, so it has no end and cannot be stored.",
                remedy="Store a flat record instead: leave the reference back to its owner out of the state.",
                path=path,
            )
        self._open.add(mark)
        try:
            if isinstance(value, dict):
                return like(
                    value,
                    ((self._key(key, path), self.value(member, child(path, key))) for key, member in value.items()),
                )
            return like(value, (self.value(member, f"{path}[{i}]") for i, member in enumerate(value)))
        finally:
            self._open.discard(mark)

    def _key(self, key: Any, path: str) -> Tree:
        if type(key) is str:
            return key
        stored = self.value(key, f"{path}.<key {key!r:.80}>")
        if isinstance(stored, HostTensor) or not _hashable(stored):
            raise not_storable(key, f"{path}.<key {key!r:.80}>", "Use text, numbers or tuples of them as keys.")
        return stored


def _hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _all_plain(container: Any) -> bool:
    members = container.values() if isinstance(container, dict) else container
    if not _PLAIN.issuperset(map(type, members)):
        return False
    return not isinstance(container, dict) or _PLAIN.issuperset(map(type, container))


def like(model: Any, members: Iterable[Any]) -> Any:
    """A container of the model's type with other members."""
    if isinstance(model, defaultdict):
        return defaultdict(model.default_factory, members)
    if isinstance(model, Counter):
        return Counter(dict(members))
    if isinstance(model, deque):
        return deque(members, model.maxlen)
    return type(model)(members)
