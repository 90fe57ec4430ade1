"""What happened, as frozen records, and what the journal calls each of them. Observers read events, return nothing
and cannot steer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from colabkeep.core.durability import Durability
from colabkeep.core.manifest import Progress
from colabkeep.core.policies import Why

__all__ = [
    "COMMITTED",
    "PRUNED",
    "PRUNING",
    "STOPPED",
    "WORDS",
    "AlreadyComplete",
    "CadenceChosen",
    "CatchingUp",
    "CheckpointSetAside",
    "DeadlineNear",
    "DurabilityTold",
    "EpochDone",
    "Event",
    "FirstStepDone",
    "LengthTold",
    "LossNotFinite",
    "LossRecovered",
    "MachineChecked",
    "MachineGiven",
    "MetricsLogged",
    "Noted",
    "Pruned",
    "Recalled",
    "Restored",
    "RestoredInexactly",
    "RunStarted",
    "RunStopped",
    "RungReached",
    "SaveCommitted",
    "SaveFailing",
    "SaveSkipped",
    "SaveStarted",
    "SpaceShort",
    "StepDone",
    "StoreDegraded",
    "UploadMeasured",
    "journal_line",
    "members_of",
]

# Events are delivered on the training thread, in order, between two steps. Steps are many: an observer that does not
# want to hear of each has an attribute `steps_from`, the time in seconds of the run's clock from which it wants the
# next `StepDone` (`math.inf`: none).


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """A session began. `promise` is the one line that says what a resume restores, and whether the steps after it give
    the same bits on this machine; `exactness` says the latter in a word: "exact", "mostly" (but for what is named), or
    "course" (the same course, not the same bits). `reasons`: what prevents the same bits, each with the line that mends
    it; `unseen`: what no checkpoint sees; `precision`: what "auto" chose, if it was to choose. `folder`: where on this
    machine's disk the checkpoints lie, or come by; None where they do not. `ends_at`: when the machine goes at the
    latest, in seconds since 1970 (UTC), as far as that is known; `ends_source` says from what."""

    run: str
    session: str
    storage: str
    promise: str
    folder: str | None = None
    ends_at: float | None = None
    ends_source: str = ""
    exactness: str = ""
    reasons: tuple[str, ...] = ()
    unseen: str = ""
    precision: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthTold:
    """How long the run is to be in all; None: not by this measure, or it was told before."""

    max_epochs: int | None = None
    max_steps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineChecked:
    """What the check before a training found, told to displays only. `verdict`: "keep", "reconnect", "switch",
    "enable" or "unusable"; `lines` say it to people, the next click included."""

    verdict: str
    lines: tuple[str, ...]


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
class Recalled:
    """The past of a run that goes on, told once after `Restored`. `points`: its loss curve so far, as (step, loss);
    `resumed_at`: the steps from which its sessions went on, this one last; `sessions`: how many there are, this one
    too."""

    points: tuple[tuple[int, float], ...]
    resumed_at: tuple[int, ...]
    sessions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyComplete:
    """The loop asked for no more than the run has: nothing was trained. `since`: when it was saved last, in seconds
    since 1970 (UTC); `length`: what has to be raised to train on, in words."""

    since: float
    step: int
    length: str


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
class FirstStepDone:
    """The first step of a session is done. `laps`: the parts of the way there with the seconds that each took, in
    order: "import" (the framework), "check" (looking at the machine), "storage" (opening it), "find" (the run, taken),
    "read" (the checkpoint, hashed), "restore" (into the objects), "ready", "loader" (until the first batch), "step"."""

    laps: Mapping[str, float]


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
class LossNotFinite:
    """The loss is not a finite number since `step`; `value`: "nan", "inf" or "-inf". `finite`: the last step whose loss
    was; `checkpoint`: the newest one before that, which is not deleted; None where none is known. Told once, and again
    by a session that goes on from such weights; of losses that come and go, once more where they stay so."""

    step: int
    value: str
    finite: int | None = None
    checkpoint: str | None = None

    @property
    def word(self) -> str:
        """ "NaN" or "infinite"."""
        return "NaN" if self.value == "nan" else "infinite"


@dataclass(frozen=True, slots=True, kw_only=True)
class LossRecovered:
    """The loss is a finite number again, at `step`, after a `LossNotFinite`."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveStarted:
    """State was captured; training waited `blocked` seconds for it."""

    progress: Progress
    reason: str
    blocked: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCommitted:
    """A checkpoint exists. `written` are bytes that had to be written, `seconds` the background time. `copy`: what
    made the copy slower than it need be, a clause; "" where nothing did. `monotonic`: when it was committed, in seconds
    of the run's clock, for it may be told much later; None: when it is told. `waited`: in versions that copied beside
    the next step, the seconds that this one waited for the rest."""

    checkpoint: str
    progress: Progress
    reason: str
    bytes: int
    written: int
    seconds: float
    rung: str
    waited: float = 0.0
    copy: str = ""
    monotonic: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CadenceChosen:
    """How often saves come from now on, where `save_every="auto"` chooses; told when it changes by much. In seconds:
    `interval`; `cost`, of a save to training; `session`, the mean between two disconnects, and `source` says from what;
    `carried`, how long the storage takes for a save. `overhead`: the share of time that saves may cost. `reason`: what
    decided, "loss" (the least is lost so), or the bound that moved it: "overhead", "storage", "floor" or "ceiling".
    `text` says all this in a sentence."""

    interval: float
    cost: float
    session: float
    overhead: float
    reason: Why
    text: str
    source: str = ""
    carried: float = 0.0


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
    """A checkpoint is as durable as the least durable of its objects, and that changed: "local", "unknown", "sent" or
    "confirmed". `monotonic`: when that was seen, as in `SaveCommitted`."""

    checkpoint: str
    rung: str
    monotonic: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DurabilityTold:
    """What would be lost if the machine vanished at this moment. Told when another checkpoint has become the one to go
    on from, and each minute while a newer one is on its way; meanwhile `lost_seconds` grows by a second each second."""

    durability: Durability


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadMeasured:
    """How fast checkpoints reach the slower side of a pair, in bytes per second, and how much waits for that."""

    url: str
    bytes_per_second: float
    waiting_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchingUp:
    """The session has ended and waits for its slower storage, for `left` more seconds at most. `waiting_bytes` are
    still to come, at `bytes_per_second` as measured lately; both are None where that is not known."""

    url: str
    waiting_bytes: int | None
    bytes_per_second: float | None
    left: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceShort:
    """A place is getting too small. A save takes `save_bytes`. `full_at`: when this run will have filled it at its
    pace, in seconds since 1970 (UTC). `keeps`: so few checkpoints are kept from now on, for more do not fit. Both None:
    the next save may not fit."""

    url: str
    free_bytes: int
    save_bytes: int
    full_at: float | None = None
    keeps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """Checkpoints were deleted by the retention policy."""

    checkpoints: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreDegraded:
    """A tier of the store is out of order; `detail` says what that means for the training. `healed`: it works again.
    `durability`: what would be lost at that moment, where that is known."""

    url: str
    detail: str
    healed: bool = False
    durability: Durability | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineNear:
    """The session's time is nearly used up: `seconds` are left at most. `ends`: training ends here by itself; else it
    is saved once more and goes on while the machine lives. `takes`: seconds that a save took here until it was safe."""

    seconds: float
    ends: bool = False
    takes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """A sentence the user should read once: a harmless change, an expected wait."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStopped:
    """The session ended. `reason`: "finished", "max_time", "session_end" (of the machine), "max_steps", "sigterm",
    "sighup", "interrupt", "error", "left". `error`: the kind and the first line of the exception that ended it, or
    "". `not_finite_since`: the step since which the loss is no finite number, None if it is one."""

    reason: str
    progress: Progress
    checkpoint: str | None
    error: str = ""
    not_finite_since: int | None = None


Event: TypeAlias = (
    RunStarted
    | LengthTold
    | MachineChecked
    | MachineGiven
    | Restored
    | Recalled
    | AlreadyComplete
    | RestoredInexactly
    | CheckpointSetAside
    | FirstStepDone
    | StepDone
    | EpochDone
    | MetricsLogged
    | LossNotFinite
    | LossRecovered
    | SaveStarted
    | SaveCommitted
    | CadenceChosen
    | SaveSkipped
    | SaveFailing
    | RungReached
    | DurabilityTold
    | UploadMeasured
    | CatchingUp
    | SpaceShort
    | Pruned
    | StoreDegraded
    | DeadlineNear
    | Noted
    | RunStopped
)


# They are the diary's own, and stay when a class or a field here gets another name: files of any version are read by
# them, with a colabkeep of any other. A word may be added; none is ever changed, or used again for something else.


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


def journal_line(event: Event, at: float) -> dict[str, Any] | None:
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
