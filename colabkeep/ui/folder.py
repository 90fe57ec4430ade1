"""What a kept folder says while a program works in it, as lines of text in a terminal, a log or a notebook."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from colabkeep.core import events
from colabkeep.core.events import Durability, Event
from colabkeep.core.language import said
from colabkeep.ui.messages import clause_as_sentence, sentence
from colabkeep.ui.text import size_text

__all__ = ["FolderLines"]

_FIRST = 5  # versions that are told one by one
_PAUSE = timedelta(minutes=10)  # between the others: a night of versions a minute apart is some 60 lines
_PATIENCE = timedelta(minutes=1)
_MUCH = 600.0  # seconds of work that may be lost before that is said again, and then each time it has doubled
# Of these there are clauses, for the panel's list of events.
_CLAUSES = (
    events.RunStarted,
    events.RunStopped,
    events.Restored,
    events.SaveFailing,
    events.SpaceShort,
    events.DeadlineNear,
)


class FolderLines:
    """An observer that writes a line for what a user wants to know: of versions the first ones, then one now and then;
    what would be lost, when something is safe at last, when it is much, and at the end.

    `write` takes a line without its end.
    """

    def __init__(self, write: Callable[[str], object], now: Callable[[], datetime] = datetime.now) -> None:
        self._write, self._now = write, now
        self._versions = 0  # told
        self._told_at: datetime | None = None
        self._began: datetime | None = None  # when something was seen first
        self._lost: float | None = None  # seconds, when it was said last what would be lost
        self._said = ""
        self._over = False

    def __call__(self, event: Event) -> None:
        """Tell of an event."""
        for line in said(self._text(event) or "").splitlines():
            self._write(f"[colabkeep {self._now():%H:%M:%S}] {line}")

    def _text(self, event: Event) -> str | None:
        match event:
            case events.SaveCommitted():
                return self._made(event)
            case events.DurabilityTold():
                return self._safety(event.durability)
            case events.FolderSeen():
                return self._waiting(event)
            case events.RunStopped():
                self._over = True
        told = sentence(event, folder=True)
        if told is None or not isinstance(event, _CLAUSES):
            return told
        return "\n".join(map(clause_as_sentence, told.splitlines()))

    def _waiting(self, event: events.FolderSeen) -> str | None:
        """Once, where a while has passed and no version could be made."""
        now = self._now()
        self._began = self._began or now
        if self._versions or not event.waits or now - self._began < _PATIENCE:
            return None
        self._versions += 1
        return f"No version could be made in this session yet: {event.waits}."

    def _made(self, event: events.SaveCommitted) -> str | None:
        now, self._versions = self._now(), self._versions + 1
        wanted = event.reason in ("end", "asked", "deadline") or self._versions <= _FIRST
        if not wanted and self._told_at is not None and now - self._told_at < _PAUSE:
            return None
        self._told_at = now
        size, written = size_text(event.bytes), size_text(event.written)
        return f"Version {event.progress.step} is made: {size}, {written} of that new."

    def _safety(self, durability: Durability) -> str | None:
        lost, before = durability.lost_seconds, self._lost
        at_last = before is None and durability.rung is not None
        if not (self._over or at_last or lost >= max(_MUCH, 2 * (before or 0.0))):
            return None
        self._lost = lost
        before_it, self._said = self._said, durability.sentence
        return None if before_it == self._said else self._said
