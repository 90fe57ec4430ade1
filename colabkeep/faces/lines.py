"""A run as lines of text: what happened, and how far it is; on a terminal that is one line that moves."""

from __future__ import annotations

import math
import os
import sys
from typing import TextIO

from colabkeep.faces.panel.line import line
from colabkeep.faces.panel.model import Panel
from colabkeep.faces.panel.saving import last_save
from colabkeep.faces.panel.state import PanelState
from colabkeep.faces.panel.told import sentence
from colabkeep.vocabulary.clock import Clock
from colabkeep.vocabulary.durability import Durability
from colabkeep.vocabulary.events import (
    DurabilityTold,
    EpochDone,
    Event,
    LengthTold,
    Restored,
    SaveCommitted,
    SaveSkipped,
    StepDone,
)

__all__ = ["Lines", "text_stream"]

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
