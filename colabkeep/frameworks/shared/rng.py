"""Random streams of Python and NumPy: seen where they lie in memory, read, put back, and owned by a script."""

from __future__ import annotations

import ctypes
import importlib
import random
import struct
import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

from colabkeep.core.errors import CheckpointDamaged
from colabkeep.core.state import Tree

if TYPE_CHECKING:
    import numpy as np

# A state that is asked for costs 8 µs (Python's) or 25 (NumPy's), because 624 words become as many objects. All bytes
# of it compared where they stand cost a tenth of a microsecond. Where they do not stand as expected, which is found out
# on the generator itself or on one of its kind, it is asked for all the same.


_HEADER = object.__basicsize__
_WORDS = 624
_TWISTER = 4 * _WORDS + 4  # bytes of the words and the position


class Look(Protocol):
    """Whether one stream has moved since `keep`, and back to where it was then. Draws nothing."""

    def keep(self) -> None:
        """Remember where it is."""
        ...

    def moved(self) -> bool:
        """Has it moved since? True where that cannot be told."""
        ...

    def put_back(self) -> None:
        """To where it was at `keep`."""
        ...

    def glance(self) -> object:
        """What equals a later glance only if it has not moved between them."""
        ...


class Seen:
    """A stream that is nothing but bytes in memory: those of the `views`, which somebody else owns and keeps."""

    def __init__(self, *views: memoryview) -> None:
        kept = [bytearray(view) for view in views]
        self._pairs = list(zip(kept, views, strict=True))
        self._copies = list(zip([memoryview(each) for each in kept], views, strict=True))

    def keep(self) -> None:
        for kept, live in self._copies:
            kept[:] = live

    def moved(self) -> bool:
        for kept, live in self._pairs:  # noqa: SIM110 - any() would be a generator more, in every step
            if kept != live:  # one memcmp, since a bytearray compares itself
                return True
        return False

    def put_back(self) -> None:
        for kept, live in self._pairs:
            live[:] = kept

    def glance(self) -> object:
        return [bytes(live) for _, live in self._pairs]


class Asked:
    """One that is asked for its state, whose `take` gives what `put` takes."""

    def __init__(self, take: Callable[[], Any], put: Callable[[Any], object]) -> None:
        self._take, self._put = take, put
        self._taken: Any = None

    def keep(self) -> None:
        self._taken = self._take()
        self._put(self._taken)  # one that is taken out has to be put back before anyone draws

    def moved(self) -> bool:
        return True

    def put_back(self) -> None:
        self._put(self._taken)

    def glance(self) -> object:
        return object()


class _Python(Seen):
    """A generator of Python's: the words, and the Gaussian that its `gauss` has in store."""

    def __init__(self, generator: Any, words: memoryview) -> None:
        super().__init__(words)
        self._generator = generator
        self._gauss = generator.gauss_next
        ((self._kept, self._live),) = self._pairs
        ((self._copy, _),) = self._copies

    def keep(self) -> None:
        self._gauss = self._generator.gauss_next
        self._copy[:] = self._live

    def moved(self) -> bool:
        return self._kept != self._live or self._generator.gauss_next is not self._gauss

    def put_back(self) -> None:
        self._generator.gauss_next = self._gauss
        self._live[:] = self._kept

    def glance(self) -> object:
        return super().glance(), self._generator.gauss_next


def python_look(generator: random.Random) -> Look:
    """For Python's global generator, or one of its kind."""
    asked = Asked(generator.getstate, generator.setstate)
    if type(generator) is not random.Random:
        return asked
    # A position and the words follow the object's header (Modules/_randommodule.c, Python 3.10 to 3.14).
    *words, position = generator.getstate()[1]
    view = view_at(id(generator) + _HEADER, _TWISTER)
    return _Python(generator, view) if view == struct.pack(f"=i{_WORDS}I", position, *words) else asked


class NumpyLook:
    """A `RandomState`, whose bit generator may be exchanged at any time (`numpy.random.set_bit_generator`)."""

    moved: Callable[[], bool]  # an exchange, too, for the owner's bytes hold the address
    glance: Callable[[], object]

    def __init__(self, owner: np.random.RandomState) -> None:
        self._owner = owner
        self._begin()

    def keep(self) -> None:
        if self._owner._bit_generator is not self._bits:
            self._begin()
        self._look.keep()

    def put_back(self) -> None:
        if self._owner._bit_generator is self._bits:  # whoever exchanged it while it was to stay meant it
            self._look.put_back()

    def _begin(self) -> None:
        owner: Any = self._owner
        self._bits = owner._bit_generator  # held, so that the address stays valid whatever is put in its place
        exact = type(owner) is sys.modules["numpy"].random.RandomState  # one of a class of its own has attributes, too
        words, own = (numpy_words(owner), _numpy_own(owner)) if exact else (None, None)
        asked = Asked(lambda: owner.get_state(legacy=False), owner.set_state)
        self._look: Look = Seen(words, own) if words is not None and own is not None else asked
        self.moved, self.glance = self._look.moved, self._look.glance


def numpy_words(owner: np.random.RandomState) -> memoryview | None:
    """The 624 words and the position of a Mersenne Twister in memory, None if they are not found there."""
    state: Any = owner.get_state(legacy=False)
    if state["bit_generator"] != "MT19937":
        return None
    view = view_at(owner._bit_generator.ctypes.state_address, _TWISTER)
    return view if view == state["state"]["key"].tobytes() + state["state"]["pos"].to_bytes(4, sys.byteorder) else None


def _numpy_own(owner: Any) -> memoryview | None:
    """The bytes of a `RandomState` itself: the second Gaussian of a pair is pending there. The rest are addresses that
    stay as long as its bit generator does. None if it does not prove true of another one."""
    kind: Any = type(owner)
    size = kind.__basicsize__ - _HEADER
    trial = kind(1)
    look = Seen(view_at(id(trial) + _HEADER, size))
    trial.standard_normal()
    works = look.moved()
    look.keep()
    second = trial.standard_normal()  # of the pair: the words stay as they are
    works = works and look.moved()
    look.put_back()
    return view_at(id(owner) + _HEADER, size) if works and trial.standard_normal() == second else None


def view_at(address: int, size: int) -> memoryview:
    """Memory that somebody else owns and keeps, to be read and written."""
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


class Stream:
    """One source of random numbers: a global one, which a checkpoint keeps by its `name`, or one that data holds.

    `here`: False where this installation can never draw from it (no such device in this build). `told`: what it was
    seeded with can be asked for, so a data set may make numbers of that without drawing.
    """

    name = ""
    here = True
    told = False

    def look(self) -> Look:
        """A look at it as it is now; `Asked` where it has to be read each time. Only where there is a state."""
        return Asked(self.take, self.put)

    def take(self) -> Any:
        """Its state; None where it does not exist (yet). Draws nothing."""
        raise NotImplementedError

    def put(self, taken: Any, /) -> object:
        """Continue exactly where `taken` was."""
        raise NotImplementedError

    def seed(self, seed: int, /) -> object:
        """Start anew; `seed` has 63 bits. Those of devices go on: see `Kinds`."""

    def read(self) -> Any:
        """The state as a checkpoint keeps it: plain values and arrays that are not changed any more."""
        return self.take()

    def write(self, state: Any, /) -> object:
        """Put back what `read` gave."""
        return self.put(state)


class GlobalStreams:
    """Several streams as one object with a state."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        self.streams = tuple(streams)

    def state_dict(self) -> dict[str, Tree]:
        """The state of every stream that exists, by name."""
        states = {stream.name: stream.read() for stream in self.streams}
        return {name: state for name, state in states.items() if state is not None}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Put the streams back. One that this machine has and the state has not goes on as it is.

        Raises:
            CheckpointDamaged: what is stored for one is no state of such a generator.
        """
        if not isinstance(state_dict, dict):
            raise _damaged("the random generators", state_dict)
        for stream in self.streams:
            if stream.name in state_dict:
                _write(stream, state_dict[stream.name])


def _write(stream: Stream, state: Any) -> None:
    try:
        stream.write(state)
    except (ValueError, TypeError, LookupError, OverflowError, struct.error) as error:
        raise _damaged(f"the random generator {stream.name!r}", error) from error


def _damaged(what: str, why: object) -> CheckpointDamaged:
    return CheckpointDamaged(
        problem=f"The checkpoint's state of {what} is invalid ({why!r:.200}).",
        remedy="Restart the kernel (the model was loaded already), and resume from an older checkpoint: resume=ID.",
    )


def pack_python(state: tuple[Any, ...]) -> Tree:
    """A `random.getstate()` with its 625 numbers as bytes, which are far cheaper to handle."""
    version, words, gauss = state
    return {"version": version, "words": struct.pack(f"<{len(words)}I", *words), "gauss": gauss}


def unpack_python(packed: Any) -> tuple[Any, ...]:
    """What `random.setstate` takes."""
    words = packed["words"]
    return packed["version"], struct.unpack(f"<{len(words) // 4}I", words), packed["gauss"]


def _pack_numpy(state: dict[str, Any]) -> dict[str, Any]:
    """The same for NumPy's global generator; one of another kind, set by the user, is kept as it is told."""
    if state["bit_generator"] != "MT19937":
        return state
    inner = state["state"]
    return {**state, "state": inner["pos"], "words": inner["key"].astype("<u4").tobytes()}


def _unpack_numpy(packed: Any) -> dict[str, Any]:
    if "words" not in packed:
        return dict(packed)
    words = packed["words"]
    key = struct.unpack(f"<{len(words) // 4}I", words)
    state = {name: value for name, value in packed.items() if name != "words"}
    return {**state, "state": {"key": key, "pos": packed["state"]}}


PYTHON: random.Random = random.random.__self__  # type: ignore[attr-defined]
"""The generator behind the functions of `random`."""


class PythonStream(Stream):
    """A generator of Python's, such as the global one. take 8, put 2, seed 4 µs."""

    name = "python"
    take: Callable[[], Any]
    put: Callable[[Any], object]
    seed: Callable[[int], object]

    def __init__(self, owner: random.Random = PYTHON) -> None:
        self._owner = owner
        self.take, self.put, self.seed = owner.getstate, owner.setstate, owner.seed

    def look(self) -> Look:
        return python_look(self._owner)

    def read(self) -> Tree:
        return pack_python(self._owner.getstate())

    def write(self, state: Any) -> None:
        self._owner.setstate(unpack_python(state))


class NumpyStream(Stream):
    """The generator behind `np.random.rand()`, once somebody has imported NumPy."""

    name = "numpy"

    def look(self) -> Look:
        # NumPy 2 loads this module when it is first used, which may be between a mark and the rewind.
        return NumpyLook(_numpy_random().mtrand._rand)

    def read(self) -> Any:
        return _pack_numpy(_numpy_random().get_state(legacy=False)) if "numpy" in sys.modules else None

    def write(self, state: Any) -> None:
        # It was in use when the state was read. If it is imported later only, it has to begin from there.
        _numpy_random().set_state(_unpack_numpy(state))


def _numpy_random() -> Any:
    return sys.modules.get("numpy.random") or importlib.import_module("numpy.random")


def is_generator(target: object) -> bool:
    """Is it a generator of Python's, NumPy's or torch's?"""
    return stateful(target) is not target


def stateful(target: Any) -> Any:
    """`target`; or, where it is a generator of Python's, NumPy's or torch's, what tells and takes its state."""
    if hasattr(target, "state_dict"):
        return target
    if isinstance(target, random.Random) and not isinstance(target, random.SystemRandom):
        own = PythonStream(target)
        return SimpleNamespace(state_dict=own.read, load_state_dict=own.write)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(target, numpy.random.Generator):
        target = target.bit_generator
    if numpy is not None and isinstance(target, numpy.random.BitGenerator):
        bits = target
        return SimpleNamespace(
            state_dict=lambda: bits.state, load_state_dict=lambda state: setattr(bits, "state", state)
        )
    if numpy is not None and isinstance(target, numpy.random.RandomState):
        return SimpleNamespace(state_dict=partial(target.get_state, legacy=False), load_state_dict=target.set_state)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(target, torch.Generator):
        return SimpleNamespace(state_dict=target.get_state, load_state_dict=target.set_state)
    return target
