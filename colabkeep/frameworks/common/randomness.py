"""The global random streams of Python and NumPy: read and put back."""

from __future__ import annotations

import importlib
import random
import struct
import sys
from collections.abc import Sequence
from typing import Any, Protocol

from colabkeep.frameworks.common.looks import Look, NumpyLook, python_look
from colabkeep.vocabulary.errors import CheckpointDamaged
from colabkeep.vocabulary.state import Tree

__all__ = ["NumpyStream", "PythonStream", "Stream", "Streams", "pack_python", "unpack_python"]


class Stream(Protocol):
    """One global random stream."""

    name: str
    here: bool
    """False where this installation can never draw from it (no such device in this build)."""

    def look(self) -> Look | None:
        """A look at it as it is now. None: it has to be read each time."""
        ...

    def read(self) -> Any:
        """The state, as plain values and arrays that are not changed any more; None when the stream does
        not exist (yet). Draws nothing."""
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

    def look(self) -> Look:
        return python_look(self._generator)

    def read(self) -> Tree:
        return pack_python(self._generator.getstate())

    def write(self, state: Any) -> None:
        self._generator.setstate(unpack_python(state))


class NumpyStream:
    """The generator behind `np.random.rand()`, once somebody has imported NumPy."""

    name = "numpy"
    here = True

    def look(self) -> Look | None:
        # NumPy 2 loads this module when it is first used, which may be between a mark and the rewind.
        return NumpyLook(_numpy_random().mtrand._rand) if "numpy" in sys.modules else None

    def read(self) -> Any:
        return _pack_numpy(_numpy_random().get_state(legacy=False)) if "numpy" in sys.modules else None

    def write(self, state: Any) -> None:
        # It was in use when the state was read. If it is imported later only, it has to begin from there.
        _numpy_random().set_state(_unpack_numpy(state))


def _numpy_random() -> Any:
    return sys.modules.get("numpy.random") or importlib.import_module("numpy.random")
