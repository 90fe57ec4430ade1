"""One run in one session: counts steps, saves when due, stops cleanly, and knows how to go on; runs entered by hand
and never closed are ended.
"""

from __future__ import annotations

import atexit
import gc
import math
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from colabkeep.checkpoint.restore import understood
from colabkeep.core.durability import Durability
from colabkeep.core.errors import RunBusy, StoreBusy, UsageError
from colabkeep.core.events import (
    AlreadyComplete,
    DeadlineNear,
    EpochDone,
    Event,
    MetricsLogged,
    Noted,
    RunStarted,
    RunStopped,
    StepDone,
)
from colabkeep.core.manifest import Manifest
from colabkeep.frameworks.base import Batch
from colabkeep.session.event_bus import EventBus, UnseenParts
from colabkeep.session.loop import AROUND, BLIND, FREE, SELDOM, Loop, arrive
from colabkeep.session.machine import Deadline, StopRequests
from colabkeep.session.metrics import History, LossRecord, as_number
from colabkeep.session.open import RunSpec, open_session, promise_of
from colabkeep.session.position import Place, Position
from colabkeep.session.scheduler import SaveScheduler, StopTraining, leaving_reason
from colabkeep.session.validation import unlogged

if TYPE_CHECKING:
    from colabkeep.session.open import OpenSession

__all__ = [
    "Run",
    "Unlosable",
    "end",
    "is_open",
    "let_go",
    "open_alone",
    "watch",
]

# Only what is on its way is finished then. Nothing new is saved: whatever has become of the objects since the last
# step, the best weights loaded for a look, would be taken for its state.


class Unlosable:
    """What knows when nobody can reach it any more: `abandoned`, then, and held until it is ended, at the latest with
    the program. Nothing is ended where that is noticed: anything may be under way there."""

    abandoned = False

    def __del__(self) -> None:
        if is_open(self):
            self.abandoned = True
            atexit.register(_end_if_open, self)


def watch(run: Run) -> Callable[[], None]:
    """End the run with the program, if it is still open then. Returns what takes that back."""
    at_exit = partial(_end_at_exit, weakref.ref(run), os.getpid())
    atexit.register(at_exit)
    return partial(atexit.unregister, at_exit)


def end(run: Run) -> None:
    """Let what is being saved be saved, say what is not, and let go of the run."""

    run._saver.wait()
    saved = run._saver.saved or run._session.progress
    if saved.step < run.progress.step:
        run.finished = False  # of which nothing is kept
        run.tell(
            Noted(
                text=f"The run {run.name!r} was entered by hand and never closed: what was trained after step "
                f"{saved.step} is not saved. Write  with colabkeep.Run(…) as run:  around the loop, and its last step "
                "is."
            )
        )
    let_go(run, None)


def open_alone(run: Run, opening: Callable[[], OpenSession]) -> OpenSession:
    """Open the run. One of the same name and place that nobody in this process can reach any more is ended first.

    Raises:
        UsageError: it is open already.
        RunBusy: it is open in another process; or here, and the error says what holds it.
        ColabKeepError: as `opening`.
    """
    if is_open(run):
        raise UsageError(
            problem=f"The run {run.name!r} has begun already.",
            remedy="Enter it once: by  with colabkeep.Run(…) as run:  or by hand, not both.",
        )
    try:
        return opening()
    except RunBusy as error:
        holder = error.__cause__.holder if isinstance(error.__cause__, StoreBusy) else ""
        mine = not holder or holder.startswith(f"process {os.getpid()} on ")  # as `take_lock` writes it
        other = _other(run) if mine else None
        if other is None:
            raise
        if not other.abandoned:
            raise _held(other) from error
    end(other)
    return opening()


def _end_if_open(run: Any) -> None:
    if is_open(run):
        end(run)


def _end_at_exit(reference: weakref.ref[Run], process: int) -> None:
    run = reference()
    if run is not None and is_open(run) and os.getpid() == process:  # a forked child has not got the run
        end(run)


def is_open(run: object) -> bool:
    """Has it begun, and not ended? Asked of one whose `__init__` may have failed, too."""
    told = vars(run)
    return bool(told.get("began")) and told.get("stopped") is None


def _other(run: Run) -> Run | None:
    """The open run of the same name and place in this process, if there is one."""

    gc.collect()  # what hangs together in a circle is known to be unreachable only now
    found = (each for each in gc.get_objects() if issubclass(type(each), Run))
    return next((each for each in found if each is not run and is_open(each) and _same(each, run)), None)


def _same(one: Run, other: Run) -> bool:
    return (one.name, one._spec.store.url) == (other.name, other._spec.store.url)


def _held(run: Run) -> RunBusy:
    names = [name for name, value in vars(sys.modules["__main__"]).items() if value is run and name[0] != "_"]
    holder = f"the variable {names[0]!r}" if names else "an object of this program"
    return RunBusy(
        problem=f"The run {run.name!r} is open in this very process: {holder} holds it, at step {run.progress.step}.",
        remedy=f"Close it, then run this again: {names[0] if names else 'run'}.close()  Whoever writes "
        "with colabkeep.Run(…) as run:  around the loop never needs that.",
    )


class Run(Unlosable, Loop):
    """The companion of a training loop. Use it as a context manager; `colabkeep.Run` wires one up.

    Leaving the block saves what is not saved yet and waits until that is safe. After an exception or
    an interrupt, the state saved is that of the last finished step.
    """

    def __init__(self, spec: RunSpec) -> None:
        self.name = spec.name
        self.history = History()
        self.losses = LossRecord(spec.framework.losses(), spec.proof)
        self.began = self.finished = False
        self.stopped: str | None = None  # why the session ended, once it has
        self._spec = spec
        self._event_bus = EventBus(spec.observers, spec.clock)
        self._signals = StopRequests()
        self._process = os.getpid()
        self._shown = 0  # the newest step that was told

    def __enter__(self) -> Run:
        """Take the run, restore it if it has a checkpoint, begin to watch for signals.

        Raises:
            RunBusy, Incompatible, NotStorable, NoUsableCheckpoint, …: as `open_session`.
        """
        self._session = open_alone(self, lambda: open_session(self._spec, self._event_bus.queue))
        try:
            understood(self.resumed_from, self._start)
        except BaseException:
            self._signals.remove()
            self._session.lock.release()
            raise
        return self

    def _start(self) -> None:
        spec, session = self._spec, self._session
        self._saver = session.checkpointer
        self._position = Position(spec.framework, spec.seed, session.progress, session.trees, session.data)
        self._save_scheduler = SaveScheduler(spec, self._position, self._session, self.history, self.losses)
        others = unlogged(spec.best, self.history, self._saver.events.append)
        self._event_bus.observers += (*self._save_scheduler.observers, *others)
        self._boundary = spec.framework.boundary(spec.parts)
        self._boundary.mark()
        self._save_scheduler.gradients = gradients = self._boundary.gradients
        if session.progress.step:
            if gradients is not None:
                gradients.load_state_dict(spec.framework.native(session.trees.get("gradients", {})))
            self.undo = spec.framework.remember(spec.parts)
        self._strangers = UnseenParts(
            spec.framework.unseen(spec.parts), self.resumed_from, self._event_bus.queue.append
        )
        self._event_bus.observers.append(self._strangers)
        self._counts = self.progress.step, 0  # steps, and updates of the optimizer, when this epoch began
        now = spec.clock.monotonic()
        self._until = math.inf if spec.max_time is None else now + spec.max_time
        self._zero = now - self._session.progress.seconds  # when it would have begun, without a break
        self._saver.begin(self._zero)
        self._signals.install()
        self._event_bus.write_to(self._session.journal)
        self.began, self._unwatch = True, watch(self)
        self._event_bus.begin(*_complete(spec, self.resumed_from), _beginning(spec, self._session.id))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Save what is not saved yet, wait until it is safe, let go. Ends a `StopTraining`.

        Raises:
            KeyboardInterrupt, SystemExit: a signal asked for it meanwhile, and nothing else is raised.
        """
        if os.getpid() == self._process:
            _end(self, error)
        return isinstance(error, StopTraining)

    @property
    def resumed_from(self) -> Manifest | None:
        """The checkpoint this session went on from, None for a fresh start."""
        return self._session.resumed_from

    @property
    def checkpoint(self) -> str | None:
        """The id of the newest committed checkpoint."""
        return self._saver.newest

    @property
    def durability(self) -> Durability:
        """What would be lost if this machine vanished now, as far as is known; asks nobody and waits for nothing."""
        return self._saver.ledger.durability(self.progress.seconds if self.stopped is not None else None)

    def step(self, loss: Any = None) -> None:
        """One optimizer update is done: count it. In a loop over `batches`, `enumerate` or `steps` it is saved, if that
        is due, when the body of the loop is over; in an epoch that reads its data elsewhere, at the epoch's end; in
        any other loop here.

        Call it after `optimizer.step()`. `loss` is shown now and then; it may live on the GPU, nothing waits for it
        here.

        Raises:
            KeyboardInterrupt, SystemExit: asked for by a signal; the state is saved on the way out.
            SaveFailed, RunTakenOver, NotStorable, TrainingDiverged: training must not go on.
        """
        now = self._spec.clock.monotonic()
        position = self._position
        progress = position.advance(now - self._zero)
        self._save_scheduler.count(progress.step, loss)
        if now >= self._event_bus.steps_from:
            self._shown = progress.step
            self._event_bus.deliver(StepDone(progress=progress, epoch_batches=self.epoch_batches, loss=loss))
        if not position.comes_back:
            self._step_elsewhere(now)

    def log(self, **metrics: Any) -> None:
        """Log numbers (or one-element tensors) at the current step. They go into the history, and into a
        checkpoint saved before the next step, where `keep_best` finds them."""
        numbers = {name: as_number(value) for name, value in metrics.items()}
        self._save_scheduler.metrics.update(numbers)
        self.history.add(self.progress, numbers)
        self._event_bus.tell(MetricsLogged(progress=self.progress, metrics=numbers))

    def save(self, reason: str = "asked", *, wait: bool = False) -> None:
        """Save as soon as that can be resumed from: in the body of a loop, when it is over; in an epoch that does not
        read through `batches`, and after its last batch, at its end; else now.

        `wait`: return when the checkpoint is committed. In the body of a loop, behind `step`, this does not wait for
        the end of the body: what follows in it is then not part of that step, and is left out in a resumed run. Where
        it has to come later, it is waited for there.

        Raises:
            SaveFailed, RunTakenOver, NotStorable: training must not go on.
        """
        position = self._position
        inside = position.in_epoch or position.comes_back
        if inside and not (wait and position.comes_back and position.stepped and not position.ends):
            self._save_scheduler.ask(reason, wait=wait)
        else:
            self._save_scheduler.save(reason, wait=wait)
            self._event_bus.drain()

    def poll(self) -> None:
        """Honour a request to stop that came between two steps. Call it in long work of your own.

        Raises:
            KeyboardInterrupt, SystemExit: one came; the last finished step is saved on the way out.
        """
        if self._signals.requested is not None:
            self._signals.honour()

    def polled(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The same batches. A request to stop is honoured before each, and at once in the wait for it: as `poll`."""
        return self._signals.between(batches)

    def stop(self, reason: str = "asked") -> None:
        """Save and leave: control goes to the end of the run's `with` block, without an error.

        Raises:
            StopTraining: always; the run's `with` block ends it.
        """
        raise StopTraining(reason)

    def tell(self, event: Event) -> None:
        """Hand an event to the observers and the journal."""
        self._event_bus.tell(event)

    def _rest(self) -> None:
        self._position.rest()
        self._boundary.mark()
        self._session.settings.mark()

    def _step_elsewhere(self, now: float) -> None:
        """A step was done in a loop that does not come back here."""
        if self._position.in_epoch:
            self._event_bus.once(Noted(text=AROUND if self._position.place is Place.BEHIND else BLIND))
            if self._event_bus.queue:
                self._event_bus.drain()
            self._leave_if_asked(now)
        else:
            self._event_bus.once(Noted(text=FREE))
            if self.undo is not None:  # where its first step began cannot be told
                self.undo.release()
                self.undo = None
            self._rest()
            self._pause(now)

    def _end_epoch(self) -> None:
        epoch, now = self.progress.epoch, self._spec.clock.monotonic()
        before, self._counts = self._counts, (self.progress.step, self._boundary.updates)
        if self._counts[0] - before[0] == 1 < self._counts[1] - before[1]:
            self._event_bus.once(Noted(text=SELDOM.format(updates=self._counts[1] - before[1])))
        progress = self._position.end_epoch(now - self._zero)
        self._rest()
        self._event_bus.tell(EpochDone(epoch=epoch, progress=progress, metrics=dict(self._save_scheduler.metrics)))
        self._save_scheduler.wait_if_best()
        self._pause(now)

    def _pause(self, now: float, reason: str | None = None) -> None:
        reason = reason or self._save_scheduler.due(now)
        if reason is not None:
            if reason == "deadline" and self._spec.deadline is not None:
                _tell_end(self, self._spec.deadline, now, self._save_scheduler.until_safe(now))
            self._save_scheduler.save(reason, wait=self._save_scheduler.waits or self._spec.waits)
        if self._event_bus.queue:
            self._event_bus.drain()
        if self._signals.requested is not None or now >= self._until or self._position.blind:
            self._leave_if_asked(now)

    def _stops(self, now: float) -> bool:
        """Is it time to leave?"""
        return self._signals.requested is not None or now >= self._until

    def _leave_if_asked(self, now: float) -> None:
        self.poll()
        if self._stops(now):
            raise StopTraining("max_time")
        if self._position.blind and self._save_scheduler.ends(now) and self._spec.deadline is not None:
            _tell_end(self, self._spec.deadline, now, self._save_scheduler.until_safe(now))


def _tell_end(run: Run, deadline: Deadline, now: float, takes: float) -> None:
    """The end of the session is near; leave if training ends by itself before it."""
    run.tell(DeadlineNear(seconds=max(0.0, deadline.at - now), ends=deadline.ends, takes=takes))
    if deadline.ends:
        run.stop("session_end")


def _complete(spec: RunSpec, resumed: Manifest | None) -> Iterator[Event]:
    """What is said before all else, where it is known already: that there is nothing left to train."""
    for length, name, reached in (
        (spec.max_epochs, "max_epochs", resumed and resumed.progress.epoch),
        (spec.max_steps, "max_steps", resumed and resumed.progress.step),
    ):
        if resumed is not None and length is not None and (reached or 0) >= length:
            yield AlreadyComplete(since=resumed.created, step=resumed.progress.step, length=name)
            return


def _beginning(spec: RunSpec, session: str) -> RunStarted:
    deadline, clock = spec.deadline, spec.clock
    return RunStarted(
        run=spec.name,
        session=session,
        storage=spec.store.url,
        folder=spec.store.properties.folder,
        **promise_of(spec),
        ends_at=None if deadline is None else clock.time() + deadline.at - clock.monotonic(),
        ends_source="" if deadline is None else deadline.source,
    )


def _end(run: Run, error: BaseException | None) -> None:
    """Save, wait, let go. A request to stop waits for that; then the program is not to go on behind the run."""
    event_bus, keeper, saver, signals = run._event_bus, run._save_scheduler, run._saver, run._signals
    ends = error is None or isinstance(error, StopTraining)
    signals.leave(lambda number: event_bus.queue.append(keeper.answer(number)))
    try:
        obstacle = keeper.leave(error, run._boundary, run, event_bus.drain)
        if obstacle is not None:
            event_bus.tell(Noted(text=f"{obstacle}; the newest checkpoint is {run.checkpoint or 'none'}."))
        saver.wait(meanwhile=event_bus.drain)
        if ends:
            _show_last(run)
            saver.raise_past_failure()
    except BaseException as failure:
        error = failure
        raise
    finally:
        let_go(run, error)
    if ends:
        run.poll()


def let_go(run: Run, error: BaseException | None) -> None:
    """End the run, with nothing saved any more but what is on its way."""
    event_bus = run._event_bus
    with ExitStack() as last:
        last.callback(run._signals.remove)
        last.callback(run._unwatch)
        last.callback(run._session.lock.release)
        last.callback(run._position.close)  # workers that hang take seconds to end, and no save waits any more
        arrive(run)
        run._boundary.close()
        run._session.settings.left(run.name, run.progress.step, failed=isinstance(error, Exception))
        run._strangers.close()
        run.stopped = "interrupt" if run._signals.abandoned else leaving_reason(error, finished=run.finished)
        event_bus.tell(_stopped(run, run.stopped, error))
        last.callback(event_bus.drain)
        run._save_scheduler.settle(event_bus.drain, abandoned=run._signals.abandoned)


def _show_last(run: Run) -> None:
    """Displays hear of a step now and then; they end with the last one."""
    if run._shown < run.progress.step:
        run.losses.settle()
        if (loss := run.losses.newest) is not None:
            run._event_bus.deliver(StepDone(progress=run.progress, epoch_batches=run.epoch_batches, loss=loss))


def _stopped(run: Run, reason: str, error: BaseException | None) -> RunStopped:
    said = ""
    if reason == "error" and error is not None:
        said = ": ".join(filter(None, (type(error).__name__, str(error).strip().partition("\n")[0][:500])))
    broken = run.losses.proof.broken
    return RunStopped(
        reason=reason, progress=run.progress, checkpoint=run.checkpoint, error=said, not_finite_since=broken
    )
