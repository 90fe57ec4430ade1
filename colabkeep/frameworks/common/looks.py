"""Random streams seen where they lie in memory: whether one has moved, and back.

A state that is asked for costs 8 µs (Python's) or 25 (NumPy's), because 624 words become as many objects. All bytes of
it compared where they stand cost a tenth of a microsecond. Where they do not stand as expected, which is found
out on the generator itself or on one of its kind, it is asked for all the same.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Asked", "Look", "NumpyLook", "Seen", "numpy_words", "python_look", "view_at"]

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
