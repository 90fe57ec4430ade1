"""The way from the first line to the first step, in parts that are timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from colabkeep.vocabulary.clock import Clock
from colabkeep.vocabulary.events import FirstStepDone

__all__ = ["Starting"]

_Opened = TypeVar("_Opened")


class Starting:
    """Notes how long each part took, from the end of the one before. `laps`: those that are over already."""

    def __init__(self, clock: Clock, laps: Mapping[str, float]) -> None:
        self.laps = dict(laps)
        self.over = False
        self._clock = clock
        self._since = clock.monotonic()

    def lap(self, name: str) -> None:
        """A part ends here. One that comes in several pieces is added up."""
        now = self._clock.monotonic()
        self.laps[name] = self.laps.get(name, 0.0) + now - self._since
        self._since = now

    def opens(self, opening: Callable[[object], _Opened], loader: object) -> _Opened:
        """Open the loader: what comes from here until the first batch is its."""
        if not self.over:
            self.lap("ready")
        return opening(loader)

    def first_step(self) -> FirstStepDone:
        """The first step is done; nothing is timed any more."""
        self.lap("step")
        self.over = True
        return FirstStepDone(laps=self.laps)
