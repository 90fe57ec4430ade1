"""Whether a save hides its copy behind the next step, chosen by what both ways cost on this machine."""

from __future__ import annotations

from collections import deque
from statistics import median

__all__ = ["HIDDEN", "STOPPED", "Choice"]

HIDDEN = "copied while the next step ran"
STOPPED = "copied at once"

_KEPT = 3  # measurements of each way: enough to outlive one that other work disturbed
_NEEDED = 2  # of the hidden way, before the other is tried
_CLEARLY = 0.3  # of what the copy itself takes: cheaper than that, no comparison is needed
_RETRY = 16  # saves until the way that lost is measured again: a machine may have been busy
_TORN = 2  # snapshots that were changed under the copy until hiding ends


class Choice:
    """Which way the next save is copied. All costs in seconds of training time.

    The first save hides its copy, which also hides the first touch of fresh memory, and is not counted.
    """

    def __init__(self) -> None:
        self._costs: dict[bool, deque[float]] = {True: deque(maxlen=_KEPT), False: deque(maxlen=_KEPT)}
        self._work: deque[float] = deque(maxlen=_KEPT)
        self._since_other = 0
        self._torn = 0
        self._stop_once = False
        self._stopped_once = False  # was the last choice made for that?

    def hides(self) -> bool:
        """Shall the next copy be hidden?"""
        self._stopped_once, self._stop_once = self._stop_once, False
        if self._stopped_once or self._torn >= _TORN:
            return False
        hidden = self._costs[True]
        if len(hidden) < _NEEDED or min(hidden) <= _CLEARLY * median(self._work):
            return True
        if not self._costs[False]:
            return False
        self._since_other += 1
        wins = self._hiding_wins()
        if self._since_other >= _RETRY:
            self._since_other = 0
            return not wins
        return wins

    def note(self, hidden: bool, cost: float, work: float) -> None:
        """A save cost training `cost`; the copy itself took `work`."""
        self._costs[hidden].append(cost)
        if hidden:
            self._work.append(work)

    def tore(self) -> None:
        """A hidden copy was changed under way: the next is made at once, and after two of these all are."""
        self._torn += 1
        self._stop_once = True

    @property
    def why_stopped(self) -> str:
        """One clause: why the copy is not hidden, as far as that was chosen here."""
        if self._torn >= _TORN:
            return "weights were changed twice between a save and the next step"
        if self._stopped_once:
            return "the save before was changed under way"
        if not self._costs[False] or self._hiding_wins():
            return "tried for this save, to measure what it costs"
        return "measured to cost this training less"

    def _hiding_wins(self) -> bool:
        """By what both ways cost when last measured."""
        return median(self._costs[True]) <= median(self._costs[False])
