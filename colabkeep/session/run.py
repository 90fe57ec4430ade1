"""One run in one session: counts steps, saves when due, stops cleanly, and knows how to go on."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from colabkeep.frameworks.base import Batch
from colabkeep.session.announcer import Announcer
from colabkeep.session.deadline import Deadline
from colabkeep.session.history import History, as_number
from colabkeep.session.keeper import Keeper, StopTraining, leaving_reason
from colabkeep.session.leftovers import Unlosable, open_alone, watch
from colabkeep.session.loop import AROUND, BLIND, FREE, SELDOM, Loop, arrive
from colabkeep.session.losses import LossRecord
from colabkeep.session.opening import RunSpec, open_session
from colabkeep.session.position import Place, Position
from colabkeep.session.promise import promise_of
from colabkeep.session.refusals import unlogged
from colabkeep.session.signals import StopRequests
from colabkeep.session.understanding import understood
from colabkeep.session.unseen import Strangers
from colabkeep.vocabulary.durability import Durability
from colabkeep.vocabulary.events import (
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
from colabkeep.vocabulary.manifest import Manifest

__all__ = ["Run", "let_go"]


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
        self._announcer = Announcer(spec.observers, spec.clock)
        self._signals = StopRequests()
        self._process = os.getpid()
        self._shown = 0  # the newest step that was told

    def __enter__(self) -> Run:
        """Take the run, restore it if it has a checkpoint, begin to watch for signals.

        Raises:
            RunBusy, Incompatible, NotStorable, NoUsableCheckpoint, …: as `open_session`.
        """
        self._session = open_alone(self, lambda: open_session(self._spec, self._announcer.queue))
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
        self._keeper = Keeper(spec, self._position, self._session, self.history, self.losses)
        others = unlogged(spec.best, self.history, self._saver.events.append)
        self._announcer.observers += (*self._keeper.observers, *others)
        self._boundary = spec.framework.boundary(spec.parts)
        self._boundary.mark()
        self._keeper.gradients = gradients = self._boundary.gradients
        if session.progress.step:
            if gradients is not None:
                gradients.load_state_dict(spec.framework.native(session.trees.get("gradients", {})))
            self.undo = spec.framework.remember(spec.parts)
        self._strangers = Strangers(spec.framework.unseen(spec.parts), self.resumed_from, self._announcer.queue.append)
        self._announcer.observers.append(self._strangers)
        self._counts = self.progress.step, 0  # steps, and updates of the optimizer, when this epoch began
        now = spec.clock.monotonic()
        self._until = math.inf if spec.max_time is None else now + spec.max_time
        self._zero = now - self._session.progress.seconds  # when it would have begun, without a break
        self._saver.begin(self._zero)
        self._signals.install()
        self._announcer.write_to(self._session.journal)
        self.began, self._unwatch = True, watch(self)
        self._announcer.begin(*_complete(spec, self.resumed_from), _beginning(spec, self._session.id))

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
        self._keeper.count(progress.step, loss)
        if now >= self._announcer.steps_from:
            self._shown = progress.step
            self._announcer.deliver(StepDone(progress=progress, epoch_batches=self.epoch_batches, loss=loss))
        if not position.comes_back:
            self._step_elsewhere(now)

    def log(self, **metrics: Any) -> None:
        """Log numbers (or one-element tensors) at the current step. They go into the history, and into a
        checkpoint saved before the next step, where `keep_best` finds them."""
        numbers = {name: as_number(value) for name, value in metrics.items()}
        self._keeper.metrics.update(numbers)
        self.history.add(self.progress, numbers)
        self._announcer.tell(MetricsLogged(progress=self.progress, metrics=numbers))

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
            self._keeper.ask(reason, wait=wait)
        else:
            self._keeper.save(reason, wait=wait)
            self._announcer.drain()

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
        self._announcer.tell(event)

    def _rest(self) -> None:
        self._position.rest()
        self._boundary.mark()
        self._session.settings.mark()

    def _step_elsewhere(self, now: float) -> None:
        """A step was done in a loop that does not come back here."""
        if self._position.in_epoch:
            self._announcer.once(Noted(text=AROUND if self._position.place is Place.BEHIND else BLIND))
            if self._announcer.queue:
                self._announcer.drain()
            self._leave_if_asked(now)
        else:
            self._announcer.once(Noted(text=FREE))
            if self.undo is not None:  # where its first step began cannot be told
                self.undo.release()
                self.undo = None
            self._rest()
            self._pause(now)

    def _end_epoch(self) -> None:
        epoch, now = self.progress.epoch, self._spec.clock.monotonic()
        before, self._counts = self._counts, (self.progress.step, self._boundary.updates)
        if self._counts[0] - before[0] == 1 < self._counts[1] - before[1]:
            self._announcer.once(Noted(text=SELDOM.format(updates=self._counts[1] - before[1])))
        progress = self._position.end_epoch(now - self._zero)
        self._rest()
        self._announcer.tell(EpochDone(epoch=epoch, progress=progress, metrics=dict(self._keeper.metrics)))
        self._keeper.wait_if_best()
        self._pause(now)

    def _pause(self, now: float, reason: str | None = None) -> None:
        reason = reason or self._keeper.due(now)
        if reason is not None:
            if reason == "deadline" and self._spec.deadline is not None:
                _tell_end(self, self._spec.deadline, now, self._keeper.until_safe(now))
            self._keeper.save(reason, wait=self._keeper.waits or self._spec.waits)
        if self._announcer.queue:
            self._announcer.drain()
        if self._signals.requested is not None or now >= self._until or self._position.blind:
            self._leave_if_asked(now)

    def _stops(self, now: float) -> bool:
        """Is it time to leave?"""
        return self._signals.requested is not None or now >= self._until

    def _leave_if_asked(self, now: float) -> None:
        self.poll()
        if self._stops(now):
            raise StopTraining("max_time")
        if self._position.blind and self._keeper.ends(now) and self._spec.deadline is not None:
            _tell_end(self, self._spec.deadline, now, self._keeper.until_safe(now))


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
    announcer, keeper, saver, signals = run._announcer, run._keeper, run._saver, run._signals
    ends = error is None or isinstance(error, StopTraining)
    signals.leave(lambda number: announcer.queue.append(keeper.answer(number)))
    try:
        obstacle = keeper.leave(error, run._boundary, run, announcer.drain)
        if obstacle is not None:
            announcer.tell(Noted(text=f"{obstacle}; the newest checkpoint is {run.checkpoint or 'none'}."))
        saver.wait(meanwhile=announcer.drain)
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
    announcer = run._announcer
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
        announcer.tell(_stopped(run, run.stopped, error))
        last.callback(announcer.drain)
        run._keeper.settle(announcer.drain, abandoned=run._signals.abandoned)


def _show_last(run: Run) -> None:
    """Displays hear of a step now and then; they end with the last one."""
    if run._shown < run.progress.step:
        run.losses.settle()
        if (loss := run.losses.newest) is not None:
            run._announcer.deliver(StepDone(progress=run.progress, epoch_batches=run.epoch_batches, loss=loss))


def _stopped(run: Run, reason: str, error: BaseException | None) -> RunStopped:
    said = ""
    if reason == "error" and error is not None:
        said = ": ".join(filter(None, (type(error).__name__, str(error).strip().partition("\n")[0][:500])))
    broken = run.losses.proof.broken
    return RunStopped(
        reason=reason, progress=run.progress, checkpoint=run.checkpoint, error=said, not_finite_since=broken
    )
