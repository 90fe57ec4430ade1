"""When to show a state again: not too often, at once when it has become another one, and always at the end."""

from __future__ import annotations

from colabkeep.faces.panel.model import Panel
from colabkeep.faces.panel.state import FINAL, PanelState, Phase
from colabkeep.vocabulary.clock import Clock
from colabkeep.vocabulary.events import Event, StepDone

__all__ = ["Paced"]

_RUSH = 0.25  # seconds between two showings at least, also where the state changes with every step


class Paced:
    """A panel that is shown every `pause` seconds. By the clock's `monotonic`, `next` is the time when it is due, and
    `steps_from` the one from which a step is wanted again: a showing between, for a save, does not put that off."""

    def __init__(self, clock: Clock, start: PanelState, pause: float) -> None:
        self.panel = Panel(clock, start)
        self.next = self.steps_from = clock.monotonic()
        self._clock = clock
        self._pause = pause
        self._shown: Phase | None = None

    def due(self, event: Event) -> PanelState | None:
        """Take an event; the state, if it is to be shown now."""
        self.panel.take(event)
        now, state = self._clock.monotonic(), self.panel.state
        if isinstance(event, StepDone):
            self.steps_from = now + self._pause
        changed = state.phase != self._shown
        rushed = now < self.next - self._pause + _RUSH
        if not (state.phase in FINAL or now >= self.next or (changed and not rushed)):
            return None
        self.next, self._shown = now + self._pause, state.phase
        return state
