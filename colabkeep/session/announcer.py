"""Handing events to observers and to the journal, on the training thread."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from colabkeep._engine.journal import Journal
from colabkeep.vocabulary.clock import Clock
from colabkeep.vocabulary.diary import diary_line
from colabkeep.vocabulary.events import Event, Noted

__all__ = ["Announcer"]


class Announcer:
    """Delivers events in order. An observer that fails is told of once and not called again:
    a broken display must never end a training.

    `steps_from` is the earliest time at which one of them wants to hear of a step.
    """

    def __init__(self, observers: tuple[Callable[[Event], None], ...], clock: Clock) -> None:
        self.queue: deque[Event] = deque()  # filled by the writer thread too
        self.observers = list(observers)
        self.steps_from = self._earliest()
        self._clock = clock
        self._journal: Journal | None = None
        self._said: set[str] = set()

    def write_to(self, journal: Journal) -> None:
        """Note all further events in the journal, except steps and what would be lost."""
        self._journal = journal

    def begin(self, *events: Event) -> None:
        """Deliver events before all that wait, then those."""
        self.queue.extendleft(reversed(events))
        self.drain()

    def tell(self, event: Event) -> None:
        """Queue an event and deliver all that wait."""
        self.queue.append(event)
        self.drain()

    def once(self, event: Noted) -> None:
        """The same, for a sentence that a session tells once."""
        if event.text not in self._said:
            self._said.add(event.text)
            self.tell(event)

    def drain(self) -> None:
        """Deliver what waits."""
        while self.queue:
            event = self.queue.popleft()
            line = None if self._journal is None else diary_line(event, self._clock.time())
            if self._journal is not None and line is not None:
                self._journal.add(line)
            self.deliver(event)

    def deliver(self, event: Event) -> None:
        """Hand one event to the observers now."""
        self._hand_out(event)
        self.steps_from = self._earliest()

    def _earliest(self) -> float:
        return min((getattr(each, "steps_from", -math.inf) for each in self.observers), default=math.inf)

    def _hand_out(self, event: Event) -> None:
        for observer in tuple(self.observers):
            try:
                observer(event)
            except Exception as error:  # noqa: BLE001  # see the class: told, and training goes on
                self.observers.remove(observer)
                why = f"{type(error).__name__}: {error}".splitlines()[0]
                self.queue.append(
                    Noted(text=f"An observer failed and is not called any more ({why}); training goes on.")
                )
