"""What a user's object can reach: the things it holds, and the globals its own functions name."""

from __future__ import annotations

import functools
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

__all__ = ["instances", "reachable"]

_DEEPEST = 12  # steps away from a root
_MOST = 5_000  # objects in all: some 50 ms
_MEMBERS = 100  # looked at in one container: a list of a million samples holds no generator worth finding
_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, bytearray, range, slice, CodeType})
_NO_PARTS = (type, ModuleType, FunctionType, MethodType)
_WRAPPERS: dict[type[Any], tuple[str, ...]] = {
    MethodType: ("__self__", "__func__"),
    functools.partial: ("func", "args", "keywords"),
    property: ("fget",),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
}
_CARRIES = re.compile(r"\.data\.|\.cargo$|\.testing\.")
_LIBRARIES = frozenset({"torch", "paddle", "numpy", "colabkeep"}) | sys.stdlib_module_names


def reachable(*roots: object) -> Iterator[object]:
    """Every object within reach of `roots`, once, the near ones first, in an order that depends on the code only.

    Reads `__dict__`s, slots, containers, closures, defaults, partials, bound methods, attributes of the user's
    classes, and the module globals that the user's functions name. Calls nothing of the user's. Sets are
    left out: their order changes from process to process; so are our own objects.
    """
    waiting = deque((root, 0) for root in roots)
    seen: dict[int, object] = {}  # keeps what it has seen alive, so that an id stays taken
    while waiting and len(seen) < _MOST:
        obj, depth = waiting.popleft()
        if type(obj) in _ATOMS or id(obj) in seen or _is_ours(type(obj)):
            continue
        seen[id(obj)] = obj
        yield obj
        if depth < _DEEPEST:
            waiting.extend((child, depth + 1) for child in _children(obj))


def instances(root: object) -> Iterator[tuple[object, dict[str, Any]]]:
    """The objects that make up `root`, itself first, each with the dictionary of its attributes: those within reach
    through attributes, lists, tuples and dicts alone. Calls nothing of the user's."""
    waiting = deque([(root, 0)])
    seen: dict[int, object] = {}
    while waiting and len(seen) < _MOST:
        obj, depth = waiting.popleft()
        kind = type(obj)
        if kind in _ATOMS or id(obj) in seen or issubclass(kind, _NO_PARTS) or kind.__module__.startswith("colabkeep."):
            continue
        seen[id(obj)] = obj
        inside = _instance_dict(obj)
        yield obj, inside
        if depth < _DEEPEST:
            held: Any = obj
            members = held if kind in (list, tuple) else held.values() if kind is dict else ()
            waiting.extend((child, depth + 1) for child in (*islice(members, _MEMBERS), *inside.values()))


def _children(obj: Any) -> Iterable[object]:
    kind = type(obj)
    if issubclass(kind, dict):
        return islice(dict.values(obj), _MEMBERS)
    for base in (list, tuple, deque):
        if issubclass(kind, base):
            return (*islice(base.__iter__(obj), _MEMBERS), *_attributes(obj))
    if issubclass(kind, ModuleType):
        return ()
    if kind is FunctionType or issubclass(kind, type):
        if _library(obj.__module__):
            return ()
        return _of_function(obj) if kind is FunctionType else vars(obj).values()
    for wrapper, inside in _WRAPPERS.items():
        if issubclass(kind, wrapper):
            return [getattr(obj, name) for name in inside]
    return _attributes(obj)


def _attributes(obj: Any) -> list[object]:
    """What an instance holds, then the classes it was written as."""
    found: list[object] = []
    found.extend(_instance_dict(obj).values())
    classes = [cls for cls in type(obj).__mro__ if not _library(cls.__module__)]
    for cls in classes:
        for member in vars(cls).values():
            if type(member) is MemberDescriptorType:
                found.extend(_slot(member, obj))
    return [*found, *classes]


def _instance_dict(obj: Any) -> dict[str, object]:
    # Past any __getattr__ or __getattribute__ of the user's: a lazy proxy must stay lazy.
    try:
        inside = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return {}
    return inside if type(inside) is dict else {}


def _slot(member: MemberDescriptorType, obj: object) -> tuple[object, ...]:
    try:
        return (member.__get__(obj),)
    except AttributeError:  # a slot that holds nothing yet
        return ()


def _of_function(function: FunctionType) -> Iterator[object]:
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # a closure over a name that has no value yet
            continue
    yield from vars(function).values()
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield function.__globals__[name]


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if type(constant) is CodeType:  # lambdas, inner functions, comprehensions
            yield from _names(constant)


def _is_ours(kind: type) -> bool:
    """Is it of a run and its parts, which hold streams that are the training's? A user's data may lead to them: by the
    method of a trainer, by an optimizer with our hook. What carries the user's own data (adapted loaders, the test kit)
    is looked into."""
    module: object = kind.__module__  # a class written in C may have anything there
    return isinstance(module, str) and module.startswith("colabkeep.") and not _CARRIES.search(module)


def _library(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in _LIBRARIES
