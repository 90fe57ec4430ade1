"""What a user's object can reach, and the random streams in it: found, seeded, put aside and put back without
drawing from them; batches loaded each under a seed of its own.
"""

from __future__ import annotations

import functools
import random
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from colabkeep.frameworks.shared.describe import cells, names
from colabkeep.frameworks.shared.rng import PYTHON, Look, NumpyLook, PythonStream, Stream

if TYPE_CHECKING:
    import numpy as np


_DEEPEST = 12  # steps away from a root
_MOST = 5_000  # objects in all: some 50 ms
_MEMBERS = 100  # looked at in one container: a list of a million samples holds no generator worth finding
_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, bytearray, range, slice, CodeType})
_CODE = (type, ModuleType, FunctionType, MethodType)
_WRAPPERS: dict[type[Any], tuple[str, ...]] = {
    MethodType: ("__self__", "__func__"),
    functools.partial: ("func", "args", "keywords"),
    property: ("fget",),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
}
_CARRIES = re.compile(
    r"\.(?:torch|paddle)\.data$|\.paddle\.reading$|\.shared\.workers$|\.testing\.|\.integrations\.keras_data$"
)
_LIBRARIES = frozenset({"torch", "paddle", "numpy", "colabkeep"}) | sys.stdlib_module_names


def reachable(*roots: object, code: bool = True) -> Iterator[object]:
    """Every object within reach of `roots`, once, the near ones first, in an order that depends on the code only.

    Reads `__dict__`s, slots, containers, closures, defaults, partials, bound methods, attributes of the user's
    classes, and the module globals that the user's functions name; without `code`, only what instances, lists, tuples
    and dicts hold. Calls nothing of the user's. Sets are left out: their order changes from process to process; so are
    our own objects.
    """
    waiting = deque((root, 0) for root in roots)
    seen: dict[int, object] = {}  # keeps what it has seen alive, so that an id stays taken
    while waiting and len(seen) < _MOST:
        obj, depth = waiting.popleft()
        kind = type(obj)
        if kind in _ATOMS or id(obj) in seen or _is_ours(kind) or (not code and issubclass(kind, _CODE)):
            continue
        seen[id(obj)] = obj
        yield obj
        if depth < _DEEPEST:
            waiting.extend((child, depth + 1) for child in (_children(obj) if code else _data(obj)))


def instance_dict(obj: Any) -> dict[str, Any]:
    """The attributes of an object, past any __getattr__ or __getattribute__ of the user's: a lazy proxy must stay
    lazy."""
    try:
        inside = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return {}
    return inside if type(inside) is dict else {}


def _data(obj: Any) -> Iterable[object]:
    members = obj if type(obj) in (list, tuple) else obj.values() if type(obj) is dict else ()
    return (*islice(members, _MEMBERS), *instance_dict(obj).values())


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
    found.extend(instance_dict(obj).values())
    classes = [cls for cls in type(obj).__mro__ if not _library(cls.__module__)]
    for cls in classes:
        for member in vars(cls).values():
            if type(member) is MemberDescriptorType:
                found.extend(_slot(member, obj))
    return [*found, *classes]


def _slot(member: MemberDescriptorType, obj: object) -> tuple[object, ...]:
    try:
        return (member.__get__(obj),)
    except AttributeError:  # a slot that holds nothing yet
        return ()


def _of_function(function: FunctionType) -> Iterator[object]:
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    yield from (value for _, value in cells(function))
    yield from vars(function).values()
    for name in names(function.__code__):
        if name in function.__globals__:
            yield function.__globals__[name]


def _is_ours(kind: type) -> bool:
    """Is it of a run and its parts, which hold streams that are the training's? A user's data may lead to them: by the
    method of a trainer, by an optimizer with our hook. What carries the user's own data (adapted loaders, the test kit)
    is looked into."""
    module: object = kind.__module__  # a class written in C may have anything there
    return isinstance(module, str) and module.startswith("colabkeep.") and not _CARRIES.search(module)


def _library(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in _LIBRARIES


# A *stream* is anything random numbers come from: Python's `random`, NumPy's legacy generator, a framework's, and any
# generator object that a data set, transform or sampler holds. Prices below were measured on one core of a small cloud
# machine.


_SPREAD = 0x9E3779B97F4A7C15  # odd, so that the low 32 bits of its multiples differ: generators that take 32 do too
_MASK = 2**63 - 1
_FIRST_FOUND = 16  # salts below belong to the global streams


Recogniser: TypeAlias = Callable[[object], "Stream | None"]


@dataclass(frozen=True)
class Kinds:
    """Which streams there are: the global ones (always in the same order), and how to know one by its object.

    `devices` are those of devices in use which only the trainer may touch, and which loading does not keep apart: a
    loop that draws from them there does so in every session. They are taken out and put back, never seeded.
    """

    shared: Callable[[], Sequence[Stream]]
    recognise: Recogniser
    devices: Callable[[], Sequence[Stream]] = tuple


class StreamSet:
    """Several streams handled as one. Each gets a seed of its own from the one seed given: its seeder's, after `^` with
    the salt beside it. `tellers` are the (salt, seeder) of those that tell their seed."""

    def __init__(self, shared: Sequence[Stream] = (), found: Sequence[Stream] = ()) -> None:
        self.all = (*shared, *found)
        numbers = (*range(len(shared)), *range(_FIRST_FOUND, _FIRST_FOUND + len(found)))
        self._seeders = tuple(
            (number * _SPREAD & _MASK, stream.seed) for number, stream in zip(numbers, self.all, strict=True)
        )
        self.tellers = [one for one, stream in zip(self._seeders, self.all, strict=True) if stream.told]

    @classmethod
    def of(cls, kinds: Kinds, *roots: object) -> StreamSet:
        """The global streams, and the generator objects that can be reached from `roots`."""
        return cls(kinds.shared(), held(kinds, *roots))

    @classmethod
    def for_a_look(cls, kinds: Kinds, *roots: object) -> StreamSet:
        """These, and those of devices: all that may move when the trainer loads what the training has not asked for."""
        return cls(kinds.shared(), (*held(kinds, *roots), *kinds.devices()))

    def take(self) -> list[Any]:
        """The states of all."""
        return [stream.take() for stream in self.all]

    def put(self, taken: Sequence[Any]) -> None:
        """Continue all exactly where `taken` was."""
        for stream, state in zip(self.all, taken, strict=True):
            stream.put(state)

    def seed(self, seed: int) -> None:
        """Start all anew."""
        for salt, start in self._seeders:
            start(seed ^ salt)


def held(kinds: Kinds, *roots: object) -> list[Stream]:
    """The generator objects that can be reached from `roots`, in an order that depends on the code only."""
    streams = map(kinds.recognise, reachable(*roots))
    return [stream for stream in streams if stream is not None]


class StreamScope:
    """A context with streams of its own: they go on where the last visit left them, the outer ones never move."""

    def __init__(self, streams: StreamSet, seed: int) -> None:
        self._streams = streams
        self._seed: int | None = seed  # None once they have begun
        self._outer = [stream.look() for stream in streams.all]
        self._own = [stream.look() for stream in streams.all]

    @property
    def begun(self) -> bool:
        """Was it entered?"""
        return self._seed is None

    def restart(self, seed: int) -> None:
        """Begin anew at the next visit."""
        self._seed = seed

    def take(self) -> list[Any]:
        """The states of its own streams."""
        with self:
            return self._streams.take()

    def put(self, taken: Sequence[Any]) -> None:
        """Go on where `taken` was."""
        with self:
            self._streams.put(taken)

    def __enter__(self) -> None:
        for look in self._outer:
            look.keep()
        if self._seed is None:
            for look in self._own:
                look.put_back()
        else:
            self._streams.seed(self._seed)
            self._seed = None

    def __exit__(self, *_: object) -> None:
        for look in self._own:
            look.keep()
        for look in self._outer:
            look.put_back()


class LegacyStream(Stream):
    """A NumPy `RandomState`, such as the global one, its cached gaussian included."""

    def __init__(self, owner: np.random.RandomState) -> None:
        self._owner = owner

    def look(self) -> Look:
        return NumpyLook(self._owner)

    def seed(self, seed: int) -> None:
        self._owner.seed(seed & 0xFFFFFFFF)

    def take(self) -> Any:
        return self._owner.get_state(legacy=False)

    def put(self, taken: Any) -> None:
        self._owner.set_state(_public(*taken) if isinstance(taken, (tuple, list)) else taken)


def _public(words: bytes, gauss: float | None) -> dict[str, Any]:
    """A state as the first versions stored it."""
    import numpy as np

    key = np.frombuffer(words[:-4], dtype=np.uint32)
    state = {"key": key, "pos": int.from_bytes(words[-4:], sys.byteorder)}
    return {"bit_generator": "MT19937", "state": state, "has_gauss": int(gauss is not None), "gauss": gauss or 0.0}


class GeneratorStream(Stream):
    """A NumPy `Generator`, through its bit generator. take 1, put 1, seed 7 µs."""

    def __init__(self, bits: np.random.BitGenerator) -> None:
        self._bits = bits
        self._kind: Any = type(bits)  # NumPy's contract: every bit generator is built from one seed

    def take(self) -> Any:
        return self._bits.state

    def put(self, taken: Any) -> None:
        self._bits.state = taken

    def seed(self, seed: int) -> None:
        self._bits.state = self._kind(seed).state


def _shared() -> list[Stream]:
    numpy = sys.modules.get("numpy")
    streams: list[Stream] = [PythonStream(PYTHON)]
    if numpy is not None:
        streams.append(LegacyStream(numpy.random.mtrand._rand))
    return streams


def _recognise(obj: object) -> Stream | None:
    kind = type(obj)
    if issubclass(kind, random.Random):
        fixed = kind is random.SystemRandom or obj is PYTHON
        return None if fixed else PythonStream(obj)  # type: ignore[arg-type] # issubclass, for objects that fake isinstance
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if issubclass(kind, numpy.random.RandomState):
        return None if obj is numpy.random.mtrand._rand else LegacyStream(obj)  # type: ignore[arg-type]
    bits: Any = obj.bit_generator if issubclass(kind, numpy.random.Generator) else obj  # type: ignore[attr-defined]
    own = issubclass(type(bits), numpy.random.BitGenerator) and bits is not numpy.random.mtrand._rand._bit_generator
    return GeneratorStream(bits) if own else None


NEUTRAL = Kinds(_shared, _recognise)
"""Python's and NumPy's streams. NumPy is looked at only if it was imported by someone else."""


class Seeding:
    """Loads in this process. Random streams are the batch's own meanwhile; those of the training do not move.

    To seed all of them takes a fifth of a small step, and most data draws nothing. The first batch shows it: where no
    stream has moved by its end, only those are seeded from then on whose seed can be asked for without a draw. As soon
    as another one has moved after a batch, that batch is loaded again, seeded, and all that follow are seeded, too. So
    every batch is what it is when all are seeded. Generators that the data holds count like those of Python and NumPy.

    `again` looks for the streams once more when the first batch is there: many data sets make their generator when they
    are first asked. If there is a new one, that batch is loaded anew, too.
    """

    def __init__(self, streams: StreamSet, again: Callable[[], StreamSet] | None = None) -> None:
        self._again = again
        self._begin(streams)

    def _begin(self, streams: StreamSet) -> None:
        self._seed = streams.seed
        self._draws: bool | None = None  # None: not known yet
        self._looks = [stream.look() for stream in streams.all]
        pairs = list(zip(streams.all, self._looks, strict=True))
        self._told: Sequence[Look] = [look for stream, look in pairs if stream.told]
        self._untold: Sequence[Look] = [look for stream, look in pairs if not stream.told]
        self._tellers = streams.tellers

    def load(self, seed: int, read: Callable[[Any], Any], index: Any) -> Any:
        """What `read(index)` gives under this seed. It is called twice if this is the first to draw of many."""
        back: Sequence[Look] = self._looks
        for look in back:
            look.keep()
        try:
            if self._draws is False:
                for salt, start in self._tellers:
                    start(seed ^ salt)
                try:
                    value = read(index)
                except Exception:
                    if not self._moved():
                        raise
                else:
                    if not self._moved():
                        back = self._told
                        return value
            self._seed(seed)
            if self._draws:
                return read(index)
            before = [look.glance() for look in self._untold]
            value = read(index)
            self._draws = before != [look.glance() for look in self._untold]
            if not self._grown():
                return value
        finally:
            for look in back:
                look.put_back()
        self.load(seed ^ 1, read, index)  # who makes its generators anew for another seed, does so for the right one
        return self.load(seed, read, index)

    def _grown(self) -> bool:
        """Has the first batch made generators?"""
        again, self._again = self._again, None
        if again is None:
            return False
        streams = again()
        grown = len(streams.all) > len(self._looks)
        if grown:
            self._begin(streams)
        return grown

    def _moved(self) -> bool:
        for look in self._untold:  # noqa: SIM110 - any() would be a generator more, for each batch
            if look.moved():
                return True
        return False
