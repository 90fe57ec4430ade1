"""Handing events to observers and to the journal, on the training thread."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from colabkeep._engine.journal import Journal
from colabkeep.vocabulary.clock import Clock
from colabkeep.vocabulary.events import DurabilityTold, Event, Noted, StepDone

__all__ = ["Announcer"]

_NOT_FOR_THE_JOURNAL = (StepDone, DurabilityTold)  # too many; and what was lost is known once the machine is gone


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
            if self._journal is not None and not isinstance(event, _NOT_FOR_THE_JOURNAL):
                self._journal.add({"at": self._clock.time(), "event": type(event).__name__, **_record(event)})
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


def _record(value: Any) -> dict[str, Any]:
    return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return _record(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(member) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(member) for member in value]
    if isinstance(value, float) and value - value != 0:
        return repr(value)
    return value
