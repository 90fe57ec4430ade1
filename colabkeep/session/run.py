"""One run in one session: entered, trained, left. What happens between its steps is in `loop`. Runs that were entered
by hand and never closed are ended here.
"""

from __future__ import annotations

import atexit
import gc
import math
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any

from colabkeep.checkpoint.restore import understood
from colabkeep.core.errors import RunBusy, StoreBusy, UsageError, fold
from colabkeep.core.events import (
    AlreadyComplete,
    Durability,
    Event,
    FirstStepDone,
    MetricsLogged,
    Noted,
    RestoredInexactly,
    RunStopped,
)
from colabkeep.core.language import said
from colabkeep.core.manifest import Manifest
from colabkeep.frameworks.base import Batch, Unseen
from colabkeep.session.frozen_base import Base
from colabkeep.session.loop import EventBus, Loop, arrive
from colabkeep.session.machine import StopRequests
from colabkeep.session.open import Observer, OpenSession, RunSpec, open_session, run_started
from colabkeep.session.scheduler import SaveScheduler, StopTraining, leaving_reason
from colabkeep.session.state import History, LossRecord, Position, as_number


class Run(Loop):
    """The companion of a training loop. Use it as a context manager; `colabkeep.Run` wires one up.

    Leaving the block saves what is not saved yet and waits until that is safe. After an exception or
    an interrupt, the state saved is that of the last finished step.
    """

    def __init__(self, spec: RunSpec) -> None:
        self.name = spec.name
        self.began = self.abandoned = False  # abandoned: nobody can reach it any more, and it is to be ended
        self.stopped: str | None = None  # why the session ended, once it has
        self._spec = spec
        self._process = os.getpid()

    def __enter__(self) -> Run:
        """Take the run, restore it if it has a checkpoint, begin to watch for signals.

        Raises:
            RunBusy, Incompatible, NotStorable, NoUsableCheckpoint, …: as `open_session`.
        """
        events: deque[Event] = deque()
        self._session = _open_alone(self, lambda: open_session(self._spec, events))
        self._signals = StopRequests()
        try:
            understood(self.resumed_from, lambda: self._start(events))
        except BaseException:
            self._signals.remove()
            self._session.lock.release()
            raise
        return self

    def _start(self, events: deque[Event]) -> None:
        spec, session = self._spec, self._session
        self._state, self._saver = session.state, session.checkpointer
        self._position = Position(session.state, session.progress)
        if spec.group is not None and self.resumed_from is None:
            spec.group.begin(spec.arguments.seed, 0)
        self._boundary = spec.framework.boundary(spec.parts)
        self._boundary.mark()
        self._save_scheduler = SaveScheduler(spec, session, self._position, self._boundary)
        if session.progress.step:
            if self._boundary.gradients is not None:
                self._boundary.gradients.load_state_dict(spec.framework.native(session.state.gradients))
            self.undo = spec.framework.remember(spec.parts)
        self._unseen = spec.framework.unseen(spec.parts)
        self._counts = self.progress.step, 0
        now, max_time = spec.clock.monotonic(), spec.arguments.max_time
        self._until = math.inf if max_time is None else now + max_time
        self._zero = now - session.progress.seconds
        self._saver.begin(self._zero)
        self._signals.install()
        self.began, self._unwatch = True, _watch(self)
        changed = any(isinstance(event, RestoredInexactly) for event in events)
        started = run_started(spec, session.id, changed=changed)
        events.extendleft([started, *_complete(spec, self.resumed_from)])  # said first
        unseen = _unseen_told(self._unseen, self.resumed_from, events.append)
        self._event_bus = EventBus(
            spec.arguments.observers,
            spec.clock,
            queue=events,
            listeners=(*spec.listeners, *self._save_scheduler.listeners, unseen),
            journal=session.journal,
        )
        self._event_bus.recall(spec.name, session.run_id, session.state.history)
        self._event_bus.drain()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Save what is not saved yet, wait until it is safe, let go. Ends a `StopTraining`.

        Raises:
            KeyboardInterrupt, SystemExit: a signal asked for it meanwhile, and nothing else is raised.
        """
        if os.getpid() == self._process:
            try:
                _leave(self, error)
            except KeyboardInterrupt as stop:
                _say_saved(self, stop)
                raise
            if isinstance(error, KeyboardInterrupt):
                _say_saved(self, error)
            elif error is not None:
                fold(error)
        return isinstance(error, StopTraining)

    @property
    def history(self) -> History:
        """What was logged, over all sessions: a record for each step at which something was. A list to read."""
        return self._state.history if self.began else History()

    @property
    def losses(self) -> LossRecord:
        """The loss curve of the run, and whether it is finite."""
        return self._state.losses

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
        now = self.saves_inside and wait and position.comes_back and position.stepped and not position.ends
        if self._spec.group is not None:
            now = False
            if not inside:
                self._gather(self._spec.group)
        if inside and not now:
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

    def knows(self, base: Base) -> None:
        """What of the model comes from a pretrained base. Call it before the run is entered."""
        self._spec = replace(self._spec, base=base)

    def begin_at(self, epoch: int, step: int) -> None:
        """A new run goes on from what another program trained: count from there. Call it before the loop."""
        self._position.progress = self.progress._replace(epoch=epoch, step=step)
        self._counts = step, 0

    @property
    def _is_open(self) -> bool:
        """Has it begun, and not ended? Asked also of one whose `__init__` failed, and by `__del__` when Python itself
        ends and this module's names are gone."""
        return bool(vars(self).get("began")) and self.stopped is None

    def __del__(self) -> None:
        """Nothing is ended where it is noticed that nobody can reach a run any more: anything may be under way there.
        It is held until it is ended, at the latest with the program."""
        if self._is_open:
            self.abandoned = True
            atexit.register(_end_if_open, self)


def _unseen_told(unseen: Unseen, resumed: Manifest | None, say: Observer) -> Observer:
    """Says with the first step what moves the parts and was not handed in. In a resumed session that is too late, and
    "exact" is taken back."""

    def hear(event: Event) -> None:
        if isinstance(event, FirstStepDone):
            for text in unseen():
                if resumed is None or not resumed.progress.step:
                    say(Noted(text=text))
                else:
                    say(RestoredInexactly(checkpoint=resumed.id, reason=text))

    return hear


def _complete(spec: RunSpec, resumed: Manifest | None) -> Iterator[Event]:
    """What is said before all else, where it is known already: that there is nothing left to train."""
    if resumed is not None:
        progress = resumed.progress
        lengths = {"max_epochs": (spec.max_epochs, progress.epoch), "max_steps": (spec.max_steps, progress.step)}
        reached = [name for name, (length, now) in lengths.items() if length is not None and now >= length]
        if reached:
            yield AlreadyComplete(since=resumed.created, step=progress.step, length=reached[0])


def _leave(run: Run, error: BaseException | None) -> None:
    """Save, wait, let go. A request to stop waits for that; then the program is not to go on behind the run."""
    event_bus, scheduler, saver = run._event_bus, run._save_scheduler, run._saver
    clean = error is None or isinstance(error, StopTraining)
    try:
        if run._spec.group is not None and clean:  # all of them are here
            run._gather(run._spec.group)
        run._signals.leave(lambda number: event_bus.queue.append(scheduler.answer(number)))
        obstacle = scheduler.leave(error, event_bus.drain, finished=run.finished, resumes_behind=run.resumes_behind)
        if obstacle is not None:
            event_bus.tell(Noted(text=f"{obstacle}; the newest checkpoint is {run.checkpoint or 'none'}."))
        saver.wait(meanwhile=event_bus.drain)
        if clean:
            _show_last(run)
            saver.raise_past_failure()
    except BaseException as failure:
        error = failure
        raise
    finally:
        _let_go(run, error)
    if clean:
        run.poll()


def _let_go(run: Run, error: BaseException | None) -> None:
    """End the run, with nothing saved any more but what is on its way."""
    drain, abandoned = run._event_bus.drain, run._signals.abandoned
    with ExitStack() as last:
        last.callback(run._signals.remove)
        last.callback(run._unwatch)
        last.callback(run._session.lock.release)
        last.callback(run._position.close)  # workers that hang take seconds to end, and no save waits any more
        arrive(run)
        run._boundary.close()
        run._state.settings.left(run.name, run.progress.step, failed=isinstance(error, Exception))
        run._unseen.close()
        run.stopped = "interrupt" if abandoned else leaving_reason(error, finished=run.finished)
        run.tell(_stopped(run, run.stopped, error))
        last.callback(drain)
        run._save_scheduler.settle(drain, abandoned=abandoned)


def _say_saved(run: Run, stop: KeyboardInterrupt) -> None:
    """What is saved: in a notebook in place of a traceback, for whoever has stopped a training knows why it stopped;
    elsewhere as its last line."""
    saved = run._saver.saved or (run._session.progress if run.checkpoint else None)
    step, known = run.progress.step, run.durability
    if saved is None:
        text = f"stopped at step {step}. Nothing is saved: the same cell starts from zero."
    else:
        there = "" if known.checkpoint is None else f"step {known.step}"
        where = "" if known.step >= saved.step else f" on this machine, {known.place.url} has {there or 'nothing yet'}"
        after = "" if saved.step >= step else f"; the {step - saved.step} step(s) after it are repeated"
        text = f"stopped at step {step}. Saved: step {saved.step}{where}{after}. Run the same cell again to continue."
    stop.args = (said(text),)
    stop._render_traceback_ = lambda: [f"KeyboardInterrupt: {stop}"]  # type: ignore[attr-defined]  # asked by IPython


def _show_last(run: Run) -> None:
    """Displays hear of a step now and then; they end with the last one."""
    if run._shown < run.progress.step:
        run.losses.settle()
        if (loss := run.losses.newest) is not None:
            run._event_bus.step(run._step_done(run.progress, loss))


def _stopped(run: Run, reason: str, error: BaseException | None) -> RunStopped:
    said = ""
    if reason == "error" and error is not None:
        text = str(getattr(error, "problem", error))  # the journal's texts are English
        said = ": ".join(filter(None, (type(error).__name__, text.strip().partition("\n")[0][:500])))
    broken = run.losses.proof.broken
    return RunStopped(
        reason=reason, progress=run.progress, checkpoint=run.checkpoint, error=said, not_finite_since=broken
    )


# A run that was entered by hand and never closed. Only what is on its way is finished then, and nothing new is saved:
# whatever has become of the objects since the last step (the best weights, loaded for a look) would be taken for its
# state.


def _watch(run: Run) -> Callable[[], None]:
    """End the run with the program, if it is still open then. Returns what takes that back."""
    at_exit = partial(_end_at_exit, weakref.ref(run), os.getpid())
    atexit.register(at_exit)
    return partial(atexit.unregister, at_exit)


def _end_at_exit(reference: weakref.ref[Run], process: int) -> None:
    run = reference()
    if run is not None and os.getpid() == process:  # a forked child has not got the run
        _end_if_open(run)


def _end_if_open(run: Run) -> None:
    """Let what is being saved be saved, say what is not, and let go of the run."""
    if not run._is_open:
        return
    run._saver.wait()
    saved = run._saver.saved or run._session.progress
    if saved.step < run.progress.step:
        run.finished = False  # of which nothing is kept
        text = (
            f"The run {run.name!r} was entered by hand and never closed: what was trained after step {saved.step} is "
            "not saved. Write  with colabkeep.Run(…) as run:  around the loop, and its last step is."
        )
        run.tell(Noted(text=text))
    _let_go(run, None)


def _open_alone(run: Run, opening: Callable[[], OpenSession]) -> OpenSession:
    """Open the run. One of the same name and place that nobody in this process can reach any more is ended first."""
    if run._is_open:
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
    _end_if_open(other)
    return opening()


def _other(run: Run) -> Run | None:
    """The open run of the same name and place in this process, if there is one."""
    gc.collect()  # what hangs together in a circle is known to be unreachable only now
    found = (each for each in gc.get_objects() if issubclass(type(each), Run) and each is not run and each._is_open)
    place = run.name, run._spec.store.url
    return next((each for each in found if (each.name, each._spec.store.url) == place), None)


def _held(run: Run) -> RunBusy:
    names = [name for name, value in vars(sys.modules["__main__"]).items() if value is run and name[0] != "_"]
    holder = f"the variable {names[0]!r}" if names else "an object of this program"
    return RunBusy(
        problem=f"The run {run.name!r} is open in this very process: {holder} holds it, at step {run.progress.step}.",
        remedy=f"Close it, then run this again: {names[0] if names else 'run'}.close()  Whoever writes "
        "with colabkeep.Run(…) as run:  around the loop never needs that.",
    )
