"""A run as lines of text: what happened, and on a terminal one line that moves."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, TextIO

from colabkeep.faces.tables import size_text
from colabkeep.session.history import as_number
from colabkeep.vocabulary.clock import Clock
from colabkeep.vocabulary.durability import Durability
from colabkeep.vocabulary.durations import duration_text
from colabkeep.vocabulary.events import (
    CatchingUp,
    CheckpointSetAside,
    DeadlineNear,
    DurabilityTold,
    EpochDone,
    Event,
    Noted,
    Restored,
    RestoredInexactly,
    RunStarted,
    RunStopped,
    SaveFailing,
    SaveSkipped,
    SpaceShort,
    StepDone,
    StoreDegraded,
)

__all__ = ["Lines"]

_MORE = "\n            "  # goes on below "[colabkeep] "
_MOVING = 0.5  # seconds between two refreshes of the moving line; reading the loss may wait for the GPU
_MUCH = 1800.0  # seconds of training that may be lost before that is said again
_PRINTED = 30.0  # seconds between two progress lines where lines stay (files, logs)


class Lines:
    """Writes to `stream` (stdout by default). An observer of a run's events, with the run's own `clock`.

    `steps_from`: the time from which it wants to hear of a step again.
    """

    def __init__(self, clock: Clock, stream: TextIO | None = None) -> None:
        self._clock = clock
        self._stream = stream if stream is not None else sys.stdout
        self._moving = self._stream.isatty()
        self._pause = _MOVING if self._moving else _PRINTED
        self.steps_from = clock.monotonic() + self._pause
        self._width = 0
        self._skipped = 0
        self._said_lost: float | None = None  # seconds, when it was said last what would be lost

    def __call__(self, event: Event) -> None:
        """Show an event."""
        if type(event) is StepDone:
            now = self._clock.monotonic()
            if now >= self.steps_from:
                self.steps_from = now + self._pause
                self._show(_progress(event))
            return
        if isinstance(event, DurabilityTold) and not self._matters(event.durability):
            return
        self._skipped += type(event) is SaveSkipped
        sentence = _SENTENCES.get(type(event))
        if sentence is not None and not (type(event) is SaveSkipped and self._skipped > 1):
            self._line(f"[colabkeep] {sentence(event)}")

    def _matters(self, durability: Durability) -> bool:
        """Say what would be lost once something is safe, and again when it is much, each time it has doubled."""
        lost, before = durability.lost_seconds, self._said_lost
        safe_at_last = before is None and durability.rung is not None
        said = safe_at_last or lost >= max(_MUCH, 2 * (before or 0.0))
        self._said_lost = lost if said else before
        return said

    def _show(self, text: str) -> None:
        if not self._moving:
            self._line(f"[colabkeep] {text}")
            return
        self._stream.write("\r" + text.ljust(self._width))
        self._stream.flush()
        self._width = len(text)

    def _line(self, text: str) -> None:
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._width = 0
        self._stream.write(text + "\n")
        self._stream.flush()


def _progress(event: StepDone) -> str:
    progress = event.progress
    batches = f"{progress.batches}" if event.epoch_batches is None else f"{progress.batches}/{event.epoch_batches}"
    loss = "" if event.loss is None else f", loss {_number(event.loss)}"
    return f"epoch {progress.epoch + 1}, batch {batches}, step {progress.step}{loss}"


def _number(value: Any) -> str:
    return f"{as_number(value):.4g}"


def _started(event: RunStarted) -> str:
    return f"run {event.run!r}, checkpoints in {event.storage}{_MORE}{event.promise}"


def _restored(event: Restored) -> str:
    at = f"epoch {event.progress.epoch + 1}, step {event.progress.step}"
    return f"goes on from {at}, saved {duration_text(event.age)} ago: no more than that is trained again"


def _epoch_done(event: EpochDone) -> str:
    metrics = "".join(f", {name} {_number(value)}" for name, value in event.metrics.items())
    return f"epoch {event.epoch + 1} done, step {event.progress.step}{metrics}"


def _skipped(event: SaveSkipped) -> str:
    return (
        f"the save due at step {event.progress.step} waits: the one before is still being written. "
        "Saves come faster than the storage takes them; the newest wins (said once)"
    )


def _failing(event: SaveFailing) -> str:
    retry = f"training goes on; the next attempt is in {duration_text(event.retry_in)}"
    return f"NOT SAVED at step {event.progress.step}: {event.error}{_MORE}{retry}"


def _deadline(event: DeadlineNear) -> str:
    then = (
        "training ends here, so that what it made is kept. Run the notebook again to go on."
        if event.ends
        else "it is saved now, and training goes on while the machine lives"
    )
    return f"this session is over in {duration_text(event.seconds)} at most: {then}"


def _catching_up(event: CatchingUp) -> str:
    left = "" if event.waiting_bytes is None else f", {size_text(event.waiting_bytes)} left"
    if event.waiting_bytes and event.bytes_per_second:
        left += f" at {size_text(round(event.bytes_per_second))} a second"
    return f"waiting for {event.url}{left}; for {duration_text(event.left)} more at most (flush_timeout=…)"


def _space(event: SpaceShort) -> str:
    room = f"{size_text(event.free_bytes)} are free in {event.url}, and a save takes {size_text(event.save_bytes)}"
    if event.keeps is not None:
        return f"{room}: only {event.keeps} checkpoint(s) are kept from now on. Make room there to keep more"
    if event.full_at is None:
        return room
    hour = datetime.fromtimestamp(event.full_at).astimezone()
    when = f"between {hour:%H}:00 and {hour + timedelta(hours=1):%H}:00 on {hour:%Y-%m-%d}"
    return f"{room}: it will be FULL {when} at this pace. Make room there, or keep fewer (keep_last=…)"


def _stopped(event: RunStopped) -> str:
    where = f"step {event.progress.step}; newest checkpoint: {event.checkpoint or 'none'}"
    if event.reason in ("finished", "max_steps"):
        return f"finished at {where}"
    return f"stopped ({event.reason}) at {where}. Run the same cell again to go on."


_SENTENCES: Mapping[type, Callable[[Any], str]] = {
    RunStarted: _started,
    Restored: _restored,
    RestoredInexactly: lambda event: f"not bit for bit: {event.reason}",
    CatchingUp: _catching_up,
    CheckpointSetAside: lambda event: f"walked past {event.checkpoint}: {event.reason}",
    EpochDone: _epoch_done,
    SaveSkipped: _skipped,
    SaveFailing: _failing,
    DeadlineNear: _deadline,
    DurabilityTold: lambda event: str(event.durability.sentence),
    SpaceShort: _space,
    StoreDegraded: lambda event: f"{event.url}: {event.detail}",
    Noted: lambda event: str(event.text),
    RunStopped: _stopped,
}
