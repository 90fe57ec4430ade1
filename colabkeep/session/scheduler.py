"""When a run is saved: when due, how often that is, when asked, and once more on the way out; and what is done when its
loss is no finite number.
"""

from __future__ import annotations

import math
import signal
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from colabkeep.checkpoint.journal import read_journal
from colabkeep.checkpoint.repository import Repository, fences
from colabkeep.checkpoint.restore import good_before
from colabkeep.core.errors import NotStorable, RunTakenOver, SaveFailed, StoreError, TrainingDiverged
from colabkeep.core.events import (
    CadenceChosen,
    CheckpointLevel,
    DurabilityReached,
    EpochDone,
    Event,
    LossNotFinite,
    LossRecovered,
    MetricsLogged,
    Noted,
    Pruned,
    RunStopped,
    SaveCommitted,
    SaveFailing,
    SaveStarted,
    has_arrived,
)
from colabkeep.core.layout import id_parts
from colabkeep.core.policies import (
    Cadence,
    Measures,
    SaveMark,
    SavePolicy,
    SessionLifetime,
    adapt,
    choose,
    improved,
    is_auto,
    mean_session,
    steps_until_due,
    unmeasured,
)
from colabkeep.core.rate_limits import Budget
from colabkeep.core.system import Clock
from colabkeep.frameworks.base import Boundary
from colabkeep.session.machine import ALL_SAVED, UsualLifetime, still_copying, still_saving
from colabkeep.session.open import Observer, OpenSession, RunSpec, rehearse
from colabkeep.session.rehearsal import Killed
from colabkeep.session.state import LOSSES, History, Position, plain_points

_SESSIONS_LOOKED_AT = 8  # sessions; the first and the last part of the journal of each is a request
_LONGEST_LIFE = 7 * 24 * 3600.0  # seconds; what claims more had its clock set meanwhile, as machines do when they boot
_REMEMBERED = 9  # saves, and stretches between them: the median of so many is not moved by a few that were disturbed
_ARRIVALS = 5  # checkpoints; links and services change within a session
_FEWEST = 3  # steps that make a stretch worth comparing with
_HEARD = 0.5  # seconds, as long as steps take what they took: after so many, processes hear what was asked of one
_MOST_SILENT = 16  # steps, whatever they took


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """How long sessions live here: what is `usual`, and the `lives` of the run's earlier ones."""

    usual: UsualLifetime
    lives: Sequence[SessionLifetime] = ()

    @property
    def seconds(self) -> float:
        """The mean time between two disconnects."""
        return mean_session(self.usual.seconds, self.lives)

    @property
    def vanishes(self) -> bool:
        """Machines of this kind do, or one of this run's did."""
        return self.usual.vanishes or any(life.vanished for life in self.lives)

    @property
    def source(self) -> str:
        """From what that is known, for people."""
        past = f"{len(self.lives)} earlier session(s) of this run, and " if self.lives else ""
        return f"{past}{self.usual.source}"


def earlier_lifetimes(repository: Repository, session: str, platform: str) -> tuple[SessionLifetime, ...]:
    """The last sessions of the run on this platform, without `session` itself, by their parts of the journal. A lost
    one lived to its last word at least."""
    fence_of = fences(repository)
    order = sorted((each for each in fence_of if each != session), key=lambda each: fence_of[each], reverse=True)
    files = repository.files("journal")
    journal = read_journal(repository, files, order[:_SESSIONS_LOOKED_AT], 2 * _SESSIONS_LOOKED_AT)
    found = []
    for lines in journal.lines.values():
        times = [line.at for line in lines if line.at is not None]
        if times and any(line.event == "MachineGiven" and line.text("platform") == platform for line in lines):
            seconds = min(_LONGEST_LIFE, max(times) - min(times))
            found.append(SessionLifetime(seconds=seconds, vanished=all(line.event != "RunStopped" for line in lines)))
    return tuple(found)


class UploadLatency:
    """Watches checkpoints rise to `top`, the highest durability level of the store. A listener to a run's events."""

    def __init__(self, top: CheckpointLevel, clock: Clock) -> None:
        self._top = top
        self._clock = clock
        self._waiting: dict[str, float] = {}  # checkpoint → when it was committed
        self._took: deque[float] = deque(maxlen=_ARRIVALS)  # seconds

    def __call__(self, event: Event) -> None:
        """Take what tells of a checkpoint on its way."""
        if isinstance(event, Pruned):
            for checkpoint in event.checkpoints:
                self._waiting.pop(checkpoint, None)
        elif isinstance(event, (SaveCommitted, DurabilityReached)):
            # It is heard of between two steps, which a validation may part by half an hour.
            moment = self._clock.monotonic() if event.monotonic is None else event.monotonic
            if isinstance(event, SaveCommitted):
                self._waiting[event.checkpoint] = moment
            if has_arrived(event.level, self._top) and (began := self._waiting.get(event.checkpoint)) is not None:
                if isinstance(event, DurabilityReached):
                    self._took.append(moment - began)
                # Those before it were overtaken: the newest one is sent first, and it is the one that counts.
                self._waiting = {id: sent for id, sent in self._waiting.items() if sent > began}

    def seconds(self, now: float) -> float:
        """From the commit of a save until it is safe: so long the next one is expected to take, by the slowest of the
        last ones; and what has not arrived yet takes at least as long as it has taken. `now` in seconds of the run's
        clock."""
        return max(max(self._took, default=0.0), now - min(self._waiting.values(), default=now))


@dataclass(kw_only=True)
class IntervalTuner:
    """Measures, and adapts the policy: `policy` is the one to ask now. A listener to a run's events, on the training
    thread; `say` tells an event of its own, also from the thread that reads the past. Where the user said when to save,
    it does nothing.

    A save costs the time that training waits for it, and that by which the steps beside it are slower than those of the
    stretches without one. An epoch's end spoils a stretch, for there is a validation in it; and the stretch before the
    first save is left out, for the first steps are slower than all others.

    `overhead`: the share of time that saves may cost. `far`: a save goes over a network. `past`: reads how long earlier
    sessions lived, on a thread of its own. `step`: the last step that is done. `arrival`: as `UploadLatency.seconds`.
    `budget`: what the place takes for a time.
    """

    policy: SavePolicy
    overhead: float
    usual: UsualLifetime
    far: bool
    past: Callable[[], Sequence[SessionLifetime]]
    step: Callable[[], int]
    arrival: Callable[[float], float]
    clock: Clock
    say: Callable[[Event], None]
    budget: Budget | None = None

    def __post_init__(self) -> None:
        self.chooses = is_auto(self.policy)
        self._since: tuple[int, float] | None = None  # the step and the time at which this stretch began
        self._paces: deque[float] = deque(maxlen=_REMEMBERED)  # seconds of a step, without a save
        self._blocked: float | None = None  # seconds, of the save in flight
        self._costs: deque[float] = deque(maxlen=_REMEMBERED)  # seconds, of each save
        self._seconds: deque[float] = deque(maxlen=_REMEMBERED)  # of the background
        self._written: deque[int] = deque(maxlen=_REMEMBERED)  # new bytes
        self._sessions = Sessions(usual=self.usual)
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
            self._since = None

    def close(self, patience: float = 2.0) -> None:
        """Wait for the past to be read, for so many seconds at most: the store is closed next."""
        if self._reader is not None:
            self._reader.join(patience)

    def _started(self, event: SaveStarted) -> None:
        now = self.clock.monotonic()
        if self._blocked is None:  # else the save before came to nothing, and slowed this stretch all the same
            steps, seconds = self._stretch(event.progress.step, now - event.blocked)
            if steps >= _FEWEST:
                if not self._paces:
                    self._costs.clear()  # by how much those saves slowed their steps was not known
                self._paces.append(seconds / steps)
        self._since = event.progress.step, now
        self._blocked = event.blocked
        if self._cadence is None:  # the next save waits for what this one shows
            self.policy = adapt(self.policy, unmeasured(self._measures(self._sessions), self.overhead))
        if self._reader is None:  # not sooner: a session begins without these requests
            self._reader = threading.Thread(target=self._read, name="colabkeep-past", daemon=True)
            self._reader.start()

    def _committed(self, event: SaveCommitted) -> None:
        now, step = self.clock.monotonic(), self.step()
        steps, seconds = self._stretch(step, now)
        slowed = max(0.0, seconds - steps * median(self._paces)) if steps and self._paces else 0.0
        self._costs.append((self._blocked or 0.0) + slowed)
        self._seconds.append(event.seconds)
        self._written.append(event.written)
        self._blocked = None
        self._since = step, now
        sessions = self._sessions  # once: the past may be read at any moment
        measures = self._measures(sessions)
        cadence = choose(measures, self.overhead, self._cadence)
        self._cadence, self.policy = cadence, adapt(self.policy, cadence)
        if improved(cadence, self._told):
            self._told = cadence
            self.say(
                CadenceChosen(
                    interval=cadence.seconds,
                    cost=measures.cost,
                    session=measures.session,
                    overhead=cadence.overhead,
                    reason=cadence.why,
                    text=cadence.sentence(),
                    source=sessions.source,
                    carried=measures.carried,
                )
            )

    def _stretch(self, step: int, now: float) -> tuple[int, float]:
        """The steps and seconds of the stretch that ends self."""
        return (0, 0.0) if self._since is None else (step - self._since[0], now - self._since[1])

    def _measures(self, sessions: Sessions) -> Measures:
        saved = bool(self._costs)
        carried = max(median(self._seconds), self.arrival(self.clock.monotonic())) if saved else 0.0
        return Measures(
            cost=median(self._costs) if saved else 0.0,
            session=sessions.seconds,
            carried=carried,
            budget=self.budget.interval(round(median(self._written))) if saved and self.budget is not None else 0.0,
            far=self.far,
            vanishes=sessions.vanishes,
        )

    def _read(self) -> None:
        try:
            self._sessions = Sessions(usual=self.usual, lives=self.past())
        except Exception as error:  # noqa: BLE001  # a thread has no caller; told
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            text = f"The run's history could not be read ({why}), so the save interval uses this platform's defaults."
            self.say(Noted(text=text))


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


def _diverged(event: LossNotFinite, *, leads: bool) -> TrainingDiverged:
    """`leads`: this process saves, and knows what is saved."""
    causes = "a smaller learning rate, clipped gradients, the batch that has it"
    if not leads:
        back = (
            "The message of rank 0, which saves, names the newest checkpoint from before. Change the cause "
            f"({causes}), and resume from that checkpoint."
        )
    elif event.checkpoint:
        back = (
            f"Its newest checkpoint from before is {event.checkpoint}. Change the cause ({causes}), and run the cell "
            f'again with resume="{event.checkpoint}".'
        )
    else:
        back = (
            f"It has no checkpoint from before. Change the cause ({causes}), and start again with another run_name or "
            'resume="never".'
        )
    return TrainingDiverged(
        problem=f'The loss is {event.word} since step {event.step}, so training was stopped (on_nan="stop"). The '
        "weights of that step were not saved.",
        remedy=back,
    )


class Unlogged:
    """Tells once that `monitor` was not logged: at the end of the first epoch in which something else was, or where the
    training ends. A listener to a run's events; the sentence is handed to `say`."""

    def __init__(self, monitor: str, history: History, say: Callable[[Event], Any]) -> None:
        self._monitor: str | None = monitor
        self._history = history
        self._say = say
        self._logged: dict[str, None] = {}

    def __call__(self, event: Event) -> None:
        """Take an event."""
        if isinstance(event, MetricsLogged):
            self._logged.update(dict.fromkeys(event.metrics))
        over = isinstance(event, RunStopped) and event.reason in ("finished", "max_steps") and event.progress.step > 0
        if self._monitor is None or not (over or (isinstance(event, EpochDone) and self._logged)):
            return
        monitor, self._monitor = self._monitor, None
        if not self._history.values(monitor):
            when, logged = "in this training" if over else "in this epoch", ", ".join(self._logged) or "nothing"
            self._say(
                Noted(
                    text=f"monitor={monitor!r} was not logged {when}, so no checkpoint is kept as the best. Logged: "
                    f"{logged}. Write run.log({monitor}=…) before the epoch ends, or monitor something that is logged."
                )
            )


class SaveScheduler:
    """Decides and asks the engine to save. `metrics` are those measured at the current boundary; `listeners` are to
    hear the run's events."""

    def __init__(self, spec: RunSpec, session: OpenSession, position: Position, boundary: Boundary) -> None:
        self.metrics: dict[str, float] = {}
        self.waits = False  # is the save that was asked for waited for?
        self._spec = spec
        self._position = position
        self._boundary = boundary
        self._state = session.state
        self._losses = session.state.losses
        self._journal = session.journal
        self._saver = session.checkpointer
        self._session = session
        self._start = position.progress
        self._mark = SaveMark(progress=position.progress, at=spec.clock.monotonic())
        self._talked = position.progress.step, spec.clock.monotonic()  # to the other processes
        self._asked: str | None = None
        self._best = spec.arguments.best
        self._deadline = spec.deadline
        self._watch_from = math.inf if spec.deadline is None else spec.deadline.last_call(2 * _LONGEST)
        self._settles_until = math.inf  # in seconds of the clock: so long slower storage is waited for, at the end
        self._leads = spec.group is None or spec.group.leads  # one of several processes saves
        self._rehearses = self._leads  # when a step has filled the optimizers
        self._left = ""  # where the loop was left, if what it does there was left out
        self._arrivals = UploadLatency(spec.store.properties.top_level, spec.clock)
        self._pace = _interval_tuner(spec, session, position, self._arrivals)
        self.listeners: list[Observer] = []
        if self._pace.chooses:
            self.listeners.append(self._pace)
        if _is_far(spec):
            self.listeners.append(self._arrivals)
        if self._best is not None:
            self.listeners.append(
                Unlogged(self._best.monitor, session.state.history, session.checkpointer.events.append)
            )

    def count(self, step: int, loss: Any) -> None:
        """A step is done: what was measured before it is of other weights.

        Raises:
            TrainingDiverged: as `_judge`.
            NotStorable: the first step has given an optimizer a state that no checkpoint can hold.
        """
        self.metrics = {}
        if self._losses.hear(step, loss):
            self._judge()
        if not self._session.starting.over:
            self._saver.events.append(self._session.starting.first_step())
        if self._rehearses and not self._saver.busy:  # one that is under way may be of the state before
            self._rehearses = False
            rehearse(self._spec)

    def _judge(self, *, stopping: bool = True) -> None:
        """Tell what `LossRecord.hear` has noticed. `stopping`: training may be ended for it, if that was asked for."""
        proof, since = self._losses.proof, self._losses.told
        stops = stopping and self._spec.arguments.on_nan == "stop"
        if since is None:
            proof.named = ""
            self._saver.events.append(LossRecovered(step=proof.finite or 0))
            return
        if stops:
            self._saver.wait()  # a save under way may be the one to go back to
        good = self._good_before(proof.finite or 0)
        proof.named = good or ""
        event = LossNotFinite(step=since, value=proof.value, finite=proof.finite, checkpoint=good)
        self._saver.events.append(event)
        if stops:
            raise _diverged(event, leads=self._leads)

    def _good_before(self, finite: int) -> str | None:
        """The newest checkpoint from before that step: of this session, else of those that led to it."""
        known = {each.step: each.checkpoint for each in self._saver.ledger.durability().standings if each.checkpoint}
        own = [step for step, id in known.items() if step < finite and id_parts(id)[1] == self._session.id]
        if own:
            return known[max(own)]
        start = self._session.resumed_from
        try:  # of its own: what a repository remembers of listings is not for two threads
            repository = Repository(self._spec.store, self._spec.name)
            return None if start is None else good_before(repository, start, finite)
        except StoreError:
            return None  # it cannot be asked now; `colabkeep show` lists them

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

    def talks_at(self, now: float) -> int:
        """Of several processes: the step at which they are to talk again, as they do now. In between nothing can be due
        by a count of steps, and what comes by the clock, or is asked for from outside, waits for half a second or so. A
        loop of the user's own may save at any step, or end in one process alone, so there it is the next one."""
        progress, (step, at) = self._position.progress, self._talked
        self._talked = progress.step, now
        if self._spec.loader is None:
            return progress.step + 1
        each = (now - at) / max(1, progress.step - step)
        most = _MOST_SILENT if each <= 0 else max(1, min(_MOST_SILENT, int(_HEARD / each)))
        return progress.step + steps_until_due(self._pace.policy, progress, self._mark, now, most)

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
            SaveFailed, RunTakenOver, NotStorable: training must not continue.
        """
        if wait:
            self._saver.wait()
        self._asked, self.waits = None, False
        progress = self._position.progress
        self._mark = SaveMark(progress=progress, at=self._spec.clock.monotonic())
        if not self._leads:
            return
        if not self._saver.busy and (points := self._losses.curve.news()):  # into the journal, beside this checkpoint
            self._journal.add({"at": self._spec.clock.time(), "event": LOSSES, "points": plain_points(points)})
        own = self._state.parts(self._position.told(), self._boundary.gradients, self._left)
        self._saver.save({**self._spec.parts, **own}, progress, reason, self.metrics)
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
        self, error: BaseException | None, waiting: Callable[[], None], *, finished: bool, resumes_behind: bool
    ) -> str | None:
        """Save the last boundary on the way out, if it is not saved; try again if the storage fails for a
        moment. Returns what kept it from being saved, if anything did. `waiting` is called now and then meanwhile.
        `finished`: the loop was trained to its end; `resumes_behind`: as in `Run`."""
        clean = error is None or isinstance(error, StopTraining)
        if not self._leads:
            return None
        self._pace.chooses = False  # nothing is chosen for a session that ends
        if not self._saver.wait(meanwhile=waiting):
            return _HANGS
        if self._losses.settle():
            self._judge(stopping=clean)
        if self._is_saved():
            self._saver.look()  # somebody may have removed it since
            self._saver.wait(meanwhile=waiting)
        if self._is_saved() or isinstance(error, (RunTakenOver, SaveFailed, NotStorable, TrainingDiverged, Killed)):
            return None
        obstacle = self._obstacle(clean=clean, resumes_behind=resumes_behind)
        if obstacle is not None:
            return obstacle
        for pause in _LAST_TRIES:
            self._spec.clock.sleep(pause)
            self.save(leaving_reason(error, finished=finished))
            if not self._saver.wait(meanwhile=waiting):
                return _HANGS
            if self._is_saved():
                return None
        return "The last step could not be saved; the run resumes from the checkpoint before it"

    def settle(self, waiting: Callable[[], None], *, abandoned: bool = False) -> None:
        """Wait until all is where it should be, for a bounded time, and let go of the store. What is to be told is with
        the other events.

        `waiting` is called now and then meanwhile: there may be events. `abandoned`: nothing is waited for."""
        there, patience = False, self._spec.arguments.flush_timeout
        self._settles_until = self._spec.clock.monotonic() + patience
        self._pace.close()
        try:
            if abandoned:
                self._saver.abandon()
            else:
                there = self._saver.close(patience, waiting)
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
        left = max(0.0, self._settles_until - self._spec.clock.monotonic())
        return Noted(text=still_copying(number, self._spec.store.url, left) if _is_far(self._spec) else ALL_SAVED)

    def _is_best(self) -> bool:
        """Is this the end of an epoch, not saved yet, that is among the best? Where colabkeep chooses when to save,
        none of these is left out: no later save has its weights."""
        return self._position.progress != self._mark.progress and self._is_among_best()

    def _is_among_best(self) -> bool:
        best = self._best
        if best is None or best.monitor not in self.metrics:
            return False
        return best.among_best(self.metrics[best.monitor], self._state.history.values(best.monitor))

    def _is_saved(self) -> bool:
        safe, here = self._saver.saved or self._start, self._position.progress
        return (safe.epoch, safe.step, safe.batches) == (here.epoch, here.step, here.batches)

    def _obstacle(self, *, clean: bool, resumes_behind: bool) -> str | None:
        """Bring the state to the last boundary; or say why that cannot be saved."""
        position, others = self._position, self._state.others
        if self._spec.group is not None and (others is None or others[0] != position.progress):
            return "Several processes train this run, and its last step can be saved only where all of them stop"
        if position.blind:
            return "An epoch that takes steps outside of a loop over run.batches() can be saved at its end only"
        if position.behind and not resumes_behind:
            if not clean:
                return "The error came after the last batch of an epoch but before its end; a run cannot resume there"
            position.end_epoch(position.progress.seconds)
            self._left = f"left after the last batch of epoch {position.progress.epoch - 1}"
            return None
        if clean and position.stepped and not position.resting:
            return None  # what is there now is what the user left
        return self._rewind()

    def _rewind(self) -> str | None:
        position, boundary = self._position, self._boundary
        if boundary.torn:
            return "The error came in the middle of a step, and half a step cannot be saved"
        if position.stepped and not position.resting:
            return "The error came after run.step(); a resumed run would skip the rest of that loop body"
        if not position.resting:
            parts = (f"it may have changed {name} already" for name in boundary.opaque)
            moved = next(parts, None) or position.rewind()
            if moved is not None:
                return f"The error came in the middle of a step: {moved}"
        boundary.rewind()
        return None


def _is_far(spec: RunSpec) -> bool:
    """Does a save go over a network, or to a slower side?"""
    properties = spec.store.properties
    return properties.behind is not None or properties.top_level != "local"


def _interval_tuner(spec: RunSpec, session: OpenSession, position: Position, arrivals: UploadLatency) -> IntervalTuner:
    properties, platform = spec.store.properties, "" if session.machine is None else session.machine.platform
    return IntervalTuner(
        policy=spec.arguments.save_every,
        overhead=spec.arguments.overhead,
        usual=spec.usual,
        far=_is_far(spec),
        # A repository of its own: what it remembers of listings is not for two threads.
        past=lambda: earlier_lifetimes(Repository(spec.store, spec.name), session.id, platform),
        step=lambda: position.progress.step,
        # A version is sent every so often, whatever was saved by then: to save less often would not bring one sooner.
        arrival=(lambda _: 0.0) if properties.versions else arrivals.seconds,
        clock=spec.clock,
        say=session.checkpointer.events.append,
        budget=(properties.behind or properties).budget,
    )


def leaving_reason(error: BaseException | None, *, finished: bool) -> str:
    """In a word, why a session ends."""
    if error is None:
        return "finished" if finished else "left"
    if isinstance(error, StopTraining):
        return error.reason
    if isinstance(error, KeyboardInterrupt):
        return "interrupt"
    status = error.code if isinstance(error, SystemExit) else None
    return {129: "sighup", 143: "sigterm"}.get(status if isinstance(status, int) else 1, "error")
