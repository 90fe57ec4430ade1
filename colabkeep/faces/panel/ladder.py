"""A display that can be relied on: when it fails, the next simpler one takes its place and says so once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from colabkeep.vocabulary.events import Event, Noted, RunStarted

__all__ = ["Display", "Ladder", "Silence"]

Display: TypeAlias = Callable[[Event], None]
"""An observer of a run's events; it may have `steps_from`."""


class Silence:
    """A display for a process that has nowhere to write to."""

    steps_from = math.inf

    def __call__(self, event: Event) -> None:
        """Nothing."""


class Ladder:
    """The first of `displays` that works, made when it is needed; each comes with what people call it."""

    def __init__(self, displays: Sequence[tuple[str, Callable[[], Display]]]) -> None:
        self._left = list(displays)
        self._name, make = self._left.pop(0)
        self._display = make()
        self._started: RunStarted | None = None

    @property
    def steps_from(self) -> float:
        """When the display in use wants to hear of a step again."""
        return float(getattr(self._display, "steps_from", -math.inf))

    def __call__(self, event: Event) -> None:
        """Show an event.

        Raises:
            Exception: the simplest of the displays failed, too.
        """
        if isinstance(event, RunStarted):
            self._started = event
        while True:
            try:
                self._display(event)
            except Exception as error:
                if not self._left:
                    raise
                self._step_down(event, error)
            else:
                return

    def _step_down(self, event: Event, error: Exception) -> None:
        failed = self._name
        self._name, make = self._left.pop(0)
        self._display = make()
        why = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
        try:
            self._display(Noted(text=f"{failed} cannot be shown here ({why}); {self._name} instead."))
            if self._started is not None and event is not self._started:
                self._display(self._started)
        except Exception:  # noqa: BLE001  # it will fail with the event itself, too, and then the next one is taken
            return
