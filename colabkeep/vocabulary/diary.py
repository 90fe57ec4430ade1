"""The words of a run's diary: what each event is called there, and each of its members.

They are the diary's own, and stay when a class or a field here gets another name: files of any version are read by
them, with a colabkeep of any other. A word may be added; none is ever changed, or used again for something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from colabkeep.vocabulary.events import (
    AlreadyComplete,
    CadenceChosen,
    CatchingUp,
    CheckpointSetAside,
    DeadlineNear,
    EpochDone,
    Event,
    FirstStepDone,
    LengthTold,
    LossNotFinite,
    LossRecovered,
    MachineChecked,
    MachineGiven,
    MetricsLogged,
    Noted,
    Pruned,
    Recalled,
    Restored,
    RestoredInexactly,
    RungReached,
    RunStarted,
    RunStopped,
    SaveCommitted,
    SaveFailing,
    SaveSkipped,
    SaveStarted,
    SpaceShort,
    StoreDegraded,
    UploadMeasured,
)
from colabkeep.vocabulary.progress import Progress

__all__ = ["COMMITTED", "PRUNED", "PRUNING", "STOPPED", "WORDS", "diary_line", "members_of"]

# The word, and its members as they are written. One whose field has another name by now is written word=field.
WORDS: Mapping[type, tuple[str, str]] = {
    RunStarted: (
        "RunStarted",
        "run session storage promise folder ends_at ends_source exactness reasons unseen precision",
    ),
    LengthTold: ("LengthTold", "max_epochs max_steps"),
    MachineChecked: ("MachineChecked", "verdict lines"),
    MachineGiven: ("MachineGiven", "platform kind accelerators id"),
    Restored: ("Restored", "checkpoint progress age"),
    Recalled: ("Recalled", "points resumed_at sessions"),
    AlreadyComplete: ("AlreadyComplete", "since step length"),
    RestoredInexactly: ("RestoredInexactly", "checkpoint reason"),
    CheckpointSetAside: ("CheckpointSetAside", "checkpoint reason"),
    FirstStepDone: ("FirstStepDone", "laps"),
    EpochDone: ("EpochDone", "epoch progress metrics"),
    MetricsLogged: ("MetricsLogged", "progress metrics"),
    LossNotFinite: ("LossNotFinite", "step value finite checkpoint"),
    LossRecovered: ("LossRecovered", "step"),
    SaveStarted: ("SaveStarted", "progress reason blocked"),
    SaveCommitted: ("SaveCommitted", "checkpoint progress reason bytes written seconds rung waited copy monotonic"),
    CadenceChosen: ("CadenceChosen", "interval cost session overhead reason text source carried"),
    SaveSkipped: ("SaveSkipped", "progress reason"),
    SaveFailing: ("SaveFailing", "progress error retry_in"),
    RungReached: ("RungReached", "checkpoint rung monotonic"),
    UploadMeasured: ("UploadMeasured", "url bytes_per_second waiting_bytes"),
    CatchingUp: ("CatchingUp", "url waiting_bytes bytes_per_second left"),
    SpaceShort: ("SpaceShort", "url free_bytes save_bytes full_at keeps"),
    Pruned: ("Pruned", "checkpoints"),
    StoreDegraded: ("StoreDegraded", "url detail healed"),
    DeadlineNear: ("DeadlineNear", "seconds ends takes"),
    Noted: ("Noted", "text"),
    RunStopped: ("RunStopped", "reason progress checkpoint error not_finite_since"),
    Progress: ("", "epoch step batches epoch_samples samples seconds"),
}
"""By kind of event; one that is not here is not noted."""

COMMITTED, PRUNED, STOPPED = "SaveCommitted", "Pruned", "RunStopped"
PRUNING = "Pruning"
"""What is about to be pruned; `PRUNED` is told when that is done."""


def members_of(words: Mapping[type, tuple[str, str]]) -> dict[type, tuple[tuple[str, str], ...]]:
    """By kind of event: the members as they are written, each with the field it is read from."""
    return {
        kind: tuple((word, field or word) for word, _, field in (each.partition("=") for each in members.split()))
        for kind, (_, members) in words.items()
    }


_MEMBERS = members_of(WORDS)


def diary_line(event: Event, at: float) -> dict[str, Any] | None:
    """The line of an event at `at` (seconds since 1970, UTC), of plain values; None for one that is not noted."""
    if type(event) not in WORDS:
        return None
    return {"at": at, "event": WORDS[type(event)][0], **_record(event)}


def _record(value: Any) -> dict[str, Any]:
    return {word: _plain(getattr(value, field)) for word, field in _MEMBERS[type(value)]}


def _plain(value: Any) -> Any:
    if type(value) in _MEMBERS:
        return _record(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(member) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(member) for member in value]
    if isinstance(value, float) and value - value != 0:
        return repr(value)
    return value
