"""What happened, as frozen records, and what the journal calls each of them. Observers read events, return nothing
and cannot steer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeAlias

from colabkeep.core.arguments import duration_text
from colabkeep.core.manifest import Progress
from colabkeep.core.policies import Why

__all__ = [
    "COMMITTED",
    "LEVEL",
    "PRUNED",
    "PRUNING",
    "REACHED",
    "STOPPED",
    "AlreadyComplete",
    "CadenceChosen",
    "CatchingUp",
    "CheckpointDurability",
    "CheckpointSkipped",
    "DeadlineNear",
    "Durability",
    "DurabilityReached",
    "DurabilityTold",
    "EpochDone",
    "Event",
    "FirstStepDone",
    "FolderSeen",
    "LengthTold",
    "LossNotFinite",
    "LossRecovered",
    "MachineChecked",
    "MachineGiven",
    "MetricsLogged",
    "Noted",
    "Place",
    "Pruned",
    "Recalled",
    "Restored",
    "RestoredInexactly",
    "RunStarted",
    "RunStopped",
    "SaveCommitted",
    "SaveFailing",
    "SaveSkipped",
    "SaveStarted",
    "SpaceShort",
    "StepDone",
    "StoreDegraded",
    "UploadMeasured",
    "journal_line",
]

CheckpointLevel: TypeAlias = Literal["captured", "local", "unknown", "sent", "confirmed"]
"""captured: in host memory; local: on this machine's disk; unknown: it is there as it was put, and the place, which
says nothing of anything it holds, may have it beyond this machine; sent: handed to the place; confirmed: the place
itself stated the right digest. What is not there, or not as it was put, is local at most, and so is what a place that
does speak has not spoken of yet."""

LEVELS: tuple[CheckpointLevel, ...] = ("captured", "local", "unknown", "sent", "confirmed")
"""From the least durable to the most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDurability:
    """One checkpoint and its level: the lowest of its objects'. `checkpoint` is None for what is in memory only.

    `seconds`: how long the run had been trained at that step, over all its sessions.
    """

    checkpoint: str | None
    step: int
    seconds: float
    level: CheckpointLevel


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where checkpoints end up. `top`: the highest level there; `persists`: does it outlive the machine (None: cannot
    be told)."""

    url: str
    top: CheckpointLevel
    persists: bool | None

    @property
    def lasts(self) -> bool:
        """Is it known that what has arrived there outlives the machine?"""
        return self.persists is True or (self.persists is None and self.top in ("sent", "confirmed"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Durability:
    """If this machine vanished now: training would go on from `checkpoint` at `step` (None and 0: from the beginning),
    and `lost_seconds` of training would have to be done again.

    `level` is that of the checkpoint. `standings` are all that this session knows of, newest first.

    `versions`: these are versions of a folder that another program writes, and `step` is the number of one. Of such a
    folder what would be lost is known to the session that watches it alone, which says it in `lost`, as in "12 min
    (last.pt of 14:03)"; "" where nothing would be, None where that is not known.
    """

    place: Place
    lost_seconds: float
    step: int
    checkpoint: str | None
    level: CheckpointLevel | None
    standings: tuple[CheckpointDurability, ...]
    versions: bool = False
    lost: str | None = None

    @property
    def sentence(self) -> str:
        """For people, complete, and no more than what is known."""
        if self.versions:
            return self._of_versions()
        lost = duration_text(self.lost_seconds)
        if self.place.persists is False:
            return (
                f"If this machine vanished now, you would lose all {lost} of this training: {self.place.url} goes "
                "with it."
            )
        if self.level is None:
            return (
                f"If this machine vanished now, you would lose all {lost} of this training: no checkpoint is known "
                f"to be safe in {self.place.url} yet."
            )
        return f"If this machine vanished now, you would lose {lost} (back to step {self.step}{self._proof()})."

    def _of_versions(self) -> str:
        if self.place.persists is False:
            return (
                "If this machine vanished now, you would lose the whole folder and its versions: "
                f"{self.place.url} goes with it."
            )
        if self.level is None and self.lost is not None:
            return "The folder is empty: nothing would be lost if this machine vanished now."
        if self.level is None:
            return (
                "If this machine vanished now, you would lose all that is in the folder: no version of it is known to "
                f"be safe in {self.place.url} yet."
            )
        lost = "" if self.lost is None else f"you would lose {self.lost or 'nothing'}; "
        url, proof = self.place.url, f"handed to {self.place.url}, which does not confirm it"
        if self.level == "confirmed":
            proof = f"confirmed by {url}"
        elif self.level == "local":
            proof = f"in {url}"
            if not self.place.persists:
                proof += ", if that outlives this machine: it cannot be checked"
        return f"If this machine vanished now, {lost}version {self.step} would come back ({proof})."

    def _proof(self) -> str:
        if self.level == "confirmed":
            return f", confirmed by {self.place.url}"
        if self.level == "local":
            if self.place.persists:
                return f", in {self.place.url}"
            return f", only if {self.place.url} survives this machine; colabkeep cannot check that"
        return f", if the upload to {self.place.url} arrived; it does not confirm that"


def assess(standings: Sequence[CheckpointDurability], place: Place, seconds: float) -> Durability:
    """The figure. `seconds`: how long the run has been trained by now."""
    newest_first = sorted(standings, key=lambda each: (each.step, each.seconds), reverse=True)
    safe = None
    if place.persists is not False:
        at_top = (each for each in newest_first if LEVELS.index(each.level) >= LEVELS.index(place.top))
        # What the place says nothing of counts where nothing else does, and is called what it is.
        safe = next(at_top, None) or next((each for each in newest_first if each.level == "unknown"), None)
    return Durability(
        place=place,
        lost_seconds=max(0.0, seconds - (safe.seconds if safe is not None else 0.0)),
        step=0 if safe is None else safe.step,
        checkpoint=None if safe is None else safe.checkpoint,
        level=None if safe is None else safe.level,
        standings=tuple(newest_first),
    )


def lowest(levels: Iterable[CheckpointLevel]) -> CheckpointLevel:
    """The least durable of them: a checkpoint is as safe as the worst of its objects."""
    return min(levels, key=LEVELS.index)


def has_arrived(level: str, top: CheckpointLevel) -> bool:
    """Is it as durable as it can become where `top` is the highest level? A place that says "unknown" of what is there
    may never say more."""
    return level == "unknown" or (level in LEVELS and LEVELS.index(level) >= LEVELS.index(top))


# Events are delivered on the training thread, in order, between two steps. Steps are many: an observer that does not
# want to hear of each has an attribute `steps_from`, the time in seconds of the run's clock from which it wants the
# next `StepDone` (`math.inf`: none).


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """A session began. `promise` is the one line that says what a resume restores, and whether the steps after it give
    the same bits on this machine; `exactness` says the latter in a word: "exact", "mostly" (but for what is named), or
    "course" (not the same bits). `reasons`: what prevents the same bits, each with the line that mends
    it; `unseen`: what no checkpoint sees; `precision`: what "auto" chose, if it was to choose. `folder`: where on this
    machine's disk the checkpoints lie, or come by; None where they do not. `ends_at`: when the machine goes at the
    latest, in seconds since 1970 (UTC), as far as that is known; `ends_source` says from what. `keeps`: the folder
    of another program that is kept; "" for a training. `monitor`: the metric by which the best checkpoint is chosen,
    "" where none is, and `mode`, "min" or "max". `asked`: what was written as ``storage=…``, as Python has it; "" where
    it is the platform's own place that is meant."""

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
    keeps: str = ""
    monitor: str = ""
    mode: str = "min"
    asked: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthTold(Event):
    """How long the run is to be in all; None: not by this measure, or it was told before."""

    max_epochs: int | None = None
    max_steps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineChecked(Event):
    """What the check before a training found, told to displays only. `verdict`: "keep", "reconnect", "switch",
    "enable" or "unusable"; `lines` say it to people, the next click included."""

    verdict: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineGiven(Event):
    """The machine of this session: the platform's name, which variety of it, and its accelerators by name. `id`: that
    of another machine differs; "" where nothing tells."""

    platform: str
    kind: str
    accelerators: tuple[str, ...]
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored(Event):
    """A checkpoint was loaded. `age`: seconds since it was saved, so the most that can have been lost."""

    checkpoint: str
    progress: Progress
    age: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled(Event):
    """The past of a run that goes on, told once after `Restored`. `points`: its loss curve so far, as (step, loss);
    `resumed_at`: the steps from which its sessions went on, this one last; `sessions`: how many there are, this one
    too; `history`: what was logged so far, as `Run.history`."""

    points: tuple[tuple[int, float], ...]
    resumed_at: tuple[int, ...]
    sessions: int
    history: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyComplete(Event):
    """The loop asked for no more than the run has: nothing was trained. `since`: when it was saved last, in seconds
    since 1970 (UTC); `length`: what has to be raised to train on, in words."""

    since: float
    step: int
    length: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredInexactly(Event):
    """The continuation will not have the bits of the uninterrupted run; `reason` says why."""

    checkpoint: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSkipped(Event):
    """A checkpoint could not be used; it was skipped and not deleted."""

    checkpoint: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone(Event):
    """An optimizer step was taken. `loss` is whatever the loop passed: read it rarely (it may wait for the GPU).
    `learning_rate`: that of the first group of parameters, None where it is not known on the host. `points`: the loss
    curve of the run so far, as (step, loss), as far as it has come to the host. `grad_norm`: the norm of the gradients
    before they were clipped, `tokens`: how many this session has trained on; both as the loop passed them, as `loss`,
    and None where it did not. `waited`: the seconds of this session in which the loop waited for its next batch; None
    where it does not read them through colabkeep."""

    progress: Progress
    epoch_batches: int | None
    loss: Any = field(default=None, repr=False, compare=False)
    learning_rate: float | None = None
    points: tuple[tuple[int, float], ...] = field(default=(), repr=False, compare=False)
    grad_norm: Any = field(default=None, repr=False, compare=False)
    tokens: Any = field(default=None, repr=False, compare=False)
    waited: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstStepDone(Event):
    """The first step of a session is done. `laps`: the parts of the way there with the seconds that each took, in
    order: "import" (the framework), "check" (looking at the machine), "storage" (opening it), "find" (the run, taken),
    "read" (the checkpoint, hashed), "restore" (into the objects), "ready", "loader" (until the first batch), "step"."""

    laps: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochDone(Event):
    """An epoch ended; `metrics` are those logged at its end."""

    epoch: int
    progress: Progress
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsLogged(Event):
    """The loop logged numbers."""

    progress: Progress
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossNotFinite(Event):
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
class LossRecovered(Event):
    """The loss is a finite number again, at `step`, after a `LossNotFinite`."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveStarted(Event):
    """State was captured; training waited `blocked` seconds for it."""

    progress: Progress
    reason: str
    blocked: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCommitted(Event):
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
    level: str
    waited: float = 0.0
    copy: str = ""
    monotonic: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CadenceChosen(Event):
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
class SaveSkipped(Event):
    """A save that was due found the one before still being written; a newer one takes its place."""

    progress: Progress
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveFailing(Event):
    """A save did not succeed; training continues. `retry_in` is seconds until the next attempt."""

    progress: Progress
    error: str
    retry_in: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DurabilityReached(Event):
    """A checkpoint is as durable as the least durable of its objects, and that changed: "local", "unknown", "sent" or
    "confirmed". `monotonic`: when that was seen, as in `SaveCommitted`."""

    checkpoint: str
    level: str
    monotonic: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DurabilityTold(Event):
    """What would be lost if the machine vanished at this moment. Told when another checkpoint has become the one to go
    on from, and each minute while a newer one is on its way; meanwhile `lost_seconds` grows by a second each second.
    `monotonic`: when that was looked up, in seconds of the run's clock; None: now."""

    durability: Durability
    monotonic: float | None = None

    def shown(self, monotonic: float) -> DurabilityTold:
        """The same at the time when it is shown: a step that took a minute has come after it was looked up."""
        if self.monotonic is None:
            return self
        lost = self.durability.lost_seconds + monotonic - self.monotonic
        return DurabilityTold(durability=replace(self.durability, lost_seconds=lost))


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderSeen(Event):
    """A kept folder was looked at, and something is to be said of it that was not so before. `changed`: so many files
    are not as in the newest version; `waits`: what no version can be made for yet, and why, a clause; "" where nothing
    is waited for. Told to displays only, every few seconds at most."""

    changed: int
    waits: str
    durability: Durability


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadMeasured(Event):
    """How fast checkpoints reach the slower side of a pair, in bytes per second, and how much waits for that."""

    url: str
    bytes_per_second: float
    waiting_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchingUp(Event):
    """The session has ended and waits for its slower storage, for `left` more seconds at most. `waiting_bytes` are
    still to come, at `bytes_per_second` as measured lately; both are None where that is not known."""

    url: str
    waiting_bytes: int | None
    bytes_per_second: float | None
    left: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceShort(Event):
    """A place is getting too small. A save takes `save_bytes`. `full_at`: when this run will have filled it at its
    pace, in seconds since 1970 (UTC). `keeps`: so few checkpoints are kept from now on, for more do not fit. Both None:
    the next save may not fit."""

    url: str
    free_bytes: int
    save_bytes: int
    full_at: float | None = None
    keeps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned(Event):
    """Checkpoints were deleted by the retention policy."""

    checkpoints: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreDegraded(Event):
    """A tier of the store is out of order; `detail` says what that means for the training. `healed`: it works again.
    `durability`: what would be lost at that moment, where that is known."""

    url: str
    detail: str
    healed: bool = False
    durability: Durability | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineNear(Event):
    """The session's time is nearly used up: `seconds` are left at most. `ends`: training ends here by itself; else it
    is saved once more and goes on while the machine lives. `takes`: seconds that a save took here until it was safe."""

    seconds: float
    ends: bool = False
    takes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted(Event):
    """A sentence the user should read once: a harmless change, an expected wait."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStopped(Event):
    """The session ended. `reason`: "finished", "max_time", "session_end" (of the machine), "max_steps", "sigterm",
    "sighup", "interrupt", "error", "left". `error`: the kind and the first line of the exception that ended it, or
    "". `not_finite_since`: the step since which the loss is no finite number, None if it is one."""

    reason: str
    progress: Progress
    checkpoint: str | None
    error: str = ""
    not_finite_since: int | None = None


# The journal calls events and their members as the classes above do, or as `_WRITTEN` says, and other versions read it:
# none of these names is ever changed, or used again for something else. One may be added, with a default.


COMMITTED, REACHED, PRUNED, STOPPED = "SaveCommitted", "RungReached", "Pruned", "RunStopped"
LEVEL = "rung"
PRUNING = "Pruning"
"""What is about to be pruned; `PRUNED` is told when that is done."""


# What had another name when the first journals were written.
_WRITTEN = {"CheckpointSkipped": "CheckpointSetAside", "DurabilityReached": REACHED, "level": LEVEL}

# Steps and looks are too many; what a lost machine took with it is known when it is gone.
_NOT_NOTED = (StepDone, DurabilityTold, FolderSeen)
_ELSEWHERE = ("durability", "history")  # members that other lines tell


def journal_line(event: Event, at: float) -> dict[str, Any] | None:
    """The line of an event at `at` (seconds since 1970, UTC), of plain values; None for one that is not noted."""
    if isinstance(event, _NOT_NOTED):
        return None
    kind, names = type(event).__name__, [each.name for each in fields(event) if each.name not in _ELSEWHERE]
    members = {_WRITTEN.get(name, name): _plain(getattr(event, name)) for name in names}
    return {"at": at, "event": _WRITTEN.get(kind, kind), **members}


def _plain(value: Any) -> Any:
    if isinstance(value, Progress):
        return {name: _plain(member) for name, member in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(key): _plain(member) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(member) for member in value]
    if isinstance(value, float) and value - value != 0:
        return repr(value)
    return value
