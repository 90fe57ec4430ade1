"""Events as sentences, for lines of text and for the list in the panel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from colabkeep.faces.tables import size_text
from colabkeep.session.history import as_number
from colabkeep.vocabulary.durations import duration_text
from colabkeep.vocabulary.events import (
    AlreadyComplete,
    CadenceChosen,
    CatchingUp,
    CheckpointSetAside,
    DeadlineNear,
    DurabilityTold,
    EpochDone,
    Event,
    LossNotFinite,
    LossRecovered,
    MachineChecked,
    Noted,
    Restored,
    RestoredInexactly,
    RunStarted,
    RunStopped,
    SaveFailing,
    SaveSkipped,
    SpaceShort,
    StoreDegraded,
)

__all__ = ["sentence"]


def sentence(event: Event) -> str | None:
    """What an event says to people, on one line or more; None for one that says nothing by itself."""
    tell = _SENTENCES.get(type(event))
    return None if tell is None else tell(event)


def _started(event: RunStarted) -> str:
    where = f"run {event.run!r}, checkpoints in {event.storage}"
    reasons = (f"- {reason}" for reason in event.reasons)
    return "\n".join(filter(None, (where, event.promise, *reasons, event.unseen, event.precision)))


def _not_finite(event: LossNotFinite) -> str:
    back = (
        f'To go back, stop it and run the cell with resume="{event.checkpoint}": the newest checkpoint from before, '
        "which is kept."
        if event.checkpoint
        else "No checkpoint from before has been written yet."
    )
    lost = "unless it recovers, what is trained from here on is worth nothing"
    return f"THE LOSS IS {event.word} since step {event.step}: {lost}.\n{back}"


def _restored(event: Restored) -> str:
    counts_epochs = event.progress.epoch or event.progress.batches  # a loop over steps does not
    at = f"{f'epoch {event.progress.epoch + 1}, ' if counts_epochs else ''}step {event.progress.step}"
    return f"goes on from {at}, saved {duration_text(event.age)} ago: no more than that is trained again"


def _complete(event: AlreadyComplete) -> str:
    since = datetime.fromtimestamp(event.since).astimezone()
    return (
        f"complete since {since:%Y-%m-%d %H:%M}, at step {event.step}: nothing is trained. To train on, raise "
        f"{event.length}; for a new training choose another run_name"
    )


def _epoch_done(event: EpochDone) -> str:
    metrics = "".join(f", {name} {as_number(value):.4g}" for name, value in event.metrics.items())
    return f"epoch {event.epoch + 1} done, step {event.progress.step}{metrics}"


def _skipped(event: SaveSkipped) -> str:
    return (
        f"the save due at step {event.progress.step} waits: the one before is still being written. "
        "Saves come faster than the storage takes them; the newest wins (said once)"
    )


def _failing(event: SaveFailing) -> str:
    retry = f"training goes on; the next attempt is in {duration_text(event.retry_in)}"
    return f"NOT SAVED at step {event.progress.step}: {event.error}\n{retry}"


def _deadline(event: DeadlineNear) -> str:
    takes = f", which takes about {duration_text(event.takes)} until it is safe" if event.takes >= 1.0 else ""
    then = (
        "training ends here, so that what it made is kept. Run the notebook again to go on."
        if event.ends
        else f"it is saved now{takes}, and training goes on while the machine lives"
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
        return f"{room}: the next one may not fit. Make room there, or keep fewer (keep_last=…)"
    hour = datetime.fromtimestamp(event.full_at).astimezone()
    when = f"between {hour:%H}:00 and {hour + timedelta(hours=1):%H}:00 on {hour:%Y-%m-%d}"
    return f"{room}: it will be FULL {when} at this run's pace. Make room there, or keep fewer (keep_last=…)"


def _degraded(event: StoreDegraded) -> str:
    lost = "" if event.durability is None else f"\n{event.durability.sentence}"
    return f"{event.url}: {event.detail}{lost}"


def _stopped(event: RunStopped) -> str:
    where = f"step {event.progress.step}; newest checkpoint: {event.checkpoint or 'none'}"
    if event.reason in ("finished", "max_steps") and event.not_finite_since is not None:
        return (
            f"ended at {where}. The loss is not a finite number since step {event.not_finite_since}: these weights "
            "are worth nothing."
        )
    if event.reason in ("finished", "max_steps"):
        return f"finished at {where}"
    return f"stopped ({event.reason}) at {where}. Run the same cell again to go on."


_SENTENCES: Mapping[type, Callable[[Any], str]] = {
    CadenceChosen: lambda event: str(event.text),
    MachineChecked: lambda event: "\n".join(event.lines),
    RunStarted: _started,
    AlreadyComplete: _complete,
    Restored: _restored,
    RestoredInexactly: lambda event: f"not bit for bit: {event.reason}",
    LossNotFinite: _not_finite,
    LossRecovered: lambda event: f"the loss is a finite number again since step {event.step}",
    CatchingUp: _catching_up,
    CheckpointSetAside: lambda event: f"walked past {event.checkpoint}: {event.reason}",
    EpochDone: _epoch_done,
    SaveSkipped: _skipped,
    SaveFailing: _failing,
    DeadlineNear: _deadline,
    DurabilityTold: lambda event: str(event.durability.sentence),
    SpaceShort: _space,
    StoreDegraded: _degraded,
    Noted: lambda event: str(event.text),
    RunStopped: _stopped,
}
