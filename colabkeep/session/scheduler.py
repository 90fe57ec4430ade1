"""When a run is saved: when due, when asked, and once more on the way out; what `save_every="auto"` is fed with;
and what is done when its loss is no finite number.
"""

from __future__ import annotations

import math
import signal
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

from colabkeep.checkpoint.repository import Repository
from colabkeep.checkpoint.restore import good_before
from colabkeep.checkpoint.writer import Checkpointer
from colabkeep.core.errors import NotStorable, RunTakenOver, SaveFailed, StoreError, TrainingDiverged, UsageError
from colabkeep.core.events import (
    CadenceChosen,
    EpochDone,
    Event,
    LossNotFinite,
    LossRecovered,
    Noted,
    Pruned,
    SaveCommitted,
    SaveFailing,
    SaveStarted,
    UploadMeasured,
)
from colabkeep.core.manifest import Manifest
from colabkeep.core.policies import (
    Cadence,
    Measures,
    OnNan,
    SaveMark,
    SavePolicy,
    SessionLifetime,
    adapt,
    choose,
    improved,
    is_auto,
    unmeasured,
)
from colabkeep.core.rate_limits import Budget
from colabkeep.core.state import Stateful
from colabkeep.core.system import Clock
from colabkeep.frameworks.base import Boundary
from colabkeep.session.event_bus import UploadLatency
from colabkeep.session.machine import ALL_SAVED, Sessions, UsualLifetime, earlier_lifetimes, still_copying, still_saving
from colabkeep.session.metrics import LOSSES, History, LossRecord, plain_points
from colabkeep.session.open import OpenSession, RunSpec, Value
from colabkeep.session.position import Position
from colabkeep.session.settings import SETTINGS

__all__ = [
    "Circumstances",
    "IntervalTuner",
    "Killed",
    "LossGuard",
    "SaveScheduler",
    "Slowdown",
    "StopTraining",
    "leaving_reason",
    "read_on_nan",
]


def read_on_nan(word: object) -> OnNan:
    """The argument `on_nan`.

    Raises:
        UsageError: none of the known words.
    """
    if word == "stop":
        return "stop"
    if word == "warn":
        return "warn"
    raise UsageError(
        problem=f"on_nan={word!r} is unknown.",
        remedy='Use "warn" (it is told, and training goes on) or "stop" (training ends with an error).',
    )


class LossGuard:
    """Turns what `losses` notice into events, for one session. An observer of its saves, so that it knows what there is
    to go back to; `start`: the checkpoint that the session went on from."""

    steps_from = math.inf

    def __init__(self, losses: LossRecord, saver: Checkpointer, spec: RunSpec, start: Manifest | None) -> None:
        self._losses = losses
        self._saver = saver
        self._spec = spec
        self._start = start
        self._own: dict[str, int] = {}  # the checkpoints of this session that are there, and their steps

    def __call__(self, event: Event) -> None:
        """A checkpoint came or went."""
        if isinstance(event, SaveCommitted):
            self._own[event.checkpoint] = event.progress.step
        elif isinstance(event, Pruned):
            for id in event.checkpoints:
                self._own.pop(id, None)

    def judge(self, *, stopping: bool = True) -> None:
        """Tell what `LossRecord.hear` has noticed. `stopping`: training may be ended for it, if that was asked for.

        Raises:
            TrainingDiverged: the loss is not a finite number, and ``on_nan="stop"``.
        """
        proof, since, stops = self._losses.proof, self._losses.told, stopping and self._spec.on_nan == "stop"
        if since is None:
            proof.named = ""
            self._saver.events.append(LossRecovered(step=proof.finite or 0))
            return
        if stops:
            self._saver.wait()  # a save under way may be the one to go back to
        good = self._good(proof.finite or 0)
        proof.named = good or ""
        event = LossNotFinite(step=since, value=proof.value, finite=proof.finite, checkpoint=good)
        self._saver.events.append(event)
        if stops:
            raise _diverged(event)

    def _good(self, finite: int) -> str | None:
        known, saved, newest = dict(self._own), self._saver.saved, self._saver.newest
        if saved is not None and newest is not None:
            known[newest] = saved.step  # the event may be on its way
        own = [id for id, step in known.items() if step < finite]
        if own:
            return max(own, key=lambda id: known[id])
        if self._start is None:
            return None
        try:  # of its own: what a repository remembers of listings is not for two threads
            return good_before(Repository(self._spec.store, self._spec.name), self._start, finite)
        except StoreError:
            return None  # it cannot be asked now; `colabkeep show` lists them


def _diverged(event: LossNotFinite) -> TrainingDiverged:
    causes = "a smaller learning rate, clipped gradients, the batch that has it"
    back = (
        f"Its newest checkpoint from before is {event.checkpoint}. Change what led there ({causes}), and run the cell "
        f'again with resume="{event.checkpoint}".'
        if event.checkpoint
        else f"It has no checkpoint from before. Change what led there ({causes}), and start again with another "
        'run_name or resume="never".'
    )
    return TrainingDiverged(
        problem=f'The loss is {event.word} since step {event.step}, so training was stopped (on_nan="stop"). The '
        "weights of that step were not saved.",
        remedy=back,
    )


_REMEMBERED = 9  # saves, and stretches between them: the median of so many is not moved by a few that were disturbed
_FEWEST = 3  # steps that make a stretch worth comparing with


class Slowdown:
    """How much slower steps are while a save is in the background, by comparison with those before it: seconds of a
    stretch with a save, less what its steps take otherwise. Nothing is measured at each step: only where stretches
    begin and end, so it costs training nothing.

    A stretch in which an epoch ended is left out, for there is a validation in it; and so is the one before the first
    save, for the first steps are slower than all others."""

    def __init__(self) -> None:
        self._paces: deque[float] = deque(maxlen=_REMEMBERED)  # seconds of a step, without a save
        self._since: tuple[int, float] | None = None  # the step and the time at which this stretch began

    def begin(self, step: int, now: float) -> None:
        """A stretch begins here."""
        self._since = step, now

    def spoil(self) -> None:
        """This stretch is not comparable."""
        self._since = None

    def quiet(self, step: int, now: float) -> None:
        """The stretch without a save ends here."""
        steps, seconds = self._length(step, now)
        if steps >= _FEWEST:
            self._paces.append(seconds / steps)

    def slowed(self, step: int, now: float) -> float | None:
        """The stretch with a save ends here: how many seconds it took longer; less than 0 is noise. None: not known."""
        steps, seconds = self._length(step, now)
        return seconds - steps * median(self._paces) if steps and self._paces else None

    def _length(self, step: int, now: float) -> tuple[int, float]:
        return (0, 0.0) if self._since is None else (step - self._since[0], now - self._since[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What does not change within a session. `overhead`: the share of time that saves may cost. `far`: a save goes
    over a network. `past`: reads how long earlier sessions lived; called on a thread of its own, for it may ask a
    service. `step`: the last step that is done. `arrival`: seconds from a commit until the save is safe, at a time.
    `budget`: what the place takes for a time, where that is known."""

    overhead: float
    usual: UsualLifetime
    far: bool
    past: Callable[[], Sequence[SessionLifetime]]
    step: Callable[[], int]
    arrival: Callable[[float], float]
    budget: Budget | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spent:
    """One save. Seconds that training was `blocked`, and by which the steps beside it were `slowed` (None: not known);
    `seconds` of the background, and the new `written` bytes."""

    blocked: float
    slowed: float | None
    seconds: float
    written: int


class IntervalTuner:
    """Measures, and adapts the policy: `policy` is the one to ask now. An observer of a run's events, on the training
    thread; `say` tells an event of its own, also from the thread that reads the past. Where the user said when to save,
    it does nothing.
    """

    steps_from = math.inf  # wants to hear of no step

    def __init__(
        self, policy: SavePolicy, circumstances: Circumstances, clock: Clock, say: Callable[[Event], None]
    ) -> None:
        self.policy = policy
        self.chooses = is_auto(policy)
        self._here = circumstances
        self._clock = clock
        self._say = say
        self._slowdown = Slowdown()
        self._blocked: float | None = None  # seconds, of the save in flight
        self._saves: deque[_Spent] = deque(maxlen=_REMEMBERED)
        self._speed: float | None = None  # bytes per second of the link to the slower side
        self._lives: Sequence[SessionLifetime] = ()
        self._reader: threading.Thread | None = None
        self._cadence: Cadence | None = None
        self._told: Cadence | None = None

    def __call__(self, event: Event) -> None:
        """Take what an event tells of saving."""
        if not self.chooses:
            return
        if isinstance(event, SaveStarted):
            self._started(event)
        elif isinstance(event, SaveCommitted):
            self._committed(event)
        elif isinstance(event, (EpochDone, SaveFailing)):
            self._slowdown.spoil()
        elif isinstance(event, UploadMeasured) and event.bytes_per_second > 0:
            self._speed = event.bytes_per_second

    def close(self, patience: float = 2.0) -> None:
        """Wait for the past to be read, for so many seconds at most: the store is closed next."""
        if self._reader is not None:
            self._reader.join(patience)

    def _started(self, event: SaveStarted) -> None:
        now = self._clock.monotonic()
        if self._blocked is not None:  # the one before came to nothing: there was a save in this stretch all the same
            self._slowdown.spoil()
        self._slowdown.quiet(event.progress.step, now - event.blocked)
        self._slowdown.begin(event.progress.step, now)
        self._blocked = event.blocked
        if self._cadence is None:  # the next save waits for what this one shows
            self.policy = adapt(self.policy, unmeasured(self._measures(self._sessions()), self._here.overhead))
        if self._reader is None:  # not sooner: a session begins without these requests
            self._reader = threading.Thread(target=self._read, name="colabkeep-past", daemon=True)
            self._reader.start()

    def _committed(self, event: SaveCommitted) -> None:
        now, step = self._clock.monotonic(), self._here.step()
        spent = _Spent(
            blocked=self._blocked or 0.0,
            slowed=self._slowdown.slowed(step, now),
            seconds=event.seconds,
            written=event.written,
        )
        self._saves.append(spent)
        self._blocked = None
        self._slowdown.begin(step, now)
        sessions = self._sessions()  # once: the past may be read at any moment
        cadence = choose(self._measures(sessions), self._here.overhead, self._cadence)
        self._cadence, self.policy = cadence, adapt(self.policy, cadence)
        if improved(cadence, self._told):
            self._told = cadence
            self._say(_chosen(cadence, sessions.source))

    def _sessions(self) -> Sessions:
        return Sessions(usual=self._here.usual, lives=self._lives)

    def _measures(self, sessions: Sessions) -> Measures:
        here = self._here
        return Measures(
            cost=_cost(self._saves),
            session=sessions.seconds,
            carried=max(_carried(self._saves, self._speed), here.arrival(self._clock.monotonic())),
            budget=_apart(self._saves, here.budget),
            far=here.far,
            vanishes=sessions.vanishes,
        )

    def _read(self) -> None:
        try:
            self._lives = self._here.past()
        except Exception as error:  # noqa: BLE001  # a thread has no caller; told
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            text = f"The past of this run could not be read ({why}): how often it is saved goes by what is usual here."
            self._say(Noted(text=text))


def _chosen(cadence: Cadence, source: str) -> CadenceChosen:
    measures = cadence.measures
    return CadenceChosen(
        interval=cadence.seconds,
        cost=measures.cost,
        session=measures.session,
        overhead=cadence.overhead,
        reason=cadence.why,
        text=cadence.sentence(),
        source=source,
        carried=measures.carried,
    )


def _cost(saves: Sequence[_Spent]) -> float:
    """Seconds that a save costs training: waiting, and slower steps as far as these are known. A single save may be
    disturbed by anything; steps that seem quicker beside a save are noise."""
    if not saves:
        return 0.0
    stall = median(each.blocked for each in saves)
    known = [each.blocked + each.slowed for each in saves if each.slowed is not None]
    return max(stall, median(known)) if known else stall


def _carried(saves: Sequence[_Spent], speed: float | None) -> float:
    """Seconds that storage takes for a save: the background's, or those of the link where that is slower."""
    if not saves:
        return 0.0
    sending = 0.0 if speed is None else median(each.written for each in saves) / speed
    return max(median(each.seconds for each in saves), sending)


def _apart(saves: Sequence[_Spent], budget: Budget | None) -> float:
    """Seconds between two saves like these that the place's budget allows for."""
    return 0.0 if budget is None or not saves else budget.interval(round(median(each.written for each in saves)))


_LONGEST = 1800.0  # seconds; a save, or its arrival, that takes longer is not foreseen when the end of a session nears
_BEHIND = (
    "the newest checkpoint is on this machine's disk only. Run the cell again while the machine lives, and it is sent."
)
_HANGS = "The disk of this machine hangs: for minutes not a byte of the last save was taken"
_LAST_TRIES = (0.0, 0.2, 0.8)  # seconds before each attempt at the last save of a session: nobody comes after it


class StopTraining(BaseException):
    """Leaves the loop of a run; the run's `with` block ends it.

    A BaseException, so that an `except Exception` around a training step does not swallow it.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Killed(BaseException):
    """Leaves the loop of a run as a kill would: nothing is saved any more."""


class SaveScheduler:
    """Decides and asks the engine to save. `metrics` are those measured at the current boundary."""

    def __init__(
        self, spec: RunSpec, position: Position, session: OpenSession, history: History, losses: LossRecord
    ) -> None:
        self.metrics: dict[str, float] = {}
        self.left = ""  # where the loop was left, if what it does there was left out
        self._spec = spec
        self._position = position
        self._history = history
        self._losses = losses
        self._journal = session.journal
        self._settings = session.settings
        self._saver = session.checkpointer
        for name, own in (("history", history), ("losses", losses)):
            if name in session.trees:
                own.load_state_dict(session.trees[name])
        self._start = position.progress
        self._mark = SaveMark(progress=position.progress, at=spec.clock.monotonic())
        self._asked: str | None = None
        self.waits = False  # is the save that was asked for waited for?
        self.gradients: Stateful | None = None  # of the boundary, where it keeps any
        self._deadline = spec.deadline
        self._watch_from = math.inf if spec.deadline is None else spec.deadline.last_call(2 * _LONGEST)
        self._starting = session.starting
        properties = spec.store.properties
        self._far = properties.behind is not None or properties.top_rung != "local"
        self._settles_until = math.inf  # in seconds of the clock: so long slower storage is waited for, at the end
        self._arrivals = UploadLatency(properties.top_rung, spec.clock)
        budget = (properties.behind or properties).budget
        # A version is sent every so often, whatever was saved by then: to save less often would not bring one sooner.
        arrival = (lambda _: 0.0) if properties.versions else self._arrivals.usual
        self._pace = _interval_tuner(spec, session, position, arrival, far=self._far, budget=budget)
        self._guard = LossGuard(losses, session.checkpointer, spec, session.resumed_from)
        self.observers: tuple[UploadLatency, IntervalTuner, LossGuard] = (self._arrivals, self._pace, self._guard)

    def count(self, step: int, loss: Any) -> None:
        """A step is done: what was measured before it is of other weights. Raises as `LossGuard.judge`."""
        self.metrics = {}
        if self._losses.hear(step, loss):
            self._guard.judge()
        if not self._starting.over:
            self._saver.events.append(self._starting.first_step())

    def due(self, now: float) -> str | None:
        """The reason to save at this boundary, or None. `now` in seconds of the run's clock."""
        here, pace = self._position.progress, self._pace
        return (
            (now >= self._watch_from and self._near(now))
            or self._asked
            or self._saver.due(now)
            or pace.policy.due(here, self._mark, now)
            or (pace.chooses and not here.batches and self._is_best() and "best")
            or None
        )

    def until_safe(self, now: float) -> float:
        """Seconds that a save takes here until it is safe where it ends up; more than an hour is not foreseen."""
        return min(_LONGEST, self._saver.longest) + min(_LONGEST, self._arrivals.seconds(now))

    def ends(self, now: float) -> bool:
        """Has the end of the session come so near that training has to end by itself?"""
        return now >= self._watch_from and self._near(now) is not None

    def _near(self, now: float) -> str | None:
        """ "deadline", once, when the last save before the end of the session must begin."""
        if self._deadline is None or now < self._deadline.last_call(self.until_safe(now)):
            return None
        self._watch_from = math.inf
        return "deadline"

    def save(self, reason: str, *, wait: bool = False) -> None:
        """Save the boundary we are at; with `wait`, return when that is committed.

        Raises:
            SaveFailed, RunTakenOver, NotStorable: training must not go on.
        """
        if wait:
            self._saver.wait()
        self._asked, self.waits = None, False
        self._mark = SaveMark(progress=self._position.progress, at=self._spec.clock.monotonic())
        self._note_losses()
        self._saver.save(self._parts(), self._position.progress, reason, self.metrics)
        if wait and self._saver.wait() and self._saver.waiting is not None:  # what seemed frozen was changed: copy it
            self.save(reason, wait=True)
        if wait:
            self._saver.raise_past_failure()

    def ask(self, reason: str | None, *, wait: bool = False) -> None:
        """Save at the next boundary, and `wait` there until it is committed."""
        self._asked = reason or self._asked
        self.waits = self.waits or wait

    def wait_if_best(self) -> None:
        """Let a save in flight finish if the weights we are at are to be kept as among the best:
        a save of a later step, with other weights, would not do. One that hangs is not waited for."""
        if self._saver.busy and self._is_among_best():
            self._saver.wait()

    def leave(
        self, error: BaseException | None, boundary: Boundary, run: Leaving, waiting: Callable[[], None]
    ) -> str | None:
        """Save the last boundary on the way out, if it is not saved; try again if the storage fails for a
        moment. Returns what kept it from being saved, if anything did. `waiting` is called now and then meanwhile.

        Raises:
            SaveFailed, RunTakenOver, NotStorable: as `save`.
            TrainingDiverged: as `count`.
        """
        self._pace.chooses = False  # nothing is chosen for a session that ends
        if not self._saver.wait(meanwhile=waiting):
            return _HANGS
        if self._losses.settle():
            self._guard.judge(stopping=error is None or isinstance(error, StopTraining))
        if self._is_saved():
            self._saver.look()  # somebody may have removed it since
            self._saver.wait(meanwhile=waiting)
        if self._is_saved() or isinstance(error, (RunTakenOver, SaveFailed, NotStorable, TrainingDiverged, Killed)):
            return None
        obstacle = self._obstacle(error, boundary, run)
        if obstacle is not None:
            return obstacle
        for pause in _LAST_TRIES:
            self._spec.clock.sleep(pause)
            self.save(leaving_reason(error, finished=run.finished))
            if not self._saver.wait(meanwhile=waiting):
                return _HANGS
            if self._is_saved():
                return None
        return "The last step could not be saved, and there is no later one to save it with"

    def settle(self, waiting: Callable[[], None], *, abandoned: bool = False) -> None:
        """Wait until all is where it should be, for a bounded time, and let go of the store. What is to be told is with
        the other events.

        `waiting` is called now and then meanwhile: there may be events. `abandoned`: nothing is waited for."""
        there = False
        self._settles_until = self._spec.clock.monotonic() + self._spec.flush_timeout
        self._pace.close()
        try:
            if abandoned:
                self._saver.abandon()
            else:
                there = self._saver.close(self._spec.flush_timeout, waiting)
        finally:
            safe = self._saver.ledger.durability(self._position.progress.seconds).checkpoint
            if not there and safe != self._saver.newest and (self._is_saved() or not abandoned):
                self._saver.events.append(Noted(text=f"{self._spec.store.url} has not caught up yet: {_BEHIND}"))
            if self._spec.closes_store:
                self._spec.store.close()

    def answer(self, number: signal.Signals) -> Noted:
        """To somebody who asks to stop while the session ends already: what it still does, how long that takes, and
        what it would cost not to wait."""
        if self._saver.busy or not self._is_saved():
            lost = self._position.progress.step - (self._saver.saved or self._start).step
            return Noted(text=still_saving(number, self._saver.left, lost))
        left = self._settles_until - self._spec.clock.monotonic()
        return Noted(text=still_copying(number, self._spec.store.url, max(0.0, left)) if self._far else ALL_SAVED)

    def _note_losses(self) -> None:
        """In the part of the journal that is written beside this checkpoint."""
        points = [] if self._saver.busy else self._losses.news()
        if points:
            self._journal.add({"at": self._spec.clock.time(), "event": LOSSES, "points": plain_points(points)})

    def _is_best(self) -> bool:
        """Is this the end of an epoch, not saved yet, that is among the best? Where colabkeep chooses when to save,
        none of these is left out: no later save has its weights."""
        return self._position.progress != self._mark.progress and self._is_among_best()

    def _is_among_best(self) -> bool:
        best = self._spec.best
        if best is None or best.monitor not in self.metrics:
            return False
        return best.among_best(self.metrics[best.monitor], self._history.values(best.monitor))

    def _parts(self) -> Mapping[str, object]:
        about = {"seed": self._spec.seed, **({"left": self.left} if self.left else {})}
        own: dict[str, object] = {"run": Value(about), SETTINGS: self._settings}
        own |= {"history": self._history, "losses": self._losses}
        if self.gradients is not None and (standing := self.gradients.state_dict()):
            own["gradients"] = Value(standing)
        return {**self._spec.parts, **own, **self._position.parts()}

    def _is_saved(self) -> bool:
        safe, here = self._saver.saved or self._start, self._position.progress
        return (safe.epoch, safe.step, safe.batches) == (here.epoch, here.step, here.batches)

    def _obstacle(self, error: BaseException | None, boundary: Boundary, run: Leaving) -> str | None:
        """Bring the state to the last boundary; or say why that cannot be saved."""
        position, clean = self._position, error is None or isinstance(error, StopTraining)
        if position.blind:
            return "An epoch that takes steps outside of a loop over run.batches() can be saved at its end only"
        if position.behind and not run.resumes_behind:
            if not clean:
                return "The error came between the last batch of an epoch and its end, where no training can go on"
            position.end_epoch(position.progress.seconds)
            self.left = f"left behind the last batch of epoch {position.progress.epoch - 1}"
            return None
        if clean and position.stepped and not position.resting:
            return None  # what is there now is what the user left
        return self._rewind(boundary)

    def _rewind(self, boundary: Boundary) -> str | None:
        position = self._position
        if boundary.torn:
            return "The error came in the middle of a step, and half a step cannot be saved"
        if position.stepped and not position.resting:
            return "The error came behind run.step(), and what the loop does there would be left out in a resumed run"
        if not position.resting:
            parts = (f"it may have changed {name} already" for name in boundary.opaque)
            moved = next(parts, None) or position.rewind() or self._settings.rewind()
            if moved is not None:
                return f"The error came in the middle of a step: {moved}"
        boundary.rewind()
        return None


class Leaving(Protocol):
    """What a run says of itself when it ends."""

    finished: bool
    """Was the loop trained to its end?"""

    resumes_behind: bool
    """As in `Loop`."""


def _interval_tuner(
    spec: RunSpec,
    session: OpenSession,
    position: Position,
    arrival: Callable[[float], float],
    *,
    far: bool,
    budget: Budget | None,
) -> IntervalTuner:
    platform = "" if spec.machine is None else spec.machine.platform
    here = Circumstances(
        overhead=spec.overhead,
        usual=spec.usual,
        far=far,
        # A repository of its own: what it remembers of listings is not for two threads.
        past=lambda: earlier_lifetimes(Repository(spec.store, spec.name), session.id, platform),
        step=lambda: position.progress.step,
        arrival=arrival,
        budget=budget,
    )
    return IntervalTuner(spec.save_every, here, spec.clock, session.checkpointer.events.append)


def leaving_reason(error: BaseException | None, *, finished: bool) -> str:
    """In a word, why a session ends."""
    if error is None:
        return "finished" if finished else "left"
    if isinstance(error, StopTraining):
        return error.reason
    if isinstance(error, KeyboardInterrupt):
        return "interrupt"
    return {129: "sighup", 143: "sigterm"}.get(_status(error), "error")


def _status(error: BaseException) -> int:
    return error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
