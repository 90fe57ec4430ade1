"""What the user wrote, as plain values that can be compared: numbers, containers, functions with what they hold;
each fact read by itself.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from dis import get_instructions
from enum import Enum
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any

from colabkeep.core.settings import Item, Plain

NOT_PLAIN = object()
"""Stands for a value that has no plain form."""

Describe = Callable[[object], "Mapping[str, Item] | None"]
"""The items of an object that an adapter knows, such as a module; None for others."""

_ATOMS = frozenset({type(None), bool, int, float, str})
_MOST = 256  # members of a container: a longer one is data, and no setting
_LONGEST = 1000  # characters of a text, likewise
_ARRAYS = frozenset({"Tensor", "Parameter", "EagerParamBase"})  # a class derived from one may be anything
_VALUES = 16  # numbers of a tensor that are compared one by one
_BYTES = 2**18  # of a tensor that is compared by its digest
_DEEPEST = 3  # functions that are found in one another
_MEMORIES = (list, dict, set, deque)  # which a function may write to: no settings
_LIBRARIES = (frozenset({"torch", "paddle", "numpy", "colabkeep"}) | sys.stdlib_module_names) - {"test"}
_STORES = frozenset({"STORE_GLOBAL", "STORE_DEREF"})  # what a function sets itself is its memory
_LOADS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})  # of a name that is no attribute


def is_plain(value: Any) -> bool:
    """Is it a number, a text, None, or a list or tuple of such, of exactly these types, and no longer than settings?"""
    kind = type(value)
    if kind in _ATOMS:
        return kind is not str or len(value) <= _LONGEST
    return kind in (list, tuple) and len(value) <= _MOST and all(map(is_plain, value)) and _leaves(value) <= _MOST


def _leaves(value: Any) -> int:
    return sum(map(_leaves, value)) if type(value) in (list, tuple) else 1


def plain(value: Any) -> Plain:
    """The plain form of a value, `NOT_PLAIN` if it has none. Reads small tensors, which may wait for the device."""
    if type(value) in _ATOMS:
        return value
    if isinstance(value, Enum):
        return plain(value.value)
    for base in (bool, int, float, str):
        if isinstance(value, base):
            return base(value)
    if isinstance(value, Counter):
        return plain(sorted(value.elements(), key=repr))
    if isinstance(value, Mapping):
        return (
            _members({str(key): plain(member) for key, member in value.items()}) if len(value) <= _MOST else NOT_PLAIN
        )
    if isinstance(value, (list, tuple, deque, set, frozenset)):
        listed = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else list(value)
        return _members([plain(member) for member in listed]) if len(listed) <= _MOST else NOT_PLAIN
    if _is_array(value):
        return _array(value)
    return str(value) if type(value).__name__ == "dtype" else NOT_PLAIN


def described(value: object, describe: Describe = lambda _: None) -> dict[str, Item]:
    """A function, a module or any other callable, with what it holds: "" is itself, others by the name it has for them.

    Of the user's own functions the code is compared, as far as one Python compiles it alike; what it calls, and the
    globals that it names, are told only. Of a library's it is the name that counts.
    """
    return dict(_items(value, "", describe, ()))


def is_library(module: object) -> bool:
    """Is a module of that name one that was installed, and not the user's own?"""
    if not isinstance(module, str) or module == "__main__":  # whatever file that is
        return False
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return module.partition(".")[0] in _LIBRARIES or "site-packages" in file or "dist-packages" in file


def _members(members: Any) -> Plain:
    found = members.values() if isinstance(members, dict) else members
    return NOT_PLAIN if any(member is NOT_PLAIN for member in found) else members


def _is_array(value: object) -> bool:
    package, name = type(value).__module__.partition(".")[0], type(value).__name__
    return (package in ("torch", "paddle") and name in _ARRAYS) or (package == "numpy" and hasattr(value, "tolist"))


def _array(value: Any) -> Plain:
    dense = str(getattr(value, "layout", "")) in ("torch.strided", "NCHW", "NHWC", "")  # as torch and Paddle call it
    if getattr(value, "is_meta", False) or not dense:
        return NOT_PLAIN
    shape = tuple(value.shape)
    size = functools.reduce(lambda a, b: a * b, shape, 1)
    if size <= _VALUES:
        return plain(value.tolist())
    if size * 4 > _BYTES:
        return NOT_PLAIN
    return f"{value.dtype} {shape} {_digest(repr(value.tolist()).encode())}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def _items(value: Any, name: str, describe: Describe, outer: tuple[object, ...]) -> Iterator[tuple[str, Item]]:
    known = describe(value)
    if known is not None:
        yield from ((".".join(filter(None, (name, inner))), item) for inner, item in known.items())
    elif isinstance(value, functools.partial):
        held = {**{f"args[{i}]": each for i, each in enumerate(value.args)}, **value.keywords}
        (_, inside), *rest = _items(value.func, name, describe, outer)
        yield name, _with(inside, held)
        yield from rest
    elif isinstance(value, MethodType):
        yield from _items(value.__func__, name, describe, outer)
    elif isinstance(value, FunctionType):
        yield from _of_function(value, name, describe, outer)
    elif isinstance(value, (type, BuiltinFunctionType)):
        yield name, Item(kind=_full_name(value), sure=True)
    else:
        kind = type(value)
        yield name, _with(Item(kind=kind.__name__, sure=is_library(kind.__module__)), getattr(value, "__dict__", {}))


def _with(item: Item, held: Mapping[str, Any]) -> Item:
    found = {key: plain(each) for key, each in held.items()}
    options = {key: each for key, each in found.items() if each is not NOT_PLAIN}
    return replace(item, options={**item.options, **options})


def _of_function(
    function: FunctionType, name: str, describe: Describe, outer: tuple[object, ...]
) -> Iterator[tuple[str, Item]]:
    library, code = is_library(function.__module__), function.__code__
    item = Item(kind=_full_name(function) if library else function.__name__, sure=not outer)
    if not library:
        item = replace(item, options=_code_options(function))
    own = {step.argval for step in get_instructions(code) if step.opname in _STORES}
    arguments = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    held = dict(zip(arguments[len(arguments) - len(defaults) :], defaults, strict=True))
    held |= function.__kwdefaults__ or {}
    held |= dict(cells(function))
    held = {key: each for key, each in held.items() if key not in own and not isinstance(each, _MEMORIES)}
    yield name, _with(item, held)
    named = {} if library else {key: function.__globals__.get(key, NOT_PLAIN) for key in _globals(code)}
    named = {key: each for key, each in named.items() if each is not NOT_PLAIN and key not in own}
    start = f"{name}." if name else ""
    told = _with(Item(kind="globals", sure=False), {key: each for key, each in named.items() if type(each) in _ATOMS})
    if told.options:
        yield f"{start}globals", told
    outer = (*outer, function)
    for key, each in {**named, **held}.items():
        known = any(each is one for one in outer) or len(outer) > _DEEPEST
        if not known and (isinstance(each, FunctionType) or describe(each) is not None):
            yield from _items(each, start + key, describe, outer)


def cells(function: FunctionType) -> Iterator[tuple[str, object]]:
    """The variables of others that a function holds, by name."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # a variable that was never set
            continue


def _code_options(function: FunctionType) -> dict[str, Plain]:
    """The behind of each name says which Python compiled it: what another one made of it is not compared."""
    tag = sys.implementation.cache_tag
    codes = list(_codes(function.__code__))
    constants = [plain(each) for code in codes for each in code.co_consts if type(each) is not CodeType]
    if constants and constants[0] == function.__doc__:
        del constants[0]
    return {
        f"constants@{tag}": ["…" if each is NOT_PLAIN else each for each in constants],
        f"names@{tag}": list(dict.fromkeys(names(function.__code__))),
        f"code@{tag}": _digest(b"\0".join(code.co_code for code in codes)),
    }


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if type(constant) is CodeType:  # lambdas, inner functions, comprehensions
            yield from _codes(constant)


def names(code: CodeType) -> Iterator[str]:
    """Of globals and attributes, in the code of a function and of those in it."""
    for each in _codes(code):
        yield from each.co_names


def _globals(code: CodeType) -> Iterator[str]:
    """Of globals alone: an attribute may be called as one of them, which other processes and sessions need not have."""
    for each in _codes(code):
        yield from (step.argval for step in get_instructions(each) if step.opname in _LOADS)


def _full_name(value: Any) -> str:
    module = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", None) or repr(value)
    return f"{module}.{name}" if module not in (None, "builtins", "__main__") else name


UNREADABLE = "unreadable"
_MOST_OF_A_REASON = 120  # characters of a reason


def read_facts(readers: Mapping[str, Callable[[], object]]) -> dict[str, str]:
    """Name → value as text, or "unreadable: …" with the reason. What this version of the framework does not have
    (AttributeError) is left out: it is no fact here."""
    found: dict[str, str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch 2.9 and later warn of an older setting each time it is read
        for name, reader in readers.items():
            try:
                found[name] = str(reader())
            except AttributeError:
                continue
            except Exception as error:  # noqa: BLE001  # whatever it is, it is told, and no training ends for it
                why = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
                found[name] = f"{UNREADABLE}: {why[:_MOST_OF_A_REASON]}"
    return found
