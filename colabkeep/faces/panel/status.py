"""A page and a record beside the checkpoints, for whoever looks without the kernel: in a file browser, or by a program.

They are written where the checkpoints lie on this machine's own disk, next to the run's folder:
``<folder>.status.html`` and ``<folder>.status.json``. A mounted drive or a remote gets none: replacing a file is what
those do not do reliably. Nothing reads them but people and their programs.
"""

from __future__ import annotations

import json
from html import escape
from typing import Any

from colabkeep.faces.panel.html import render
from colabkeep.faces.panel.pacing import Paced
from colabkeep.faces.panel.sentences import says, utc
from colabkeep.faces.panel.state import PanelState
from colabkeep.stores.notes import write_note
from colabkeep.vocabulary.clock import Clock
from colabkeep.vocabulary.events import Event, RunStarted
from colabkeep.vocabulary.names import run_folder

__all__ = ["StatusFiles", "record"]

_PAUSE = 30.0  # seconds between two writings


class StatusFiles:
    """Keeps the two files up to date. An observer of a run's events.

    `steps_from`: the time from which it wants to hear of a step again.
    """

    def __init__(self, clock: Clock, start: PanelState) -> None:
        self._paced = Paced(clock, start, _PAUSE)
        self._folder: str | None = None

    @property
    def steps_from(self) -> float:
        """When the next writing is due."""
        return self._paced.steps_from

    def __call__(self, event: Event) -> None:
        """Take an event, and write if it is time.

        Raises:
            StoreError: the files cannot be written.
        """
        if isinstance(event, RunStarted):
            self._folder = event.folder
        state = self._paced.due(event)
        if state is None or self._folder is None:
            return
        name = run_folder(state.run)
        write_note(self._folder, f"{name}.status.json", json.dumps(record(state), indent=1).encode())
        write_note(self._folder, f"{name}.status.html", _page(state).encode(errors="replace"))


def record(state: PanelState) -> dict[str, Any]:
    """The state for programs, in words that do not change with the language; None is what is not known."""
    place, left, own = state.place, state.session_left, state.newest_own
    return {
        "as_of": utc(state.now, "%Y-%m-%dT%H:%M:%SZ"),
        "run": state.run,
        "session": state.session,
        "state": state.phase,
        "text": says(state),
        "step": state.progress.step,
        "steps_in_all": state.total_steps,
        "epoch": state.progress.epoch,
        "share": _number(state.share),
        "loss": _number(state.loss),
        "steps_per_second": _number(state.steps_per_second),
        "seconds_left": _number(state.seconds_left),
        "safe_step": state.safe_step,
        "would_lose": {"steps": state.lost_steps, "seconds": _number(state.lost_seconds)},
        "session_seconds_left": {"at_most": _number(left), "source": state.ends_source},
        "not_finite_since": state.nan_since,
        "exactness": {"word": state.exactness, "text": state.promise, "reasons": list(state.reasons)},
        "cadence": "" if state.cadence is None else state.cadence.sentence(),
        "last_save": None if own is None else {"stopped_training_seconds": _number(own.stall), "copy": own.copy},
        "storage": state.storage if place is None else place.url,
        "platform": state.platform,
        "accelerators": list(state.accelerators),
        "checkpoints": [
            {"id": saved.checkpoint, "step": saved.step, "bytes": saved.bytes, "rung": saved.rung}
            for saved in state.saves
            if not saved.gone
        ],
    }


def _page(state: PanelState) -> str:
    # The panel alone: a page that is opened has been read from the disk once, so its mark would say nothing.
    return (
        '<!DOCTYPE html><html><head><meta charset="utf-8"><meta http-equiv="refresh" content="30">'
        f"<title>{escape(state.run)}</title></head><body>{render(state)}</body></html>\n"
    )


def _number(value: float | None) -> float | None:
    """A number that strict JSON has; None for what is not finite."""
    return None if value is None or value - value != 0 else round(value, 6)
