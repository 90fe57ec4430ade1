"""The diary is read for ever by the words that it was written with, whatever the classes in the code are called."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any, get_args

import pytest

from colabkeep.core import events
from colabkeep.core.events import (
    COMMITTED,
    PRUNED,
    STOPPED,
    WORDS,
    DurabilityTold,
    Event,
    MetricsLogged,
    Pruned,
    RunStopped,
    SaveCommitted,
    StepDone,
    StoreDegraded,
    journal_line,
)
from colabkeep.core.manifest import Progress

FIRST = {
    "RunStarted": "run session storage promise folder ends_at ends_source exactness reasons unseen precision",
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


def test_no_word_is_ever_changed():
    """A word of a released version, or a member of it, is not renamed and not taken out."""
    now = {word: {each.partition("=")[0] for each in members.split()} for word, members in WORDS.values()}
    assert {word: set(members.split()) - now.get(word, set()) for word, members in FIRST.items()} == {
        word: set() for word in FIRST
    }


def test_every_event_is_noted_whole_or_not_at_all():
    """Whoever adds an event or a field decides what it is called in the diary: nothing is left out by forgetting it."""
    kinds = {*get_args(Event), Progress}
    # Steps are too many; and what a lost machine took with it is known when it is gone.
    assert kinds - set(WORDS) == {StepDone, DurabilityTold}
    left_out = {StoreDegraded: {"durability"}}
    for kind in WORDS:
        named = {each.rpartition("=")[2] for each in WORDS[kind][1].split()}
        fields_of = Progress._fields if kind is Progress else [field.name for field in fields(kind)]
        assert named == {*fields_of} - left_out.get(kind, set()), kind
    assert (WORDS[SaveCommitted][0], WORDS[Pruned][0], WORDS[RunStopped][0]) == (COMMITTED, PRUNED, STOPPED)


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
    assert journal_line(StepDone(progress=progress, epoch_batches=None), 5.0) is None


def test_a_class_that_is_called_otherwise_writes_the_same_word(monkeypatch: pytest.MonkeyPatch):
    """A developer renames a class and a field of it: the lines stay what every other version reads."""

    @dataclass(frozen=True)
    class CheckpointsWentAway:
        ids: tuple[str, ...]

    words: dict[Any, Any] = {CheckpointsWentAway: (PRUNED, "checkpoints=ids")}
    monkeypatch.setattr(events, "WORDS", words)
    monkeypatch.setattr(events, "_MEMBERS", events.members_of(words))
    line = journal_line(CheckpointsWentAway(("a",)), 1.0)  # type: ignore[arg-type]
    assert line == {"at": 1.0, "event": "Pruned", "checkpoints": ["a"]}
