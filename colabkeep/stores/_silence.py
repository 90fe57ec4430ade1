"""How long a place has said nothing to those who ask it: a call that waits, and tries again, fails minutes later."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from typing import Any

from colabkeep.stores._posix import Files

__all__ = ["SECONDS", "Silence", "watched"]

SECONDS = 20.0
"""After so long it is told. Whoever trains hears of it within half a minute: it is looked for once a second."""


class Silence:
    """Asked by any thread, from any number of them. `monotonic` is the time in seconds."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._asked: dict[int, float] = {}  # thread → since when it asks
        self._heard = -math.inf  # when anything came back last
        self._given_up = False  # did somebody stop asking who had heard nothing for so long?

    @property
    def lasts(self) -> bool:
        """Is somebody asking, and has heard nothing for long? Or was, and nothing has come since?"""
        return self._given_up or any(map(self._is_long, list(self._asked.values())))

    @contextmanager
    def asking(self) -> Iterator[None]:
        """While this thread asks, all its attempts and the pauses between them included."""
        me = threading.get_ident()
        if me in self._asked:
            yield
            return
        self._asked[me] = since = self._monotonic()
        try:
            yield
        finally:
            self._given_up |= self._is_long(since)  # first: the silence is not over when nobody asks any more
            del self._asked[me]

    def heard(self) -> None:
        """Something came back, or went there."""
        self._heard = self._monotonic()
        self._given_up = False

    def _is_long(self, since: float) -> bool:
        return self._monotonic() - max(since, self._heard) > SECONDS


def watched(files: Files, silence: Silence) -> Files:
    """The same system calls; one that does not come back is a silence, one that fails is none."""

    def call(real: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        with silence.asking():
            try:
                return real(*args, **options)
            finally:
                silence.heard()

    return Files(**{one.name: partial(call, getattr(files, one.name)) for one in fields(files)})
