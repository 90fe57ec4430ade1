"""How soon may a place be given more, so that it never has to refuse?"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from colabkeep.vocabulary.budget import Limit

__all__ = ["Allowance"]

_AT_ONCE = 1 / 8  # of the limit: the first saves of a session, and those that somebody waits for
_LAST = 0.95  # of the limit: what somebody waits for goes on until then


class Allowance:
    """What was `spent` of a limit by this process, and for how long to `rest` before more of it is. An eighth may go at
    once; what follows is spread, so that no hour has a gap in which nothing is saved. `monotonic` gives seconds."""

    def __init__(self, limit: Limit, monotonic: Callable[[], float]) -> None:
        self._limit = limit
        self._monotonic = monotonic
        self._at_once = limit.most * _AT_ONCE
        self._apart = limit.seconds / (limit.most * (0.9 - _AT_ONCE))
        self._spent: deque[float] = deque()  # when, within the time of the limit
        self._level, self._since = 0.0, monotonic()  # of what was spent faster than it may be for ever
        self._closed_until = -math.inf

    def spent(self) -> None:
        """One more."""
        now = self._now()
        self._level = self._drained(now) + 1.0
        self._since = now
        self._spent.append(now)

    def refused(self, seconds: float) -> None:
        """The place wants to be left alone for so long."""
        self._closed_until = self._now() + seconds

    def rest(self, *, urgent: bool) -> float:
        """Seconds until the next one may be spent. `urgent`: somebody waits for it."""
        now = self._now()
        closed = self._closed_until - now
        if len(self._spent) >= self._limit.most * _LAST:
            return max(0.0, closed, self._spent[0] + self._limit.seconds - now)
        return max(0.0, closed, 0.0 if urgent else (self._drained(now) + 1.0 - self._at_once) * self._apart)

    def _drained(self, now: float) -> float:
        return max(0.0, self._level - (now - self._since) / self._apart)

    def _now(self) -> float:
        now = self._monotonic()
        while self._spent and self._spent[0] <= now - self._limit.seconds:
            self._spent.popleft()
        return now
