"""The global random streams of Python and NumPy: read, put back, and seen cheaply not to have moved."""

from __future__ import annotations

import ctypes
import importlib
import random
import struct
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from typing import Any, Protocol, TypeAlias

from colabkeep.vocabulary.errors import CheckpointDamaged
from colabkeep.vocabulary.state import Tree

__all__ = [
    "MOVED",
    "Glances",
    "NumpyStream",
    "PythonStream",
    "Stream",
    "Streams",
    "bytes_at",
    "look_through",
    "pack_python",
    "unpack_python",
]


Glances: TypeAlias = "tuple[Callable[[], object], ...]"

MOVED: Glances = (object,)
"""For a stream that cannot be glanced at: it always says that it moved."""


class Stream(Protocol):
    """One global random stream."""

    name: str
    here: bool
    """False where this installation can never draw from it (no such device in this build)."""

    @property
    def glances(self) -> Glances:
        """Calls of a tenth of a microsecond. As long as each gives what it gave before, nothing was drawn."""
        ...

    def read(self) -> Any:
        """The state, as plain values and arrays that are not changed any more; None when the stream does
        not exist (yet). Draws nothing, and takes about a microsecond if nothing was drawn since the last time."""
        ...

    def write(self, state: Any) -> None:
        """Put back what `read` gave."""
        ...


class Streams:
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


class PythonStream:
    """The generator behind `random.random()`."""

    name = "python"
    here = True

    def __init__(self) -> None:
        self._generator: random.Random = random.random.__self__  # type: ignore[attr-defined]
        self.glances = _python_glances(self._generator) if _python_glances_work() else MOVED
        self._seen: object = None
        self._state: Tree = None

    def read(self) -> Tree:
        # getstate() builds 625 integers, 8 µs; looking at the position and a few words as bytes takes 0.2 µs.
        look = look_through(self.glances)
        if look != self._seen:
            self._seen, self._state = look, pack_python(self._generator.getstate())
        return self._state

    def write(self, state: Any) -> None:
        self._generator.setstate(unpack_python(state))


class NumpyStream:
    """The generator behind `np.random.rand()`, once somebody has imported NumPy."""

    name = "numpy"
    here = True

    def __init__(self) -> None:
        self.glances: Glances = (partial(sys.modules.get, "numpy"),)
        self._found = False
        self._seen: object = None
        self._state: Any = None

    def read(self) -> Any:
        if "numpy" not in sys.modules:
            return None
        # NumPy 2 loads this module when it is first used, which may be between a mark and the rewind.
        module = sys.modules.get("numpy.random") or importlib.import_module("numpy.random")
        if not self._found:
            self.glances, self._found = _numpy_glances(module.get_state.__self__), True
        look = look_through(self.glances)  # 0.3 µs, against 25 µs for the state itself
        if look != self._seen:
            self._seen, self._state = look, _pack_numpy(module.get_state(legacy=False))
        return self._state

    def write(self, state: Any) -> None:
        # It was in use when the state was read. If it is imported later only, it has to begin from there.
        importlib.import_module("numpy.random").set_state(_unpack_numpy(state))


_HEADER = object.__basicsize__
_GLANCE = 40  # bytes: the position in the 624 words and nine of them. A draw moves the position, a refill every word
_TWISTER = 2500  # bytes of the words and the position


def bytes_at(address: int, size: int) -> Callable[[], bytes]:
    """Reads memory that somebody else owns and keeps."""
    view: memoryview = memoryview((ctypes.c_ubyte * size).from_address(address))
    return view.tobytes


def look_through(glances: Glances) -> list[object]:
    """What all the glances give now."""
    return [glance() for glance in glances]


def _python_glances(generator: random.Random) -> Glances:
    # Position and words of the Mersenne twister follow the object's header. They are compared, never used.
    return bytes_at(id(generator) + _HEADER, _GLANCE), partial(getattr, generator, "gauss_next")


def _python_glances_work() -> bool:
    """Does the layout assumed above hold on this interpreter? Tried on a generator of our own."""
    trial = random.Random(1)  # noqa: S311  # no secret
    trial.random()  # the first draw changes every word; those below change the position alone, and must be seen
    look = partial(look_through, _python_glances(trial))
    state, before = trial.getstate(), look()
    trial.random()
    drawn = look()
    trial.setstate(state)
    back = look()
    trial.gauss(0, 1)
    one = look()
    trial.gauss(0, 1)  # takes the second of a pair: moves nothing but the remembered one
    return before == back and _all_differ(before, drawn, one, look())


def _all_differ(*looks: object) -> bool:
    return not any(a == b for a, b in combinations(looks, 2))


def _numpy_glances(generator: Any) -> Glances:
    """Glances at the global RandomState, or one that always says "moved" if its layout is another."""
    trial = type(generator)(1)
    trial.random_sample()  # as above
    look = partial(look_through, _numpy_bytes(trial))
    state, before = trial.get_state(legacy=False), look()
    trial.random_sample()
    drawn = look()
    trial.set_state(state)
    back = look()
    trial.standard_normal()
    one = look()
    trial.standard_normal()  # the second of a pair, as above
    works = before == back and _all_differ(before, drawn, one, look())
    swapped = type(generator._bit_generator) is not type(trial._bit_generator)
    return MOVED if swapped or not works else _numpy_bytes(generator)


def _numpy_bytes(generator: Any) -> Glances:
    bits = generator._bit_generator  # held, so that the address stays valid whatever is put in its place
    # The position stands behind the words; the pending Gaussian sits in the RandomState itself.
    words = bytes_at(bits.ctypes.state_address + _TWISTER - _GLANCE, _GLANCE)
    own = bytes_at(id(generator) + _HEADER, type(generator).__basicsize__ - _HEADER)
    # After np.random.set_bit_generator the layout is no longer the one tried.
    return words, own, partial(_moved_unless, generator, bits)


def _moved_unless(generator: Any, bits: Any) -> object:
    return None if generator._bit_generator is bits else object()
