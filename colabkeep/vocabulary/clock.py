"""Time is an argument. The real clock is `colabkeep.session.clock.SystemClock`."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Clock"]


class Clock(Protocol):
    """The only source of time."""

    def time(self) -> float:
        """Wall-clock time, in seconds since 1970 (UTC). May jump; used for dates only."""
        ...

    def monotonic(self) -> float:
        """Seconds that never run backwards, for measuring. Zero is arbitrary."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait that many seconds."""
        ...
