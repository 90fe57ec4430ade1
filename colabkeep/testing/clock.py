"""A clock that stands still until a test moves it."""

from __future__ import annotations

import threading

__all__ = ["FakeClock"]


class FakeClock:
    """Implements `colabkeep.core.system.Clock`. `sleep` returns at once and moves the time on.

    `slept` lists, in seconds, what was asked of `sleep`.
    """

    def __init__(self, *, time: float = 1_700_000_000.0, monotonic: float = 0.0) -> None:
        self._time = time
        self._monotonic = monotonic
        self._guard = threading.Lock()
        self.slept: list[float] = []

    def time(self) -> float:
        return self._time

    def monotonic(self) -> float:
        return self._monotonic

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Let that many seconds pass.

        Raises:
            ValueError: the number is negative; only `set_time` goes back.
        """
        if seconds < 0:
            raise ValueError(f"time does not run backwards: {seconds} seconds")
        with self._guard:
            self._time += seconds
            self._monotonic += seconds

    def set_time(self, time: float) -> None:
        """Set the wall clock, forwards or backwards, as a network time service does; `monotonic` is not moved."""
        with self._guard:
            self._time = time
