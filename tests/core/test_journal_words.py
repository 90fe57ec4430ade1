"""The journal is read for ever by the words that it was written with, whatever the classes in the code are called."""

from __future__ import annotations

import json
from dataclasses import fields

from colabkeep.core import events
from colabkeep.core.events import (
    COMMITTED,
    PRUNED,
    REACHED,
    STOPPED,
    DurabilityReached,
    DurabilityTold,
    Event,
    FolderSeen,
    MetricsLogged,
    Recalled,
    StepDone,
    StoreDegraded,
    journal_line,
)
from colabkeep.core.manifest import Progress

FIRST = {
    "RunStarted": "run session storage promise folder ends_at ends_source exactness reasons unseen precision keeps "
    "monitor mode asked",
    "LengthTold": "max_epochs max_steps",
    "MachineChecked": "verdict lines",
    "MachineGiven": "platform kind accelerators id",
    "Restored": "checkpoint progress age",
    "Recalled": "points resumed_at sessions",
    "AlreadyComplete": "since step length",
    "RestoredInexactly": "checkpoint reason",
    "CheckpointSetAside": "checkpoint reason",
    "FirstStepDone": "laps",
    "EpochDone": "epoch progress metrics",
    "MetricsLogged": "progress metrics",
    "LossNotFinite": "step value finite checkpoint",
    "LossRecovered": "step",
    "SaveStarted": "progress reason blocked",
    "SaveCommitted": "checkpoint progress reason bytes written seconds rung waited copy monotonic",
    "CadenceChosen": "interval cost session overhead reason text source carried",
    "SaveSkipped": "progress reason",
    "SaveFailing": "progress error retry_in",
    "RungReached": "checkpoint rung monotonic",
    "UploadMeasured": "url bytes_per_second waiting_bytes",
    "CatchingUp": "url waiting_bytes bytes_per_second left",
    "SpaceShort": "url free_bytes save_bytes full_at keeps",
    "Pruned": "checkpoints",
    "StoreDegraded": "url detail healed",
    "DeadlineNear": "seconds ends takes",
    "Noted": "text",
    "RunStopped": "reason progress checkpoint error not_finite_since",
    "": "epoch step batches epoch_samples samples seconds",
}
"""What version 0.1 wrote. Other versions and other people's tools read by these words: add to them, change none."""


def noted(kind):
    """The members of an event that its line in the journal has."""
    left_out = {StoreDegraded: {"durability"}, Recalled: {"history"}}.get(kind, set())
    return {written(field.name) for field in fields(kind) if field.name not in left_out}


def written(name):
    """How the journal has always called it."""
    return events._WRITTEN.get(name, name)


def test_no_word_is_ever_changed():
    """A word of a released version, or a member of it, is not renamed and not taken out; nor is one forgotten here."""
    kinds = [kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)]
    now = {
        written(kind.__name__): noted(kind)
        for kind in kinds
        if kind not in (Event, StepDone, DurabilityTold, FolderSeen)
    }
    assert {**now, "": set(Progress._fields)} == {word: set(members.split()) for word, members in FIRST.items()}
    assert {COMMITTED, REACHED, PRUNED, STOPPED} <= now.keys()


def test_a_line_is_made_of_plain_values():
    """Positions as a record, numbers that JSON lacks as text, what is no word of ours as it is."""
    progress = Progress(epoch=1, step=7, batches=2, epoch_samples=64, samples=224, seconds=1.5)
    line = journal_line(MetricsLogged(progress=progress, metrics={"loss": float("nan"), "odd": (1, 2)}), 5.0)
    assert json.loads(json.dumps(line)) == {
        "at": 5.0,
        "event": "MetricsLogged",
        "progress": {"epoch": 1, "step": 7, "batches": 2, "epoch_samples": 64, "samples": 224, "seconds": 1.5},
        "metrics": {"loss": "nan", "odd": [1, 2]},
    }
    recalled = Recalled(points=((1, 0.5),), resumed_at=(1,), sessions=2, history=({"epoch": 0, "step": 1},))
    assert "history" not in journal_line(recalled, 5.0), "it would grow with each session"
    assert journal_line(StepDone(progress=progress, epoch_batches=None), 5.0) is None
    line = journal_line(StoreDegraded(url="drive", detail="away"), 5.0)
    assert line == {"at": 5.0, "event": "StoreDegraded", "url": "drive", "detail": "away", "healed": False}
    line = journal_line(DurabilityReached(checkpoint="a", level="sent", monotonic=1.0), 5.0)
    assert line == {"at": 5.0, "event": "RungReached", "checkpoint": "a", "rung": "sent", "monotonic": 1.0}
