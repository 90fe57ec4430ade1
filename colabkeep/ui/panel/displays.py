"""The displays of a run: lines of text, one HTML output in a notebook, and a page and a record beside the
checkpoints.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import sys
from html import escape
from importlib import import_module
from typing import Any, TextIO

from colabkeep.core.arguments import run_folder
from colabkeep.core.durability import Durability
from colabkeep.core.events import (
    DurabilityTold,
    EpochDone,
    Event,
    LengthTold,
    Restored,
    RunStarted,
    SaveCommitted,
    SaveSkipped,
    StepDone,
)
from colabkeep.core.system import Clock
from colabkeep.stores.shared.files import write_note
from colabkeep.ui.drawing import Markup
from colabkeep.ui.panel.messages import sentence
from colabkeep.ui.panel.model import Paced, Panel, last_save
from colabkeep.ui.panel.render import line, render, says, utc
from colabkeep.ui.panel.state import PanelState

__all__ = [
    "Lines",
    "NoFrontEnd",
    "NotebookPanel",
    "Output",
    "StatusFiles",
    "record",
    "text_stream",
]

_MORE = "\n            "  # goes on below "[colabkeep] "
_MOVING = 0.5  # seconds between two refreshes of the moving line; reading the loss may wait for the GPU
_MUCH = 1800.0  # seconds of training that may be lost before that is said again
_FIRST = 5.0  # seconds until the first progress line where lines stay (files, logs)
_PRINTED = 30.0  # seconds between the others: a day of training makes some 300 kB
_EPOCHS = 10  # are told one by one
_EPOCHS_PAUSE = 5.0  # seconds between the others: a loop of one-step epochs ends thousands of them
_WIDE = 80  # columns of a terminal that does not tell


class Lines:
    """Writes to `stream` (stdout by default). An observer of a run's events, with the run's own `clock`.

    `moving`: may a line be written over, if the stream is a terminal? `steps_from`: the time from which it wants to
    hear of a step again.
    """

    def __init__(
        self,
        clock: Clock,
        stream: TextIO | None = None,
        *,
        start: PanelState | None = None,
        moving: bool = True,
    ) -> None:
        self._clock = clock
        self._panel = Panel(clock, start)
        self._stream = sys.stdout if stream is None else stream
        self._moving = moving and self._stream.isatty()
        self._pause = _MOVING if self._moving else _PRINTED
        self.steps_from = clock.monotonic() + (_MOVING if self._moving else _FIRST)
        self._width = 0
        self._skipped = 0
        self._said_copies: set[str] = set()  # the ways in which a state was copied that were told
        self._epochs = 0  # told
        self._epochs_from = -math.inf  # when the next one may be told
        self._last_epoch: int | None = None  # the number of epochs that there will be, if that is known
        self._said_lost: float | None = None  # seconds, when it was said last what would be lost

    def __call__(self, event: Event) -> None:
        """Show an event.

        Raises:
            OSError, ValueError: the stream cannot be written any more.
        """
        if type(event) is StepDone:
            now = self._clock.monotonic()
            if now >= self.steps_from:
                self._panel.take(event)
                self.steps_from = now + self._pause
                self._show(line(self._panel.state))
            return
        self._panel.take(event)
        if isinstance(event, DurabilityTold) and not self._matters(event.durability):
            return
        if isinstance(event, Restored) and self._panel.state.complete_since is not None:
            return  # it does not go on
        if isinstance(event, LengthTold) and event.max_epochs is not None:
            self._last_epoch = event.max_epochs
        if isinstance(event, EpochDone) and not self._tells_end(event):
            return
        self._skipped += type(event) is SaveSkipped
        said = self._copied(event) if isinstance(event, SaveCommitted) else sentence(event)
        if said is not None and not (type(event) is SaveSkipped and self._skipped > 1):
            self._line(f"[colabkeep] {said.replace(chr(10), _MORE)}")

    def _copied(self, event: SaveCommitted) -> str | None:
        """What the save cost training, the first time that it went this way."""
        if event.copy in self._said_copies:
            return None
        self._said_copies.add(event.copy)
        return last_save(self._panel.state) or None

    def _matters(self, durability: Durability) -> bool:
        """Say what would be lost once something is safe, and again when it is much, each time it has doubled."""
        lost, before = durability.lost_seconds, self._said_lost
        safe_at_last = before is None and durability.rung is not None and lost > 0
        said = safe_at_last or lost >= max(_MUCH, 2 * (before or 0.0))
        self._said_lost = lost if said else before
        return said

    def _tells_end(self, event: EpochDone) -> bool:
        """Say the end of this epoch: of the first ones and the last one, and of the others now and then."""
        now, self._epochs = self._clock.monotonic(), self._epochs + 1
        if self._epochs > _EPOCHS and now < self._epochs_from and event.epoch + 1 != self._last_epoch:
            return False
        self._epochs_from = now + _EPOCHS_PAUSE
        return True

    def _show(self, text: str) -> None:
        if not self._moving:
            self._line(text)
            return
        text = text[: _columns(self._stream) - 1]  # a line that is broken in two cannot be written over
        self._stream.write("\r" + self._writable(text).ljust(self._width))
        self._stream.flush()
        self._width = len(text)

    def _line(self, text: str) -> None:
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._width = 0
        self._stream.write(self._writable(text) + "\n")
        self._stream.flush()

    def _writable(self, text: str) -> str:
        """The text, with question marks for what a locale of other letters has none for: no display ends for that."""
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        return text.encode(encoding, "replace").decode(encoding, "replace")


def text_stream() -> TextIO | None:
    """Where lines of text go: the standard output, or the standard error where that one is closed; None where there is
    neither."""
    return next((stream for stream in (sys.stdout, sys.stderr) if stream is not None and not stream.closed), None)


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or _WIDE
    except (OSError, ValueError):  # a terminal that does not tell, or a stream that is no file
        return _WIDE


PAUSE = 1.0
"""Seconds between two updates. A page needs some 14 ms for each; a burst of 2,000 kept JupyterLab busy for half a
minute (JupyterLab 4.6.6, measured 2026-11)."""


class NoFrontEnd(RuntimeError):
    """There is no kernel whose front end could show HTML."""


class Output:
    """One output of the cell that runs: shown once, then replaced in place.

    It goes by its own identifier, since `display(…, display_id=True)` gives None outside a kernel. Call it from the
    thread that runs the cell: ipykernel 7.0.0 and 7.0.1 raise LookupError elsewhere.
    """

    def __init__(self) -> None:
        self._id = f"colabkeep-{secrets.token_hex(8)}"
        self._shown = False

    def show(self, html: str, text: str) -> None:
        """Show both forms; the front end takes what it can.

        Raises:
            NoFrontEnd: this is no kernel.
        """
        ipython = import_module("IPython")
        shell = ipython.get_ipython()
        if shell is None or not hasattr(shell, "kernel"):
            raise NoFrontEnd("no notebook kernel runs this code")
        display = import_module("IPython.display").display
        display({"text/html": html, "text/plain": text}, raw=True, display_id=self._id, update=self._shown)
        self._shown = True


class NotebookPanel:
    """Shows a run in one output. An observer of its events.

    `steps_from`: the time from which it wants to hear of a step again.
    """

    def __init__(self, clock: Clock, start: PanelState, *, pause: float = PAUSE) -> None:
        self._paced = Paced(clock, start, pause)
        self._output = Output()

    @property
    def steps_from(self) -> float:
        """When the next update is due."""
        return self._paced.steps_from

    def __call__(self, event: Event) -> None:
        """Take an event, and show the state if it is time.

        Raises:
            Exception: the front end cannot show it.
        """
        state = self._paced.due(event)
        if state is not None:
            self._output.show(self.draw(state), line(state))

    def draw(self, state: PanelState) -> Markup:
        """The state as HTML."""
        return render(state)


# They are written where the checkpoints lie on this machine's own disk, next to the run's folder:
# ``<folder>.status.html`` and ``<folder>.status.json``. A mounted drive or a remote gets none: replacing a file is what
# those do not do reliably. Nothing reads them but people and their programs.


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
