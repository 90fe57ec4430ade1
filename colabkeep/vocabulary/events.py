"""What happened, as frozen records. Observers read them, return nothing and cannot steer.

Events are delivered on the training thread, in order, between two steps. Steps are many: an observer that does not
want to hear of each has an attribute `steps_from`, the time in seconds of the run's clock from which it wants the next
`StepDone` (`math.inf`: none).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from colabkeep.vocabulary.progress import Progress

__all__ = [
    "CheckpointSetAside",
    "DeadlineNear",
    "EpochDone",
    "Event",
    "MachineGiven",
    "MetricsLogged",
    "Noted",
    "Pruned",
    "Restored",
    "RestoredInexactly",
    "RunStarted",
    "RunStopped",
    "RungReached",
    "SaveCommitted",
    "SaveFailing",
    "SaveSkipped",
    "SaveStarted",
    "StepDone",
    "StoreDegraded",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """A session began. `promise` is the one line that says what is exact on this machine."""

    run: str
    session: str
    storage: str
    promise: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineGiven:
    """The machine of this session: the platform's name, which variety of it, and its accelerators by name. `id`: that
    of another machine differs; "" where nothing tells."""

    platform: str
    kind: str
    accelerators: tuple[str, ...]
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """A checkpoint was loaded. `age`: seconds since it was saved, so the most that can have been lost."""

    checkpoint: str
    progress: Progress
    age: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredInexactly:
    """The continuation will not have the bits of the uninterrupted run; `reason` says why."""

    checkpoint: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSetAside:
    """A checkpoint could not be used; it was walked past and not deleted."""

    checkpoint: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """An optimizer step was taken. `loss` is whatever the loop passed: read it rarely (it may wait for the GPU)."""

    progress: Progress
    epoch_batches: int | None
    loss: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochDone:
    """An epoch ended; `metrics` are those logged at its end."""

    epoch: int
    progress: Progress
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsLogged:
    """The loop logged numbers."""

    progress: Progress
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveStarted:
    """State was captured; training waited `blocked` seconds for it."""

    progress: Progress
    reason: str
    blocked: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCommitted:
    """A checkpoint exists. `written` are bytes that had to be written, `seconds` the background time."""

    checkpoint: str
    progress: Progress
    reason: str
    bytes: int
    written: int
    seconds: float
    rung: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveSkipped:
    """A save that was due found the one before still being written; a newer one takes its place."""

    progress: Progress
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveFailing:
    """A save did not succeed; training goes on. `retry_in` is seconds until the next attempt."""

    progress: Progress
    error: str
    retry_in: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RungReached:
    """A checkpoint became more durable: "local", "sent" or "confirmed"."""

    checkpoint: str
    rung: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """Checkpoints were deleted by the retention policy."""

    checkpoints: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreDegraded:
    """A tier of the store is out of order; `detail` says what that means for the training."""

    url: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineNear:
    """The session's time is nearly used up: `seconds` are left at most. `ends`: training ends here by itself; else it
    is saved once more and goes on while the machine lives."""

    seconds: float
    ends: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """A sentence the user should read once: a harmless change, an expected wait."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStopped:
    """The session ended. `reason`: "finished", "max_time", "session_end" (of the machine), "max_steps", "sigterm",
    "interrupt", "error", "left"."""

    reason: str
    progress: Progress
    checkpoint: str | None


Event: TypeAlias = (
    RunStarted
    | MachineGiven
    | Restored
    | RestoredInexactly
    | CheckpointSetAside
    | StepDone
    | EpochDone
    | MetricsLogged
    | SaveStarted
    | SaveCommitted
    | SaveSkipped
    | SaveFailing
    | RungReached
    | Pruned
    | StoreDegraded
    | DeadlineNear
    | Noted
    | RunStopped
)
