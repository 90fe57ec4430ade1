"""The real clock."""

from __future__ import annotations

import time

__all__ = ["SystemClock"]


class SystemClock:
    """The machine's time."""

    monotonic = staticmethod(time.monotonic)
    """Seconds that never run backwards."""

    def time(self) -> float:
        """Seconds since 1970 (UTC)."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Wait that many seconds."""
        time.sleep(seconds)
