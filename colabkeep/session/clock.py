"""The real clock."""

from __future__ import annotations

import time

__all__ = ["SystemClock"]


class SystemClock:
    """The machine's time."""

    def time(self) -> float:
        """Seconds since 1970 (UTC)."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that never run backwards."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait that many seconds."""
        time.sleep(seconds)
