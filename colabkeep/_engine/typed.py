"""Plain values as JSON and back, exactly: types, insertion order, NaN bits, keys of any kind.

A JSON object with one member whose name starts with "$" is a typed node; every other object is a
dict with string keys. Decoding builds plain values only: it imports nothing and calls nothing
that the text could choose.
"""

from __future__ import annotations

import base64
import re
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import date, datetime, timedelta
from pathlib import Path, PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any, TypeAlias

from colabkeep._engine.reading import UnknownKind
from colabkeep.vocabulary.errors import NotStorable
from colabkeep.vocabulary.state import HostTensor, Tagged, Tree

__all__ = ["decode", "encode", "tensor_node"]

Put: TypeAlias = Callable[[HostTensor, str], Any]
"""Takes a tensor and its path; returns the node that stands for it."""

_FACTORIES: dict[str, Callable[[], Any] | None] = {
    "": None, "int": int, "float": float, "list": list, "dict": dict, "set": set, "str": str, "bool": bool,
}  # fmt: skip
_SURROGATE = re.compile(r"[\ud800-\udfff]")  # two neighbours would come back from JSON as one character
_JSON_INTS = 2**63  # larger ones go as hexadecimal: other readers, and Python's own digit limit, stop at some point


def encode(value: Tree, path: str, put: Put) -> Any:
    """The JSON form of `value`.

    Raises:
        NotStorable: a value of a type that is not listed in `colabkeep.vocabulary.state.Tree`.
    """
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is str:
        return value if _is_plain(value) else {"$text": value.encode("utf-8", "surrogatepass").hex()}
    if kind is int:
        return value if -_JSON_INTS <= value < _JSON_INTS else {"$int": hex(value)}
    if kind is float:
        return value if value - value == 0 else {"$float": struct.pack(">d", value).hex()}
    if kind is HostTensor:
        return put(value, path)
    if kind is list:
        return [encode(member, f"{path}[{i}]", put) for i, member in enumerate(value)]
    if kind is dict and all(type(key) is str and key[:1] != "$" and _is_plain(key) for key in value):
        return {key: encode(member, f"{path}.{key}", put) for key, member in value.items()}
    writer = _WRITERS.get(kind)
    if writer is None:
        raise NotStorable(
            problem=f"{path} is a {kind.__module__}.{kind.__qualname__}; it cannot be stored without pickle.",
            remedy="Keep it out of the state, or give its class state_dict() and load_state_dict() of plain values.",
            path=path,
        )
    return writer(value, path, put)


def tensor_node(reference: list[Any]) -> Any:
    """What stands for a tensor; `decode` hands the reference to whoever has the tensors."""
    return {"$tensor": reference}


def decode(node: Any, get: Callable[[Any], HostTensor]) -> Tree:
    """The value of a JSON form. `get` turns a tensor's reference into the tensor.

    Raises:
        UnknownKind: a kind of value that a newer version may know.
        ValueError, TypeError, KeyError: the node is not one that `encode` makes.
    """
    if isinstance(node, list):
        return [decode(member, get) for member in node]
    if not isinstance(node, dict):
        if type(node) is int and not -_JSON_INTS <= node < _JSON_INTS:
            raise ValueError("a number is out of range")
        return node
    if len(node) == 1:
        (name,) = node
        if name[:1] == "$":
            if name not in _READERS:
                raise UnknownKind(f"a value of the state is of the unknown kind {name:.40}")
            return _READERS[name](node[name], get)
    if any(name[:1] == "$" for name in node):
        raise ValueError("a typed node has more than one member")
    return {name: decode(member, get) for name, member in node.items()}


def _pairs(value: Any, path: str, put: Put) -> list[Any]:
    return [
        [encode(key, f"{path}.<key {i}>", put), encode(member, f"{path}[{key!r:.80}]", put)]
        for i, (key, member) in enumerate(value.items())
    ]


def _is_plain(text: str) -> bool:
    return text.isascii() or _SURROGATE.search(text) is None


def _members(value: Any, path: str, put: Put) -> list[Any]:
    return [encode(member, f"{path}[{i}]", put) for i, member in enumerate(value)]


def _write_defaultdict(value: Any, path: str, put: Put) -> Any:
    for name, factory in _FACTORIES.items():
        if factory is value.default_factory:
            return {"$defaultdict": [name, _pairs(value, path, put)]}
    raise NotStorable(
        problem=f"{path} is a defaultdict that makes its values with {value.default_factory!r}.",
        remedy="Use a plain dict, or int, float, str, bool, list, dict or set as the factory.",
        path=path,
    )


def _write_datetime(value: datetime, path: str, _: object) -> Any:
    text = value.isoformat()
    if repr(datetime.fromisoformat(text)) != repr(value):
        raise NotStorable(
            problem=f"{path} is a datetime with a time zone by name ({value!r:.120}), which cannot be stored exactly.",
            remedy="Store it in UTC: value.astimezone(datetime.timezone.utc).",
            path=path,
        )
    return {"$datetime": text}


_WRITERS: dict[type, Callable[[Any, str, Put], Any]] = {
    Tagged: lambda v, p, put: {"$tag": [v.kind, encode(v.value, p, put)]},
    tuple: lambda v, p, put: {"$tuple": _members(v, p, put)},
    dict: lambda v, p, put: {"$dict": _pairs(v, p, put)},
    OrderedDict: lambda v, p, put: {"$ordered": _pairs(v, p, put)},
    Counter: lambda v, p, put: {"$counter": _pairs(v, p, put)},
    defaultdict: _write_defaultdict,
    # The order of a set is not part of its value; sorting makes equal states equal bytes.
    set: lambda v, p, put: {"$set": sorted(_members(v, p, put), key=repr)},
    frozenset: lambda v, p, put: {"$frozenset": sorted(_members(v, p, put), key=repr)},
    deque: lambda v, p, put: {"$deque": [v.maxlen, _members(v, p, put)]},
    complex: lambda v, p, put: {"$complex": struct.pack(">dd", v.real, v.imag).hex()},
    bytes: lambda v, p, put: {"$bytes": base64.b64encode(v).decode()},
    bytearray: lambda v, p, put: {"$bytearray": base64.b64encode(v).decode()},
    range: lambda v, p, put: {"$range": [v.start, v.stop, v.step]},
    slice: lambda v, p, put: {"$slice": _members((v.start, v.stop, v.step), p, put)},
    PosixPath: lambda v, p, put: {"$path": str(v)},
    WindowsPath: lambda v, p, put: {"$path": str(v)},
    PurePosixPath: lambda v, p, put: {"$posixpath": str(v)},
    PureWindowsPath: lambda v, p, put: {"$windowspath": str(v)},
    datetime: _write_datetime,
    date: lambda v, p, put: {"$date": v.isoformat()},
    timedelta: lambda v, p, put: {"$timedelta": [v.days, v.seconds, v.microseconds]},
}


def _mapping(pairs: Any, get: Callable[[Any], HostTensor]) -> dict[Any, Tree]:
    return {decode(key, get): decode(member, get) for key, member in pairs}


_READERS: dict[str, Callable[[Any, Callable[[Any], HostTensor]], Any]] = {
    "$int": lambda n, get: int(n, 16),
    "$text": lambda n, get: bytes.fromhex(n).decode("utf-8", "surrogatepass"),
    "$float": lambda n, get: struct.unpack(">d", bytes.fromhex(n))[0],
    "$tensor": lambda n, get: get(n),
    "$tag": lambda n, get: Tagged(_text(n[0]), decode(n[1], get)),
    "$tuple": lambda n, get: tuple(decode(n, get)),
    "$dict": _mapping,
    "$ordered": lambda n, get: OrderedDict(_mapping(n, get)),
    "$counter": lambda n, get: Counter(_mapping(n, get)),
    "$defaultdict": lambda n, get: defaultdict(_FACTORIES[n[0]], _mapping(n[1], get)),
    "$set": lambda n, get: set(decode(n, get)),
    "$frozenset": lambda n, get: frozenset(decode(n, get)),
    "$deque": lambda n, get: deque(decode(n[1], get), n[0]),
    "$complex": lambda n, get: complex(*struct.unpack(">dd", bytes.fromhex(n))),
    "$bytes": lambda n, get: base64.b64decode(n, validate=True),
    "$bytearray": lambda n, get: bytearray(base64.b64decode(n, validate=True)),
    "$path": lambda n, get: Path(_text(n)),
    "$posixpath": lambda n, get: PurePosixPath(_text(n)),
    "$windowspath": lambda n, get: PureWindowsPath(_text(n)),
    "$range": lambda n, get: range(*n),
    "$slice": lambda n, get: slice(*decode(n, get)),
    "$datetime": lambda n, get: datetime.fromisoformat(n),
    "$date": lambda n, get: date.fromisoformat(n),
    "$timedelta": lambda n, get: timedelta(*n),
}


def _text(node: Any) -> str:
    if not isinstance(node, str):
        raise TypeError("a name is not text")
    return node
