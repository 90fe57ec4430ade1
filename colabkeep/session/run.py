"""One run in one session: entered, trained in any of the forms that a loop may have, left; and what happens between its
steps: it is saved, told of, and left there. Runs that were entered by hand and never closed are ended here.
"""

from __future__ import annotations

import atexit
import gc
import itertools
import math
import os
import signal
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from inspect import CO_GENERATOR
from types import FrameType, GeneratorType, TracebackType
from typing import Any

from colabkeep.checkpoint.journal import Journal
from colabkeep.checkpoint.restore import understood
from colabkeep.core.errors import RunBusy, StoreBusy, UsageError, fold
from colabkeep.core.events import (
    AlreadyComplete,
    DeadlineNear,
    Durability,
    DurabilityTold,
    EpochDone,
    Event,
    FirstStepDone,
    MetricsLogged,
    Noted,
    RestoredInexactly,
    RunStopped,
    StepDone,
    journal_line,
)
from colabkeep.core.language import said
from colabkeep.core.manifest import Manifest, Progress
from colabkeep.core.policies import counts_epochs_only
from colabkeep.core.system import Clock
from colabkeep.frameworks.base import Batch, LoaderState, Remembered, Unseen
from colabkeep.frameworks.shared.iterables import no_batches
from colabkeep.session.data_fingerprint import SameData
from colabkeep.session.frozen_base import Base
from colabkeep.session.machine import StopRequests
from colabkeep.session.open import (
    Observer,
    OpenSession,
    RunSpec,
    as_event,
    checked_length,
    open_session,
    run_started,
)
from colabkeep.session.ranks import AtATime, Group
from colabkeep.session.scheduler import SaveScheduler, StopTraining, leaving_reason
from colabkeep.session.state import Averages, History, LoopState, LossRecord, Place, Position, RunState, as_number


class EventBus:
    """Delivers events in order. An observer that fails is told of once and not called again: a broken display must
    never end a training.

    `queue`: events that wait, also from other threads. `observers` hear all events, of steps those that come after
    their `steps_from`; the earliest of these times is `steps_from` here. `listeners` hear of no step.
    """

    def __init__(
        self,
        observers: Iterable[Observer],
        clock: Clock,
        *,
        queue: deque[Event] | None = None,
        listeners: Iterable[Observer] = (),
        journal: Journal | None = None,
    ) -> None:
        self.queue: deque[Event] = deque() if queue is None else queue
        self._observers = list(observers)
        self._listeners = list(listeners)
        self._clock = clock
        self._journal = journal
        self._said: set[str] = set()
        self.steps_from = self._earliest()

    def tell(self, event: Event) -> None:
        """Queue an event and deliver all that wait."""
        self.queue.append(event)
        self.drain()

    def once(self, text: str) -> None:
        """Tell a sentence that a session tells once."""
        if text not in self._said:
            self._said.add(text)
            self.tell(Noted(text=text))

    def drain(self) -> None:
        """Deliver what waits."""
        while self.queue:
            event = self.queue.popleft()
            if isinstance(event, DurabilityTold):
                event = event.shown(self._clock.monotonic())
            line = None if self._journal is None else journal_line(event, self._clock.time())
            if self._journal is not None and line is not None:
                self._journal.add(line)
            self._hand_out(event, self._observers)
            self._hand_out(event, self._listeners)
            self.steps_from = self._earliest()

    def step(self, event: Event) -> None:
        """Tell the observers of a step, now."""
        self._hand_out(event, self._observers)
        self.steps_from = self._earliest()

    def recall(self, run: str, run_id: str, history: Sequence[Mapping[str, Any]]) -> None:
        """Hand what the run has logged so far to the observers that take it up: those with a `recall`."""
        for observer in tuple(self._observers):
            recall = getattr(observer, "recall", None)
            if recall is not None:
                self._call(partial(recall, run, run_id, history), observer, self._observers)

    def _earliest(self) -> float:
        return min((getattr(each, "steps_from", -math.inf) for each in self._observers), default=math.inf)

    def _hand_out(self, event: Event, observers: list[Observer]) -> None:
        for observer in tuple(observers):
            self._call(partial(observer, event), observer, observers)

    def _call(self, call: Callable[[], object], observer: Observer, observers: list[Observer]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001  # see the class: told, and training goes on
            observers.remove(observer)
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            text = f"An observer failed and is not called any more ({why}); everything else continues."
            self.queue.append(Noted(text=text))


_COUNT = (enumerate, itertools.islice, zip)
_PASSES_ON = (GeneratorType, tuple, map, filter, itertools.chain)
_DEEPEST = 4  # wrappers, one around the other: a progress bar, a prefetcher


def counted_by(generator: Iterator[Any]) -> str | None:
    """Is there an "enumerate", an "islice" or a "zip" around this generator, perhaps with a progress bar in between?
    Each of them begins at 0 in a resumed epoch. For the generator itself to ask while it runs: whoever wants its next
    value is on the stack then.

    The garbage collector is asked who refers to it. That looks at all objects: 15 to 30 ms where torch and matplotlib
    are imported.
    """
    ring: list[object] = [generator, *_generators_above(sys._getframe(1))]
    seen = set(map(id, ring))
    for _ in range(_DEEPEST):
        found = [other for other in gc.get_referrers(*ring) if id(other) not in seen]
        kind = next((type(other).__name__ for other in found if type(other) in _COUNT), None)
        if kind is not None:
            return kind
        ring = [other for other in found if isinstance(other, _PASSES_ON)]
        seen.update(map(id, ring))
        if not ring:
            return None
    return None


def _generators_above(frame: FrameType | None) -> list[object]:
    """The frames of the generators that wait for this one. The collector does not see what a running frame holds, but
    the generator that a frame belongs to refers to it."""
    found: list[object] = []
    while frame is not None and len(found) < 2 * _DEEPEST:
        if frame.f_code.co_flags & CO_GENERATOR:
            found.append(frame)
        elif found and frame.f_code.co_name not in ("__next__", "__iter__"):
            break
        frame = frame.f_back
    return found


_BLIND = (
    "This epoch does not read its batches through colabkeep, so it can be saved at its end only: a disconnect costs "
    "all of the epoch. For checkpoints inside it write: for batch in run.batches(loader); or, in a loop that counts "
    "steps: for step in run.steps(n), with run.next(loader)."
)
_AT_ITS_END = (
    "colabkeep cannot resume in the middle of these batches, so it saves this run only at the end of each epoch: a "
    "disconnect costs the whole epoch."
)
_AROUND = (
    "This epoch takes steps outside of its loop over run.batches(), so it can be saved at its end only: a disconnect "
    "costs all of the epoch. Take each step inside of that loop, and do not collect its batches in a list."
)
_FREE = (
    "This loop is neither in run.epochs() nor in run.steps(): colabkeep saves what was passed to it, but not how far "
    "the loop is. Write: for step in run.steps(n); or begin your count at run.progress.step."
)
_COUNTED = {
    "enumerate": "enumerate(run.batches(loader)) counts from 0 {again}, so what goes by the number (a schedule, every "
    "100th batch) {goes} wrong there. Write: for i, batch in run.enumerate(loader).",
    "islice": "islice(run.batches(loader), n) counts from 0 {again}, so the epoch {goes} on for too many batches. "
    "Write: for i, batch in run.enumerate(loader), and leave the loop at your number.",
    "zip": "zip() around run.batches(loader) restarts its other iterator {again}, so the pairs {goes} wrong there. "
    "Write: for i, batch in run.enumerate(loader); and other = run.next(loader_2) for data of another loader.",
}
_SELDOM = (
    "In this epoch the optimizer took {updates} steps, and run.step() was called once: it counts as one step, and can "
    "be saved at the epoch's end only. Call run.step() after each optimizer.step()."
)
_EARLY = (
    "run.next() was called after run.step(): this batch belongs to the next step, and no checkpoint holds it. Draw it "
    "where the body of the loop begins."
)


class Run:
    """The companion of a training loop, in any of its forms. Use it as a context manager; `colabkeep.Run` wires one up.

    Leaving the block saves what is not saved yet and waits until that is safe. After an exception or
    an interrupt, the state saved is that of the last finished step.

    In an epoch and in a loop over steps a checkpoint is taken where the loop asks for its next batch or step: all that
    its body does belongs to the step, whatever stands behind `run.step()`. After the last batch it is the end of the
    epoch, once what follows the batches is done too.
    """

    resumes_behind = False
    """May the training go on behind the last batch of an epoch, with no batch left? Not if the code there uses
    variables that its loop over batches sets."""

    saves_inside = True
    """May a save that is waited for be made in the body of a loop, behind `step`? Not if the body is a trainer's, whose
    hooks cannot know what of the step is still to come."""

    looks_ahead = False
    """Of a trainer that wants to know with each batch whether it is the last one: the next one is fetched before that,
    where a loader has no length."""

    at_last_batch = False
    """With `looks_ahead`, of a loader without a length: was the batch that was handed out last the epoch's last one?"""

    asked_by: tuple[str, str] | None = None
    """Of a trainer: what of its arguments says how long it trains, and its method that trains. Its user writes no loop,
    and may call that method several times."""

    exceptions: tuple[str, ...] = ()
    """Of a trainer: sentences on what of its training a resume does not give back to the bit."""

    finished = False
    """Did the loop come to its end?"""

    undo: Remembered | None = None
    """What runs again: above the loop, and before the first batch of a resumed epoch."""

    _shown = 0  # the newest step that was told
    _looked = False  # for who counts
    _waited: float | None = None  # seconds, for the next batch
    _grad_norm: Any = None  # as the loop passed it, of the step that was counted last
    _tokens: Any = None  # of this session, as far as they were told

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
        started = run_started(spec, session.id, changed=changed, exceptions=self.exceptions)
        events.extendleft([started, *_complete(spec, self.resumed_from)])  # said first
        unseen = _unseen_told(self._unseen, session.state, self.resumed_from, events.append)
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
        """The checkpoint this session resumed from, None for a fresh start."""
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
            SaveFailed, RunTakenOver, NotStorable: training must not continue.
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
        """A new run continues what another program trained: count from there. Call it before the loop."""
        self._position.progress = self.progress._replace(epoch=epoch, step=step)
        self._counts = step, 0

    @property
    def progress(self) -> Progress:
        """The last finished step, or end of an epoch."""
        return self._position.progress

    @property
    def state(self) -> RunState:
        """Variables of the loop that are saved with each checkpoint, and restored before the loop continues: by
        attribute (`run.state.best = 0.0`) or by key. Plain values, arrays, tensors, and lists, tuples and dicts of
        them."""
        return self._state.variables

    @property
    def average(self) -> Averages:
        """Means of an epoch that survive a resume: `run.average(loss=loss)` counts, `run.average.loss` is the mean."""
        return self._state.averages

    @property
    def same_data(self) -> SameData:
        """What is known of the run's data, for a loader that is read beside the loop."""
        return self._state.data

    @property
    def batch_samples(self) -> int | None:
        """How many samples the batch that `batches` or `next` gave last holds; None if it cannot be told."""
        return self._position.batch_samples

    @property
    def ranks(self) -> int:
        """How many processes train this run together; 1 for a training by itself."""
        return 1 if self._spec.group is None else self._spec.group.size

    @property
    def rank(self) -> int:
        """Which of them this is, from 0. Rank 0 saves and shows."""
        return 0 if self._spec.group is None else self._spec.group.rank

    @property
    def batch_weight(self) -> float:
        """What the mean loss of this process counts in the mean over the batch of all of them, where a gradient is the
        mean over processes: 1.0 where each has as many samples, which the last batch of an epoch may not give them.
        ``(loss * run.batch_weight).backward()`` makes an unequal batch count rightly."""
        return self._position.batch_share * self.ranks

    @property
    def epoch_batches(self) -> int | None:
        """How many batches the epoch under way has in all; None if it cannot be told."""
        return self._position.loader.length if self._position.loader is not None else None

    def epochs(self, max_epochs: int | None) -> Iterator[int]:
        """The numbers of the epochs that are left, from the one under way up to `max_epochs - 1`; None: without end.

        In an epoch that is resumed in its middle, what the body does before its first batch is done again, with the
        random numbers and the `state` of the first time. Raises UsageError where `max_epochs` is no whole number.
        """
        self._event_bus.tell(checked_length(max_epochs=max_epochs))
        arrive(self)
        while max_epochs is None or self.progress.epoch < max_epochs:
            self._position.begin_epoch()
            if self.progress.batches:  # what stands before its first batch was done when the epoch began
                self.undo = self._spec.framework.remember(self._spec.parts)
            self._rest()
            yield self.progress.epoch
            self._end_epoch()
        _conclude(self, "the number in run.epochs()")

    def batches(self, loader: object) -> Iterator[Any]:
        """The batches of this epoch that are left, in the order that an uninterrupted run has.

        `loader` is a DataLoader of torch or Paddle, a list of batches, or anything that can be iterated again. Where
        you need the number of the batch, take `enumerate`.

        Raises:
            UsageError: not once in an epoch of `epochs`, or the loader cannot be resumed.
            Incompatible: the data set or its order is not the one of the run.
        """
        return _watched(self, loader)

    def enumerate(self, loader: object, start: int = 0) -> Iterator[tuple[int, Any]]:
        """The batches of `batches` with their numbers in the epoch, which in a resumed epoch continue where they were.

        Raises:
            UsageError, Incompatible: as `batches`.
        """
        return _watched(self, loader, start)

    def steps(self, max_steps: int | None) -> Iterator[int]:
        """The numbers of the steps that are left, from 0 up to `max_steps - 1`; None: without end. For loops that know
        no epochs; draw their batches with `next`. A body that does not call `step` has done one step all the same.

        Raises:
            UsageError: inside of `epochs`, `save_every` counts epochs alone, or `max_steps` is no whole number.
        """
        position = self._position
        if position.in_epoch or counts_epochs_only(self._spec.arguments.save_every):
            raise _no_steps_here(in_epoch=position.in_epoch)
        self._event_bus.tell(checked_length(max_steps=max_steps))
        arrive(self)
        position.go(Place.STEP)
        while max_steps is None or self.progress.step < max_steps:
            yield position.hand_out_step()
            if not position.stepped:
                self.step()
            self._rest()
            self._pause(self._spec.clock.monotonic())
        position.go(Place.FREE)
        _conclude(self, "the number in run.steps()")

    def conclude(self) -> None:
        """Nothing is left to train, for a reason of the trainer's own: its loop over `epochs` does not begin."""
        arrive(self)
        _conclude(self, "")

    def next(self, loader: object, *, name: str | None = None) -> Any:
        """The next batch of `loader`, which is read again and again without an end, each time in a new order if it
        shuffles. Several loaders are streams of their own, each known by the order of first use, or by `name`.

        For loops over `steps`, and for a second loader beside `batches`.

        Raises:
            UsageError: the loader cannot be resumed, or has no batches.
            Incompatible: the data set or its order is not the one of the run.
        """
        position = self._position
        if position.comes_back and position.stepped and not position.resting:
            self._event_bus.once(_EARLY)
        boundary = self._boundary
        if boundary.torn or boundary.opaque or not position.can_rewind or (position.stepped and not position.resting):
            return position.next(loader, name)  # half a step is done: who asks to stop waits for the rest of it
        if self._spec.group is not None:
            return position.next(loader, name)  # all stop at the same boundary
        return self._signals.at_once(lambda: position.next(loader, name))

    def step(self, loss: Any = None, *, grad_norm: Any = None, tokens: Any = None) -> None:
        """One optimizer update is done: count it. In a loop over `batches`, `enumerate` or `steps` it is saved, if that
        is due, when the body of the loop is over; in an epoch that reads its data elsewhere, at the epoch's end; in
        any other loop here.

        Call it after `optimizer.step()`. `loss` is shown now and then; it may live on the GPU, nothing waits for it
        here. The same holds for `grad_norm`, which `clip_grad_norm_` returns, and for `tokens`, the number that this
        step was trained on; the panel shows the norm, and tokens per second.

        Raises:
            KeyboardInterrupt, SystemExit: asked for by a signal; the state is saved on the way out.
            SaveFailed, RunTakenOver, NotStorable, TrainingDiverged: training must not continue.
        """
        now = self._spec.clock.monotonic()
        position = self._position
        progress = position.advance(now - self._zero)
        self._grad_norm = grad_norm
        if tokens is not None:
            self._tokens = tokens if self._tokens is None else self._tokens + tokens
        self._save_scheduler.count(progress.step, loss)
        if now >= self._event_bus.steps_from:
            self._shown = progress.step
            self._event_bus.step(self._step_done(progress, loss))
        if not position.comes_back:
            self._step_elsewhere(now)

    def mark_step(self) -> None:
        """The step under way begins here: `redo_step` comes back to this moment. Nothing was done with its first batch
        yet, and whatever stands before it (training mode, the random streams of a resumed session) is in place."""
        self._state.mark()
        self._boundary.mark()

    @property
    def updates_begun(self) -> bool:
        """Has the optimizer, or a schedule, begun to move on in the step under way? Then it cannot be done again."""
        return self._boundary.torn

    def agree_on(self, at_a_time: AtATime) -> None:
        """Of several processes, all take the least of these at the end of each step."""
        if self._spec.group is not None:
            self._spec.group.at_a_time = at_a_time

    @property
    def saving(self) -> bool:
        """Is a save in flight? It may hold a copy on the device."""
        return self._saver.busy

    def redo_step(self) -> str:
        """Go back to `mark_step`: random streams, buffers, gradients, modes and options are as they were, and the
        batches that the loop was given are still its own. Waits for a save in flight. Returns what may have been
        changed meanwhile and could not be put back, a clause; else empty."""
        self._saver.wait()
        parts = (f"{name} may have been changed by the first attempt" for name in self._boundary.opaque)
        left = next(parts, None) or self._state.rewind()
        self._boundary.rewind()
        return left or ""

    def _step_done(self, progress: Progress, loss: Any) -> StepDone:
        return StepDone(
            progress=progress,
            epoch_batches=self.epoch_batches,
            loss=loss,
            learning_rate=self._spec.framework.learning_rate(self._spec.parts),
            points=self._state.losses.curve.points,
            grad_norm=self._grad_norm,
            tokens=self._tokens,
            waited=self._waited,
        )

    def _step_elsewhere(self, now: float) -> None:
        """A step was done in a loop that does not come back here."""
        if self._position.in_epoch:
            reason = _BLIND if self.saves_inside else _AT_ITS_END  # a trainer's user writes no loop
            self._event_bus.once(_AROUND if self._position.place is Place.BEHIND else reason)
            self._event_bus.drain()
            if self._spec.group is None:
                self._leave_if_asked(now)
            return
        self._event_bus.once(_FREE)
        if self.undo is not None:  # where its first step began cannot be told
            self.undo.release()
            self.undo = None
        self._rest()
        self._pause(now)

    def _waited_for(self, fetch: Callable[[], Batch | None]) -> Batch | None:
        """The next batch. Whoever asks to stop meanwhile is obeyed at once, but where all processes have to hear it."""
        return self._signals.at_once(fetch) if self._spec.group is None else fetch()

    def _rest(self) -> None:
        """A boundary is here."""
        self._position.rest()
        self._boundary.mark()

    def _pause(self, now: float, reason: str | None = None) -> None:
        """What happens at a boundary: save, tell, stop. Most of the time, nothing. `reason`: to save, if known."""
        if self._spec.group is not None:
            self._pause_together(self._spec.group, now, reason)
            return
        reason = reason or self._save_scheduler.due(now)
        if reason is not None:
            if reason == "deadline":
                _end_session(self, now)
            self._save_scheduler.save(reason, wait=self._save_scheduler.waits or self._spec.waits)
        if self._event_bus.queue:
            self._event_bus.drain()
        if self._signals.requested is not None or now >= self._until or self._position.blind:
            self._leave_if_asked(now)

    def _pause_together(self, group: Group, now: float, reason: str | None) -> None:
        """The same, in each of several processes. Rank 0 decides when to save, and any of them may be asked to stop."""
        scheduler, deadline = self._save_scheduler, self._spec.deadline
        if self.progress.step < group.talks_at:
            self._event_bus.drain()
            return
        reason = (reason or scheduler.due(now)) if group.leads else None
        ends = 1 if now >= self._until else 0
        if reason == "deadline":
            _tell_deadline(self, now)
            ends = 2 if deadline is not None and deadline.ends else ends
        asked, talks_at = self._signals.requested or 0, scheduler.talks_at(now)
        step = self.progress.step
        decided = group.decide(step, saves=reason is not None, signal=asked, ends=ends, talks_at=talks_at)
        if any(decided):
            self._gather(group, "step")
        if decided.saves:
            scheduler.save(reason or "asked", wait=scheduler.waits or self._spec.waits)
        if self._event_bus.queue:
            self._event_bus.drain()
        if decided.signal:
            self._signals.requested = signal.Signals(decided.signal)
            self._signals.honour()
        if decided.ends:
            raise StopTraining("max_time" if decided.ends == 1 else "session_end")

    def _gather(self, group: Group, place: str = "left") -> None:
        self._refuse_other_weights(group, place)
        parts, standing = self._spec.parts, self._boundary.gradients
        if other := self._state.gather(group, self.progress, parts, standing, self._position.told()):
            self._event_bus.once(other)

    def _refuse_other_weights(self, group: Group, place: str) -> None:
        # Before a step of this session nothing of the others can be lost, and a model may still be wrapped.
        if (step := self.progress.step) > self._session.progress.step:
            group.refuse_other_weights(place, step, self._spec.parts, sums_gradients=self._spec.loader is not None)

    def _stops(self, now: float) -> bool:
        """Is it time to leave?"""
        return self._signals.requested is not None or now >= self._until

    def _leave_if_asked(self, now: float) -> None:
        if self._signals.requested is not None:
            self._signals.honour()
        if self._stops(now):
            raise StopTraining("max_time")
        if self._position.blind and self._save_scheduler.ends(now):
            _end_session(self, now)

    def _end_epoch(self) -> None:
        """The epoch's body is done."""
        epoch, now = self.progress.epoch, self._spec.clock.monotonic()
        before, self._counts = self._counts, (self.progress.step, self._boundary.updates)
        steps, updates = (after - earlier for earlier, after in zip(before, self._counts, strict=True))
        if steps == 1 < updates:
            self._event_bus.once(_SELDOM.format(updates=updates))
        progress = self._position.end_epoch(now - self._zero)
        self._rest()
        self._event_bus.tell(EpochDone(epoch=epoch, progress=progress, metrics=dict(self._save_scheduler.metrics)))
        if self._spec.group is not None:  # before a step is done with what an observer changed in rank 0 only
            self._refuse_other_weights(self._spec.group, "epoch")
            self._spec.group.talks_at = 0
        self._save_scheduler.wait_if_best()
        self._pause(now)

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


def _watched(run: Run, loader: object, start: int | None = None) -> Iterator[Any]:
    """The batches, which know the iterator that they are given to the user's code in."""
    watched: list[Iterator[Any]] = []
    watched.append(_batches(run, loader, watched, start))
    return watched[0]


def _batches(run: Run, loader: object, watched: list[Iterator[Any]], start: int | None) -> Iterator[Any]:
    """`watched`: the iterator that was given to the user's code, where somebody may count what it gives. `start`:
    the number of an epoch's first batch, where they are asked for with their numbers."""
    position, starting = run._position, run._session.starting
    arrive(run)
    starting.lap("ready")
    opened = position.open(loader)
    told = _tell_notes(run, opened.notes, 0)
    fetch = partial(_timed, run, iter(opened), run._spec.clock.monotonic)
    batch = run._waited_for(fetch)
    if batch is not None:
        starting.lap("loader")
    if watched and batch is not None and not run._looked and (kind := counted_by(watched[0])) is not None:
        _tell_counted(run, _COUNTED[kind])
    watched.clear()  # in a circle, a loop that is left would be closed by the garbage collector, on any thread
    run._looked = True  # in the first epoch of a session, for numbers go wrong in one that is resumed
    exhausted = False
    try:
        while batch is not None:
            value = position.hand_out(batch)
            following = fetch
            if run.looks_ahead and opened.length is None:
                position.hold()
                ahead = run._waited_for(fetch)
                run.at_last_batch = ahead is None
                following = partial(_same, ahead)
            if len(opened.notes) > told:
                told = _tell_notes(run, opened.notes, told)
            yield value if start is None else (position.batch + start, value)
            batch = _next_batch(run, opened, following)
        if position.batch < 0:
            raise no_batches(loader)
        exhausted = True
        run._state.arrive()
    finally:
        position.batches_over(opened, exhausted=exhausted)
    _tell_notes(run, opened.notes, told)


def _same(batch: Batch | None) -> Batch | None:
    """The one that was fetched in advance."""
    return batch


def _timed(run: Run, batches: Iterator[Batch], now: Callable[[], float]) -> Batch | None:
    """The next one, None behind the last; the wait for it is counted."""
    began = now()
    batch = next(batches, None)
    run._waited = (run._waited or 0.0) + now() - began
    return batch


def _next_batch(run: Run, opened: LoaderState, fetch: Callable[[], Batch | None]) -> Batch | None:
    """The loop asks for its next batch: all that its body did is done. This is where it may be saved."""
    position, group = run._position, run._spec.group
    if position.loader is not opened:
        raise UsageError(
            problem="These batches belong to an epoch of run.epochs() that is over.",
            remedy="Call run.batches(loader) in each epoch, and read its batches there.",
        )
    if not position.stepped:  # in the middle of an accumulation
        return run._waited_for(fetch)
    run._rest()
    if position.batch + 1 == opened.length or position.blind:
        return run._waited_for(fetch)
    now, reason = run._spec.clock.monotonic(), None
    if opened.length is None and (group is None or position.progress.step >= group.talks_at):
        reason = run._save_scheduler.due(now) if group is None or group.leads else None
        wanted = reason is not None or run._stops(now)
        if wanted if group is None else group.any(position.progress.step, wanted):
            position.hold()
            batch = run._waited_for(fetch)
            if batch is None:  # it was the last one, so this belongs to the end of the epoch
                run._save_scheduler.ask(reason)
                return None
            run._pause(now, reason)
            return batch
    run._pause(now, reason)
    return run._waited_for(fetch)


def arrive(run: Run) -> None:
    """A resumed run has come to its loop, or the body of a resumed epoch to its batches: what the code did before them
    it did when the run or the epoch began, too. It is undone, and told where it cannot be."""
    undo, run.undo = run.undo, None
    if undo is not None and (twice := undo()) is not None:
        _tell_inexact(run, twice)


def _conclude(run: Run, length: str) -> None:
    """The loop is over. Whatever the cells below draw, they see what they saw behind the training."""
    run._state.arrive()
    run.finished = True
    session, known = run._session, (run._spec.max_epochs, run._spec.max_steps)
    resumed, step = session.resumed_from, run.progress.step
    if resumed is None or resumed.progress.step != step or known != (None, None):
        return
    length, method = run.asked_by or (length, "")
    run._event_bus.tell(AlreadyComplete(since=resumed.created, step=step, length=length))
    if method and session.lease.is_of_same_process():
        name = run._spec.name
        run._event_bus.tell(
            Noted(
                text=f"This {method} trained nothing: an earlier one in this process has the same run_name, {name!r}, "
                "and that run is complete, so its weights and its place were loaded. If the script means to train "
                f'several times, give each {method} a name of its own, such as Resumable(f"{name}-{{epoch}}").'
            )
        )


def _no_steps_here(*, in_epoch: bool) -> UsageError:
    if in_epoch:
        return UsageError(
            problem="run.steps() counts the steps of the whole run, and cannot stand inside of run.epochs().",
            remedy="Loop over one of the two: for epoch in run.epochs(n), or for step in run.steps(n).",
        )
    return UsageError(
        problem="save_every counts epochs, and a loop over run.steps() has none: nothing would be saved.",
        remedy='Pass save_every="auto", "500 steps" or "10 min".',
    )


def _end_session(run: Run, now: float) -> None:
    """The end of the session is near; leave if training ends by itself before it."""
    _tell_deadline(run, now)
    if run._spec.deadline is not None and run._spec.deadline.ends:
        raise StopTraining("session_end")


def _tell_deadline(run: Run, now: float) -> None:
    deadline, takes = run._spec.deadline, run._save_scheduler.until_safe(now)
    if deadline is not None:
        run._event_bus.tell(DeadlineNear(seconds=max(0.0, deadline.at - now), ends=deadline.ends, takes=takes))


def _tell_inexact(run: Run, reason: str) -> None:
    run._event_bus.tell(RestoredInexactly(checkpoint=run._saver.newest or "", reason=reason))


def _tell_counted(run: Run, text: str) -> None:
    if run.progress.batches:
        _tell_inexact(run, text.format(again="in this resumed epoch too", goes="goes"))
    else:
        run._event_bus.tell(Noted(text=text.format(again="again in an epoch that is resumed", goes="will go")))


def _tell_notes(run: Run, notes: Sequence[str], told: int) -> int:
    """Tell what a loader noted since the first `told` notes."""
    for note in notes[told:]:
        run._event_bus.tell(as_event(run._saver.newest or "", note))
    return len(notes)


def _unseen_told(unseen: Unseen, state: LoopState, resumed: Manifest | None, say: Observer) -> Observer:
    """Says with the first step what moves the parts and was not handed in. In a resumed session that is too late, and
    "exact" is taken back; what an earlier session had seen was said at the start."""

    def hear(event: Event) -> None:
        if isinstance(event, FirstStepDone):
            before, state.unseen = state.unseen, list(unseen())
            for text in [each for each in state.unseen if each not in before]:
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
        remedy=f"Close it, then run this again: {names[0] if names else 'run'}.close()  You never need this if you "
        "write  with colabkeep.Run(…) as run:  around the loop.",
    )
