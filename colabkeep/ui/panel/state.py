"""What is known of a run while it trains, and how each event changes it. Nothing here knows how it is drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from colabkeep.core import events
from colabkeep.core.events import LEVELS, CheckpointLevel, Durability, Event, Place, has_arrived
from colabkeep.core.manifest import Progress
from colabkeep.core.policies import Cadence, Measures
from colabkeep.core.system import Clock
from colabkeep.session.state import as_number
from colabkeep.ui.messages import sentence
from colabkeep.ui.panel.gauges import Usage

Phase: TypeAlias = Literal[
    "starting",
    "fresh",
    "resumed",
    "saving",
    "uploading",
    "saved",
    "durable",
    "degraded",
    "ending",
    "nan",
    "interrupted",
    "finished",
    "diverged",
    "failed",
]
"""The one state that the panel is in. "starting": the run is not open yet; "nan": it trains, and the loss is not
finite; the last four are final, "diverged": it ended with such a loss."""

FINAL: tuple[Phase, ...] = ("interrupted", "finished", "diverged", "failed")

_WINDOW = 30.0  # seconds of training that the speed is measured over
_LEAST = 5.0  # of them, for the share that goes into reading batches
_PACES = 64
_POINTS = 512  # of the curve; when there are more, every second one stays
_EPOCHS = 400  # that are remembered; when there are more, every second of the older ones goes
_RECENT = 12  # of them stay
_SAVES = 48  # that are remembered: as many as the curve has room to mark
_HAPPENED = 12
# Shown elsewhere in the panel, or too often for a list of the last events.
_NOT_LISTED = (events.CadenceChosen, events.DurabilityTold, events.EpochDone)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint and its durability level. `seconds`: how long the run had been trained then. `own`: this session
    wrote it; training stood still for `stall` seconds then, and `copy` says what made that longer, if anything did.
    `gone`: it was deleted since, to make room for newer ones."""

    checkpoint: str
    step: int
    level: CheckpointLevel
    seconds: float = 0.0
    bytes: int | None = None
    own: bool = False
    stall: float = 0.0
    copy: str = ""
    gone: bool = False


@dataclass(frozen=True, slots=True)
class TimedMessage:
    """A message and its time, in seconds since 1970 (UTC)."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class EpochRow:
    """What was logged in an epoch (from 0), the last value of each metric, and at which step. `seconds`: how long it
    took, None where that is not known."""

    epoch: int
    step: int
    metrics: Mapping[str, float]
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class _Pace:
    """How far the run was (a share from 0 to 1, None if its length is not known) at a step, `seconds` into training."""

    step: int
    share: float | None
    seconds: float
    samples: int = 0
    tokens: float | None = None
    waited: float | None = None


@dataclass(slots=True, kw_only=True)
class PanelState:
    """All that is known of a run as of `now` (seconds since 1970, UTC); `take` brings it up to date. None, "" and ()
    are what is not known.

    `platform` is a title. `points`: the loss of the whole run, by step. `epochs`: what was logged in each. `saving`:
    the save that is under way. `grad_norm`, `tokens`, `waited`: as in `StepDone`. `saves`: newest first; `place`: where
    they end up; `safe_*`: the one to resume from if the machine vanished now. `cadence`: how often it is saved, and
    why, where colabkeep chooses that. `failing` and `degraded`: what is out of order with saving and with the storage.
    `broken`: since when the loss is not finite; its `checkpoint` is the one to go back to. `seen`, `lost`: of another
    program's folder, how it was at the last look, and as in `Durability`.
    """

    now: float = 0.0
    platform: str = ""
    started: events.RunStarted = field(default=events.RunStarted(run="", session="", storage="", promise=""))
    machine: events.MachineGiven = field(default=events.MachineGiven(platform="", kind="", accelerators=()))
    check: events.MachineChecked = field(default=events.MachineChecked(verdict="", lines=()))
    progress: Progress = field(default_factory=Progress)
    epoch_batches: int | None = None
    max_epochs: int | None = None
    max_steps: int | None = None
    loss: float | None = None
    learning_rate: float | None = None
    grad_norm: float | None = None
    tokens: float | None = None
    waited: float | None = None
    usage: Usage = field(default_factory=Usage)
    epochs: tuple[EpochRow, ...] = ()
    epoch_ended: tuple[int, float] = (-1, 0.0)  # which one ended last in this session, and when, in training's seconds
    paces: tuple[_Pace, ...] = ()
    points: tuple[tuple[int, float], ...] = ()
    resumed_at: tuple[int, ...] = ()
    sessions: int = 1
    restored: events.Restored | None = None
    inexact: str = ""
    saving: events.SaveStarted | None = None
    saves: tuple[Saved, ...] = ()
    place: Place | None = None
    safe_step: int | None = None
    safe_seconds: float = 0.0
    upload: events.UploadMeasured | None = None
    failing: str = ""
    degraded: str = ""
    trouble_since: float = 0.0
    cadence: Cadence | None = None
    ends_at: float | None = None
    deadline: events.DeadlineNear | None = None
    happened: tuple[TimedMessage, ...] = ()
    complete: events.AlreadyComplete | None = None
    broken: events.LossNotFinite | None = None
    seen: events.FolderSeen | None = None
    lost: str | None = None
    stopped: events.RunStopped | None = None

    @property
    def folder(self) -> bool:
        """Is it the folder of another program?"""
        return bool(self.started.keeps)

    @property
    def phase(self) -> Phase:
        """The state that matters most of those that hold."""
        if self.stopped is not None:
            return end_of(self.stopped.reason, self.nan_since)
        if not self.started.session or self.broken is not None:
            return "nan" if self.started.session else "starting"
        if self.deadline is not None:
            return "ending"
        own, place = self.newest_own, self.place
        if self.failing or self.degraded or (own is not None and place is not None and place.persists is False):
            return "degraded"
        if self.saving is not None:
            return "saving"
        if own is None or place is None:
            return "fresh" if self.restored is None else "resumed"
        if not self.has_arrived(own):
            return "uploading"
        return "durable" if self.lasts else "saved"

    @property
    def nan_since(self) -> int | None:
        """The step since which the loss is not finite."""
        return None if self.broken is None else self.broken.step

    @property
    def newest_own(self) -> Saved | None:
        """The newest checkpoint that this session wrote."""
        return next((saved for saved in self.saves if saved.own and not saved.gone), None)

    @property
    def lasts(self) -> bool:
        """Is it known that what has arrived in the run's place outlives this machine?"""
        return self.place is not None and self.place.lasts

    def has_arrived(self, saved: Saved) -> bool:
        """Is it as durable as it can become?"""
        return self.place is not None and has_arrived(saved.level, self.place.top)

    @property
    def share(self) -> float | None:
        """How much of the run is done, from 0 to 1; None if its length is not known."""
        progress, shares = self.progress, []
        if self.max_steps is not None:
            shares.append(progress.step / self.max_steps)
        if self.max_epochs is not None and (self.epoch_batches or not progress.batches):
            within = progress.batches / self.epoch_batches if self.epoch_batches else 0.0
            shares.append((progress.epoch + within) / self.max_epochs)
        return min(1.0, max(shares)) if shares else None

    @property
    def total_steps(self) -> int | None:
        """How many steps the run will have, where that is certain: by epochs, if each batch was a step so far."""
        if self.max_epochs is None:
            return self.max_steps
        if self.epoch_batches is None:
            return None
        batches = self.progress.epoch * self.epoch_batches + self.progress.batches
        if batches != self.progress.step:
            return None
        total = self.max_epochs * self.epoch_batches
        return total if self.max_steps is None else min(total, self.max_steps)

    def _rate(self, count: Callable[[_Pace], float | None], least: float = 0.0) -> float | None:
        """How much more of it there is in a second of the last half minute of training, saves and validation included;
        None where that is not told, or for no more than `least` seconds."""
        told = [(pace.seconds, number) for pace in self.paces if (number := count(pace)) is not None]
        if not told or told[-1][0] - told[0][0] <= least:
            return None
        return (told[-1][1] - told[0][1]) / (told[-1][0] - told[0][0])

    @property
    def steps_per_second(self) -> float | None:
        """The speed; None for epochs that take no steps."""
        return self._rate(lambda pace: pace.step) or None

    @property
    def samples_per_second(self) -> float | None:
        """The same, in samples; None where they are not counted."""
        return self._rate(lambda pace: pace.samples) or None

    @property
    def tokens_per_second(self) -> float | None:
        """The same, in tokens; None where the loop does not tell them."""
        return self._rate(lambda pace: pace.tokens)

    @property
    def reading(self) -> float | None:
        """The share of the time, from 0 to 1, in which the loop waited for its next batch."""
        return self._rate(lambda pace: pace.waited, least=_LEAST)

    @property
    def metrics(self) -> Mapping[str, float]:
        """The latest value of each metric that was logged, in the order of their first."""
        found = dict[str, float]()
        for row in self.epochs[-_RECENT:]:
            found.update(row.metrics)
        return found

    def series(self, metric: str) -> tuple[tuple[int, float], ...]:
        """The values of a metric, one of each epoch: (step, value)."""
        return tuple((row.step, row.metrics[metric]) for row in self.epochs if metric in row.metrics)

    @property
    def judged_by(self) -> tuple[str, str]:
        """The metric that tells which epoch is the best, and "min" or "max": the one that is monitored, else the
        validation's loss; "" where there is none."""
        if self.started.monitor:
            return self.started.monitor, self.started.mode
        known = self.metrics
        return next((name for name in ("val_loss", "eval_loss", "valid_loss") if name in known), ""), "min"

    @property
    def best_epoch(self) -> EpochRow | None:
        """The first of those in which that metric was best."""
        metric, mode = self.judged_by
        found = [row for row in self.epochs if math.isfinite(row.metrics.get(metric, math.nan))]
        if not found:
            return None
        pick = min if mode == "min" else max
        return pick(found, key=lambda row: row.metrics[metric])

    @property
    def seconds_left(self) -> float | None:
        """Until the end of the run, at that speed."""
        share, speed = self.paces[-1].share if self.paces else None, self._rate(lambda pace: pace.share)
        if share is None or share >= 1.0 or speed is None or speed <= 0.0:
            return None
        return (1.0 - share) / speed

    @property
    def asking(self) -> bool:
        """Has the storage not said yet whether it has the checkpoint that training resumed from?"""
        return self.restored is not None and self.place is None

    @property
    def lost_steps(self) -> int:
        """Steps that would have to be repeated if the machine vanished now."""
        return max(0, self.progress.step - (self.safe_step or 0))

    @property
    def lost_seconds(self) -> float:
        """Seconds of training that would have to be repeated."""
        return max(0.0, self.progress.seconds - (self.safe_seconds if self.safe_step is not None else 0.0))

    @property
    def session_left(self) -> float | None:
        """Seconds until the machine goes, at most; None where nothing is known of it."""
        return None if self.ends_at is None else max(0.0, self.ends_at - self.now)

    # -- events ----------------------------------------------------------------------------------------

    def take(self, event: Event, now: float) -> None:
        """Let an event that came at `now` change what is shown."""
        self.now = now
        self._take_facts(event)
        self._take_training(event)
        self._take_saving(event)
        told = None if isinstance(event, _NOT_LISTED) else sentence(event, folder=self.folder)
        if told is not None and (not self.happened or self.happened[0].text != told):
            self.happened = (TimedMessage(now, told), *self.happened)[:_HAPPENED]

    def _take_facts(self, event: Event) -> None:
        match event:
            case events.RunStarted():
                self.started, self.ends_at = event, event.ends_at
            case events.LengthTold():
                self.max_epochs = self.max_epochs if event.max_epochs is None else event.max_epochs
                self.max_steps = self.max_steps if event.max_steps is None else event.max_steps
            case events.MachineChecked():
                self.check = event
            case events.MachineGiven():
                self.machine, self.platform = event, self.platform or event.platform
            case events.DeadlineNear():
                self.deadline, self.ends_at = event, self.now + event.seconds

    def _take_training(self, event: Event) -> None:
        match event:
            case events.StepDone():
                self._step(event)
            case events.EpochDone():
                self._at(event.progress)
                self._epoch_done(event)
            case events.MetricsLogged():
                if event.progress.step > self.progress.step:  # as for a save: of steps a display hears few
                    self._at(event.progress)
                self._logged(event.progress.epoch, event.progress.step, event.metrics)
            case events.Restored():
                self._restored(event)
            case events.Recalled():
                self.points, self.sessions = _thinned(event.points), event.sessions
                for record in event.history:
                    known = {name: value for name, value in record.items() if name not in ("epoch", "step")}
                    self._logged(record["epoch"], record["step"], known)
                self.resumed_at = tuple(sorted({*self.resumed_at, *event.resumed_at}))
            case events.RestoredInexactly():
                self.inexact = self.inexact or event.reason
            case events.LossNotFinite():
                before = None if self.broken is None else self.broken.checkpoint
                self.broken = replace(event, checkpoint=event.checkpoint or before)
            case events.LossRecovered():
                self.broken = None
            case events.AlreadyComplete():
                self.complete = event
            case events.RunStopped():
                self._at(event.progress)
                self.stopped, self.saving = event, None

    def _take_saving(self, event: Event) -> None:
        match event:
            case events.SaveStarted():
                self.saving = event
                # A display hears of few steps: without this one, more would be safe than was ever trained.
                if event.progress.step > self.progress.step:
                    self._at(event.progress)
            case events.SaveCommitted():
                self._committed(event)
            case events.SaveFailing():
                self._trouble()
                self.saving, self.failing = None, event.error
            case events.StoreDegraded():
                if not event.healed:
                    self._trouble()
                self.degraded = "" if event.healed else event.detail
            case events.DurabilityReached():
                level = _level(event.level)
                self.saves = tuple(
                    replace(each, level=level) if each.checkpoint == event.checkpoint else each for each in self.saves
                )
                self._safer()
            case events.DurabilityTold():
                self._durability(event.durability)
            case events.FolderSeen():
                self.seen = event
                self._durability(event.durability)
            case events.CadenceChosen():
                measures = Measures(cost=event.cost, session=event.session, carried=event.carried)
                self.cadence = Cadence(
                    seconds=event.interval,
                    least=event.interval,
                    why=event.reason,
                    overhead=event.overhead,
                    measures=measures,
                )
            case events.UploadMeasured():
                self.upload = event
            case events.Pruned():
                self.saves = tuple(
                    replace(each, gone=each.gone or each.checkpoint in event.checkpoints) for each in self.saves
                )

    def _at(self, progress: Progress) -> None:
        """The speed is measured over the last half minute of training."""
        self.progress = progress
        recent = [pace for pace in self.paces if pace.seconds >= progress.seconds - _WINDOW]
        now = _Pace(progress.step, self.share, progress.seconds, progress.samples, self.tokens, self.waited)
        self.paces = (*recent[-_PACES:], now)

    def _step(self, event: events.StepDone) -> None:
        self.epoch_batches = event.epoch_batches or self.epoch_batches
        self.tokens, self.waited, self.grad_norm = _one_number(event.tokens), event.waited, _one_number(event.grad_norm)
        self._at(event.progress)
        self.loss = _one_number(event.loss)
        self.learning_rate = event.learning_rate
        if self.loss is not None:
            last = (
                ()
                if event.points and event.points[-1][0] >= event.progress.step
                else ((event.progress.step, self.loss),)
            )
            self.points = _thinned((*(event.points or self.points), *last))

    def _logged(self, epoch: int, step: int, metrics: Mapping[str, float]) -> None:
        """A metric that is logged several times in an epoch counts with its last value."""
        rows, seconds = self.epochs, None
        if rows and rows[-1].epoch == epoch:
            metrics, seconds, rows = {**rows[-1].metrics, **metrics}, rows[-1].seconds, rows[:-1]
        rows = (*rows, EpochRow(epoch, step, metrics, seconds))
        if len(rows) > _EPOCHS:
            best = self.best_epoch
            rows = (*(row for number, row in enumerate(rows[:-_RECENT]) if number % 2 or row is best), *rows[-_RECENT:])
        self.epochs = rows

    def _epoch_done(self, event: events.EpochDone) -> None:
        """How long it took is known where this session saw its beginning too."""
        (before, began), now = self.epoch_ended, event.progress.seconds
        whole = event.epoch == before + 1 and (before >= 0 or self.restored is None)
        self.epoch_ended = event.epoch, now
        if self.epochs and self.epochs[-1].epoch == event.epoch:
            last = replace(self.epochs[-1], seconds=now - began if whole else None)
            self.epochs = (*self.epochs[:-1], last)

    def _restored(self, event: events.Restored) -> None:
        step, seconds = event.progress.step, event.progress.seconds
        self._at(event.progress)
        self.restored = event
        self.resumed_at = tuple(sorted({*self.resumed_at, step}))
        self.sessions = max(self.sessions, 2)
        # Its level is not known before the store is asked: the lowest that a checkpoint can have is never too good.
        self._remember(Saved(checkpoint=event.checkpoint, step=step, seconds=seconds, level="local"))

    def _committed(self, event: events.SaveCommitted) -> None:
        step, seconds = event.progress.step, event.progress.seconds
        stall = 0.0 if self.saving is None else self.saving.blocked
        self._remember(
            Saved(
                checkpoint=event.checkpoint,
                step=step,
                seconds=seconds,
                level=_level(event.level),
                bytes=event.bytes,
                own=True,
                stall=stall,
                copy=event.copy,
            )
        )
        self.saving, self.failing = None, ""
        if self.broken is not None and step < (self.broken.finite or 0):  # it was on its way when the loss broke
            self.broken = replace(self.broken, checkpoint=event.checkpoint)
        self._safer()

    def _trouble(self) -> None:
        if not self.failing and not self.degraded:
            self.trouble_since = self.now

    def _safer(self) -> None:
        """What would be lost is announced some seconds later (`Ledger`). Until then the panel would say that a
        checkpoint is safe, and that everything since the one before would be lost."""
        if self.place is None or self.place.persists is False:
            return
        at_top = (each for each in self.saves if each.own and not each.gone and each.level == self.place.top)
        newest = next(at_top, None)
        if newest is not None and newest.step > (self.safe_step or 0):
            self.safe_step, self.safe_seconds = newest.step, newest.seconds

    def _durability(self, durability: Durability) -> None:
        known = {saved.checkpoint: saved for saved in self.saves}
        self.place, self.safe_step, self.safe_seconds = durability.place, None, 0.0
        self.lost = durability.lost
        for each in durability.standings:
            if each.checkpoint is None:
                continue
            fresh = Saved(checkpoint=each.checkpoint, step=each.step, seconds=each.seconds, level=each.level)
            self._remember(replace(known.get(each.checkpoint, fresh), level=each.level))
            if each.checkpoint == durability.checkpoint:
                self.safe_step, self.safe_seconds = each.step, each.seconds

    def _remember(self, saved: Saved) -> None:
        """A checkpoint, or what is known of it now; the newest ones stay."""
        others = (each for each in self.saves if each.checkpoint != saved.checkpoint)
        saves = sorted((*others, saved), key=lambda each: (each.step, each.checkpoint), reverse=True)
        self.saves = tuple(saves[:_SAVES])


def end_of(stopped: str, nan_since: int | None) -> Phase:
    """The state in which a session ended, by the reason that `RunStopped` has."""
    if stopped != "error" and nan_since is not None:
        return "diverged"
    known: Mapping[str, Phase] = {"error": "failed", "finished": "finished", "max_steps": "finished"}
    return known.get(stopped, "interrupted")


def _thinned(points: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    while len(points) > _POINTS:
        points = points[::2]
    return tuple(points)


def _level(name: str) -> CheckpointLevel:
    return next((level for level in LEVELS if level == name), "unknown")


def _one_number(value: object) -> float | None:
    """What a loop passed, as a number; None for what is not one, such as a tensor of many: it is not drawn then."""
    if value is None:
        return None
    try:
        return as_number(value)
    except (TypeError, ValueError, RuntimeError):
        return None


_RUSH = 0.25  # seconds between two showings at least, also where the state changes with every step


class Paced:
    """A panel that is shown every `pause` seconds. By the clock's `monotonic`, `next` is the time when it is due, and
    `steps_from` the one from which a step is wanted again: a showing between, for a save, does not put that off."""

    def __init__(self, clock: Clock, state: PanelState, pause: float) -> None:
        self.state = state
        self.next = self.steps_from = clock.monotonic()
        self._clock = clock
        self._pause = pause
        self._shown: Phase | None = None

    def due(self, event: Event) -> bool:
        """Take an event. Is the state to be shown now?"""
        self.state.take(event, self._clock.time())
        now, phase = self._clock.monotonic(), self.state.phase
        if isinstance(event, events.StepDone):
            self.steps_from = now + self._pause
        rushed = now < self.next - self._pause + _RUSH
        if phase not in FINAL and now < self.next and (phase == self._shown or rushed):
            return False
        self.next, self._shown = now + self._pause, phase
        return True
