"""When a run is saved: when due, when asked, and once more on the way out."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from colabkeep._engine.repository import Repository
from colabkeep.frameworks.base import Boundary
from colabkeep.session.arrivals import Arrivals
from colabkeep.session.cadence import Circumstances, Pacemaker
from colabkeep.session.guarding import LossGuard
from colabkeep.session.history import History
from colabkeep.session.leaving import ALL_SAVED, still_copying, still_saving
from colabkeep.session.lives import earlier_lives
from colabkeep.session.losses import LOSSES, LossRecord, plain_points
from colabkeep.session.opening import OpenSession, RunSpec, Value
from colabkeep.session.position import Position
from colabkeep.session.settings import SETTINGS
from colabkeep.vocabulary.budget import Budget
from colabkeep.vocabulary.errors import NotStorable, RunTakenOver, SaveFailed, TrainingDiverged
from colabkeep.vocabulary.events import Noted
from colabkeep.vocabulary.policies import SaveMark
from colabkeep.vocabulary.state import Stateful

__all__ = ["Keeper", "Killed", "StopTraining", "leaving_reason"]

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


class Keeper:
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
        self._arrivals = Arrivals(properties.top_rung, spec.clock)
        budget = (properties.behind or properties).budget
        # A version is sent every so often, whatever was saved by then: to save less often would not bring one sooner.
        arrival = (lambda _: 0.0) if properties.versions else self._arrivals.usual
        self._pace = _pacemaker(spec, session, position, arrival, far=self._far, budget=budget)
        self._guard = LossGuard(losses, session.checkpointer, spec, session.resumed_from)
        self.observers: tuple[Arrivals, Pacemaker, LossGuard] = (self._arrivals, self._pace, self._guard)

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


def _pacemaker(
    spec: RunSpec,
    session: OpenSession,
    position: Position,
    arrival: Callable[[float], float],
    *,
    far: bool,
    budget: Budget | None,
) -> Pacemaker:
    platform = "" if spec.machine is None else spec.machine.platform
    here = Circumstances(
        overhead=spec.overhead,
        usual=spec.usual,
        far=far,
        # A repository of its own: what it remembers of listings is not for two threads.
        past=lambda: earlier_lives(Repository(spec.store, spec.name), session.id, platform),
        step=lambda: position.progress.step,
        arrival=arrival,
        budget=budget,
    )
    return Pacemaker(spec.save_every, here, spec.clock, session.checkpointer.events.append)


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
