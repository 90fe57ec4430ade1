"""A training that is tried out: its runs are kept in memory, saved when they are told to, and may be killed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import ContextVar
from types import FrameType
from typing import Any

from colabkeep.frameworks import open_framework
from colabkeep.session.census import census
from colabkeep.session.keeper import Killed
from colabkeep.stores.base import Store
from colabkeep.vocabulary.events import Event, Restored, RestoredInexactly, RunStarted, SaveStarted, StepDone
from colabkeep.vocabulary.policies import SaveMark
from colabkeep.vocabulary.progress import Progress

__all__ = ["REHEARSAL", "Rehearsal", "Spot"]

Spot = tuple[str, int]
"""A run, and the step of a checkpoint of it."""

_STEPS = tuple(2**n - 2 for n in range(2, 40))  # 2, 6, 14, 30 …: few, whatever the length, and in odd places


class Rehearsal:
    """One call of the user's function. `die_at`: it is killed in the step after this checkpoint. `found`: what there
    was outside of the checkpoint, in the step after each one. `told`: why a resume was said not to be exact.
    `framework`: of the runs."""

    def __init__(self, store: Store, die_at: Spot | None = None) -> None:
        self.found: dict[Spot, dict[str, str]] = {}
        self.told: list[str] = []
        self.steps: dict[str, int] = {}  # of each run, the last one
        self.store = store
        self.framework = "numpy"
        self._die_at = die_at

    def words(self, observers: tuple[Callable[[Event], None], ...]) -> dict[str, Any]:
        """The arguments of a run that are ours to say."""
        return {
            "storage": self.store,
            "resume": "auto",
            "save_every": _Now(),
            "keep_last": None,
            "max_time": None,
            "flush_timeout": 0,
            "observers": (*observers, _Watch(self).heard),
        }

    def call(self, train: Callable[[], object]) -> object:
        """Call the function; a kill ends it."""
        token = REHEARSAL.set(self)
        try:
            return train()
        except Killed:
            return None
        finally:
            REHEARSAL.reset(token)

    def stepped(self, run: str, step: int, saved: int | None) -> None:
        """A step of a run is done; `saved`: the step of the checkpoint that was made before it, or resumed from."""
        self.steps[run] = step
        if saved is None:
            return
        self.found[run, saved] = census(_variables(sys._getframe(1)), open_framework(self.framework))
        if (run, saved) == self._die_at:
            raise Killed


REHEARSAL: ContextVar[Rehearsal | None] = ContextVar("colabkeep_rehearsal", default=None)
"""The one under way, for runs that the user's function makes."""


class _Now:
    """Saves after few steps, the same ones in each call."""

    def due(self, progress: Progress, last: SaveMark, now: float) -> str | None:
        between = (step for step in _STEPS if last.progress.step < step <= progress.step)
        return "rehearsal" if next(between, None) is not None else None


class _Watch:
    """Hears the events of one run."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self._rehearsal = rehearsal
        self._run = ""
        self._saved: int | None = None

    def heard(self, event: Event) -> None:
        """Take an event."""
        if isinstance(event, RunStarted):
            self._run = event.run
        elif isinstance(event, (SaveStarted, Restored)):
            self._saved = event.progress.step
        elif isinstance(event, RestoredInexactly):
            self._rehearsal.told.append(event.reason)
        elif isinstance(event, StepDone):
            saved, self._saved = self._saved, None
            self._rehearsal.stepped(self._run, event.progress.step, saved)


def _variables(frame: FrameType | None) -> dict[str, object]:
    """The variables of the user's functions that are under way, and the globals that they name."""
    found: dict[str, object] = {}
    while frame is not None and frame.f_code is not Rehearsal.call.__code__:
        module = str(frame.f_globals.get("__name__"))
        if not module.startswith("colabkeep.") or module.startswith(("colabkeep.testing.", "colabkeep.examples.")):
            where = frame.f_code.co_name
            found |= {f"{where}: {name}": value for name, value in frame.f_locals.items()}
            names = (name for name in frame.f_code.co_names if name in frame.f_globals)
            found |= {f"global {name}": frame.f_globals[name] for name in names}
        frame = frame.f_back
    return found
