"""Live state as a tree of plain values, and back: the walk that all adapters share, its leaves that are no
framework's, and objects with `state_dict`.
"""

from __future__ import annotations

import random
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, timedelta
from enum import Enum
from pathlib import PosixPath, WindowsPath
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast

from colabkeep.core.errors import CheckpointUnsupported, NotStorable, UsageError
from colabkeep.core.state import HostTensor, Tagged, Tree
from colabkeep.frameworks.shared.rng import pack_python, stateful, unpack_python

if TYPE_CHECKING:
    import numpy as np

Slot = TypeVar("Slot")


class SlotCache(Generic[Slot]):
    """Slots of reusable memory, by path. A path that a capture does not ask for is let go.

    One capture is `turn`, then `take` and `keep` for each path, then `sweep`.
    """

    def __init__(self) -> None:
        self._now: dict[str, Slot] = {}
        self._before: dict[str, Slot] = {}

    def turn(self) -> None:
        """A capture begins."""
        # A capture that was broken off leaves slots on both sides: none of them is lost.
        self._before, self._now = {**self._before, **self._now}, {}

    def take(self, path: str) -> Slot | None:
        """The slot of the capture before, if there was one."""
        return self._before.pop(path, None)

    def keep(self, path: str, slot: Slot) -> Slot:
        """The slot for this capture and the next."""
        self._now[path] = slot
        return slot

    def kept(self, path: str) -> Slot | None:
        """The slot for this capture, if there is one already."""
        return self._now.get(path)

    def sweep(self) -> None:
        """The capture is complete: let go of what it did not take."""
        self._before = {}


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
        return "Store its state_dict(), or pass it as a part of its own: state={...}."
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


# NumPy is recognised, never imported on the way out: a value cannot be an array if nobody imported it.


_NAMES = {
    "|b1": "BOOL", "|u1": "U8", "|i1": "I8", "<u2": "U16", "<i2": "I16", "<f2": "F16", "<u4": "U32", "<i4": "I32",
    "<f4": "F32", "<u8": "U64", "<i8": "I64", "<f8": "F64", "<c8": "C64",
}  # fmt: skip
_DTYPES = {name: code for code, name in _NAMES.items()}
_BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")


class ArrayLeaves:
    """Turns arrays and generators into leaves, copying arrays into memory that is kept and reused.

    `plain` stores an ordinary row-major array as a bare `HostTensor`: for an adapter whose own
    tensors are arrays. Otherwise arrays are tagged, so that they come back as arrays.
    """

    def __init__(self, *, plain: bool = False) -> None:
        self._plain = plain
        self._slots: SlotCache[tuple[np.ndarray[Any, Any], Tree]] = SlotCache()
        self._met: dict[int, tuple[object, Tree]] = {}  # holds the arrays, so that no id is given twice

    def turn(self) -> None:
        """A capture begins."""
        self._slots.turn()
        self._met = {}

    def sweep(self) -> None:
        """A capture is complete."""
        self._slots.sweep()
        self._met = {}

    def __call__(self, value: Any, path: str) -> Tree:
        """The leaf for `value`, of any type.

        Raises:
            NotStorable: it is none of those this page knows.
        """
        if type(value) is random.Random:
            return Tagged("python.random", pack_python(value.getstate()))
        np = sys.modules.get("numpy")
        if np is not None:
            if type(value) is np.ndarray:
                return self._array(value, path)
            if isinstance(value, np.generic):
                return _scalar(value, path)
            if isinstance(value, np.dtype):
                return Tagged("numpy.dtype", _dtype_code(value, path))
            if "numpy.random" in sys.modules and type(value) in (np.random.Generator, np.random.RandomState):
                return self._generator(value, path)
        raise not_storable(value, path)

    def _array(self, array: np.ndarray[Any, Any], path: str) -> Tree:
        import numpy as np

        if id(array) in self._met:
            return self._met[id(array)][1]
        columns = array.flags.f_contiguous and not array.flags.c_contiguous
        kept = self._slots.take(path)
        if kept is None or (kept[0].shape, kept[0].dtype) != (array.shape, array.dtype) or columns is _is_rows(kept[0]):
            memory = np.empty_like(array, order="F" if columns else "C")
        else:
            memory = kept[0]
        np.copyto(memory, array)
        kept = memory, self._leaf(memory, path)  # another object each time: nobody knows whether the bytes have changed
        self._met[id(array)] = array, kept[1]
        return self._slots.keep(path, kept)[1]

    def _leaf(self, memory: np.ndarray[Any, Any], path: str) -> Tree:
        code = _dtype_code(memory.dtype, path)
        rows = memory if _is_rows(memory) else memory.T
        name = _NAMES.get(code) if isinstance(code, str) else None
        shape = rows.shape if name else (*rows.shape, memory.dtype.itemsize)
        data = memoryview(rows.reshape(-1).view("u1").data) if memory.nbytes else memoryview(b"")
        host = HostTensor(dtype=name or "U8", shape=shape, data=data)
        if self._plain and name and rows is memory:
            return host
        return Tagged("numpy.ndarray", {"dtype": code, "order": "C" if rows is memory else "F", "data": host})

    def _generator(self, value: Any, path: str) -> Tree:
        legacy = not hasattr(value, "bit_generator")
        bits = value._bit_generator if legacy else value.bit_generator
        if type(bits).__name__ not in _BIT_GENERATORS or type(bits).__module__.partition(".")[0] != "numpy":
            raise not_storable(value, path, f"Use a generator made of one of {', '.join(_BIT_GENERATORS)}.")
        state = {
            "state": value.get_state(legacy=False) if legacy else bits.state,
            "sequence": None if legacy else _sequence_state(bits),
        }
        return Tagged("numpy.randomstate" if legacy else "numpy.generator", encode(state, path, self))


def array_leaf(node: HostTensor | Tagged, _: Rebuild) -> Any:
    """What a node becomes where tensors are arrays; always in fresh memory.

    Raises:
        UsageError: NumPy has no type for it (bfloat16 and the eight-bit floats).
    """
    if isinstance(node, Tagged):
        return native_leaf(node)
    import numpy as np

    if node.dtype not in _DTYPES:
        raise UsageError(
            problem=f"A tensor has dtype {node.dtype}, which NumPy does not have.",
            remedy="Import the framework that made it (import torch) before loading.",
        )
    return np.frombuffer(node.data, dtype=_DTYPES[node.dtype]).reshape(node.shape).copy()


def native_leaf(node: Tagged) -> Any:
    """The object of a tagged leaf made on this page.

    Raises:
        CheckpointUnsupported: the kind is another framework's, or a newer version's.
    """
    if node.kind == "python.random":
        generator = random.Random()  # noqa: S311  # the user's own kind of generator
        generator.setstate(unpack_python(node.value))
        return generator
    if node.kind == "numpy.ndarray":
        return _native_array(node.value)
    if node.kind == "numpy.scalar":
        import numpy as np

        code, data = node.value
        return np.frombuffer(data, dtype=code)[0]
    if node.kind == "numpy.dtype":
        return _native_dtype(node.value)
    if node.kind in ("numpy.generator", "numpy.randomstate"):
        return _native_generator(node)
    raise CheckpointUnsupported(
        problem=f"The checkpoint holds a {node.kind!r}, which cannot be built here.",
        remedy="Import the framework the checkpoint was made with before loading, or install the newest colabkeep.",
    )


def describe_array(value: Any) -> str | None:
    """Shape and dtype of a live or stored array, the same text for both; None for anything else."""
    np = sys.modules.get("numpy")
    if isinstance(value, HostTensor):
        return f"{value.shape} of {_DTYPES.get(value.dtype, value.dtype)}"
    if isinstance(value, Tagged) and value.kind == "numpy.ndarray":
        shape, code = value.value["data"].shape, value.value["dtype"]
        plain = value.value["data"].dtype == _NAMES.get(str(code))
        shape = shape if plain else shape[:-1]
        return f"{shape[::-1] if value.value['order'] == 'F' else shape} of {code}"
    if np is not None and type(value) is np.ndarray:
        return f"{value.shape} of {_dtype_code(value.dtype, '')}"
    return None


def _is_rows(array: np.ndarray[Any, Any]) -> bool:
    return bool(array.flags.c_contiguous)


def _scalar(value: np.generic, path: str) -> Tree:
    if value.dtype.hasobject or value.dtype.names:
        raise not_storable(value, path)
    return Tagged("numpy.scalar", (value.dtype.str, value.tobytes()))


def _dtype_code(dtype: np.dtype[Any], path: str) -> Tree:
    import numpy as np

    if dtype.hasobject:
        raise not_storable(dtype, path, "Python objects have no bytes to store: use a list, or a numeric dtype.")
    if np.dtype(dtype.str) == dtype:
        return dtype.str
    fields = [tuple(field) for field in dtype.descr]
    if np.dtype(fields) != dtype:
        raise not_storable(dtype, path, "Use a packed dtype: np.dtype([...]) without align=True or offsets.")
    return fields


def _native_dtype(code: Tree) -> np.dtype[Any]:
    import numpy as np

    return np.dtype(code)


def _native_array(value: Tree) -> np.ndarray[Any, Any]:
    import numpy as np

    dtype, host = _native_dtype(value["dtype"]), value["data"]
    shape = host.shape if host.dtype == _NAMES.get(dtype.str) else host.shape[:-1]
    # Copied as bytes first: the file's buffer need not be aligned to the dtype.
    rows = np.frombuffer(host.data, dtype="u1").copy().view(dtype).reshape(shape) if host.data.nbytes else None
    made = np.empty(shape, dtype) if rows is None else rows
    return made.T if value["order"] == "F" else made


def _sequence_state(bits: Any) -> Tree:
    """What `Generator.spawn` depends on, where the generator has it."""
    import numpy as np

    sequence = getattr(bits, "seed_seq", None) or getattr(bits, "_seed_seq", None)
    return dict(sequence.state) if type(sequence) is np.random.SeedSequence else None


def _native_generator(node: Tagged) -> Any:
    import numpy as np

    value = rebuild(node.value, array_leaf)
    name = value["state"]["bit_generator"]
    if name not in _BIT_GENERATORS:
        raise CheckpointUnsupported(
            problem=f"The checkpoint holds a random generator of the unknown kind {name!r}.",
            remedy="Install the newest colabkeep.",
        )
    kind = getattr(np.random, name)
    if node.kind == "numpy.randomstate":
        old = np.random.RandomState(kind(0))
        old.set_state(value["state"])
        return old
    sequence = value["sequence"]
    bits = kind(0 if sequence is None else np.random.SeedSequence(**sequence))
    bits.state = value["state"]
    return np.random.Generator(bits)


# Paddle's own objects, and many written for it, call the second one `set_state_dict`.


_MOST = 20  # differences shown; a student reads the first and the count


def encode_object(part: str, target: Any, leaf: Leaf, prepare: Callable[[Any], Any] | None = None) -> Tree:
    """The tree of a part that tells its own state.

    Raises:
        NotStorable: it cannot tell its state, or holds a value without a plain form.
    """
    told = stateful(target)
    if not _is_stateful(told):
        kind = type(target)
        raise NotStorable(
            problem=f"{part} is a {kind.__module__}.{kind.__qualname__}, which has no state_dict() and "
            "load_state_dict() to save and restore its state.",
            remedy="Keep a variable of your own loop (a number, a list, a tensor) in run.state, as in x = "
            'run.state.setdefault("x", x). Give an object these two methods, with numbers, text, lists, dicts and '
            f"tensors as its state. Or leave {part} out of the state.",
            path=part,
        )
    state = told.state_dict()
    return told_state(target, state if prepare is None else prepare(state), part, leaf)


def told_state(target: object, state: Any, part: str, leaf: Leaf) -> Tree:
    """The tree of a part that told this state.

    Raises:
        NotStorable: it holds a value without a plain form.
    """
    return {"kind": "object", "class": type(target).__name__, "state": encode(state, part, leaf)}


def restore_object(target: Any, tree: Tree, native: Callable[[Tree], Any]) -> None:
    """Hand the stored state to the part."""
    take = _taker(stateful(target))
    if take is None:  # `check` has told so
        raise TypeError(f"a {type(target).__name__} has no load_state_dict()")
    take(native(tree["state"]))


def object_differences(part: str, target: object, tree: Tree, kind: str = "object") -> list[str]:
    """Is the live part of the kind that was stored, and can it take a state?"""
    stored = tree.get("kind") if isinstance(tree, dict) else None
    if stored != kind:
        return [f"{part}: the checkpoint holds {_article(stored)}, and this run has {_article(kind)} there."]
    if kind == "object" and not _is_stateful(stateful(target)):
        return [f"{part}: a {type(target).__name__} has no load_state_dict() to take what is stored."]
    return []


def missing_parts(parts: Sequence[str], trees: Sequence[str]) -> list[str]:
    """Parts that only one side has."""
    lines = [f"{name}: this run has it, the checkpoint does not." for name in parts if name not in trees]
    lines += [f"{name}: the checkpoint has it, this run does not." for name in trees if name not in parts]
    return lines


def shortened(lines: Sequence[str]) -> list[str]:
    """The first lines, and how many more there are."""
    rest = len(lines) - _MOST
    return [*lines[:_MOST], f"and {rest} more differences"] if rest > 1 else list(lines)


def _is_stateful(target: object) -> bool:
    # isinstance(target, Stateful) says the same and takes 7 µs.
    return callable(getattr(target, "state_dict", None)) and _taker(target) is not None


def _taker(target: object) -> Callable[[Any], object] | None:
    """What the part takes a state by."""
    for name in ("load_state_dict", "set_state_dict"):
        found = getattr(target, name, None)
        if callable(found):
            return cast("Callable[[Any], object]", found)
    return None


def _article(kind: object) -> str:
    names = {"module": "a module", "optimizer": "an optimizer", "object": "an object with state_dict()"}
    return names.get(str(kind), f"something unknown ({kind!r})")
