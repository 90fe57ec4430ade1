"""The forms that a training loop may have, and what happens between its steps: it is saved, told of, and left there."""

from __future__ import annotations

import gc
import itertools
import math
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from inspect import CO_GENERATOR
from types import FrameType, GeneratorType
from typing import Any

from colabkeep.checkpoint.journal import Journal
from colabkeep.core.errors import UsageError
from colabkeep.core.events import (
    AlreadyComplete,
    DeadlineNear,
    EpochDone,
    Event,
    Noted,
    RestoredInexactly,
    StepDone,
    journal_line,
)
from colabkeep.core.manifest import Progress
from colabkeep.core.policies import counts_epochs_only
from colabkeep.core.system import Clock
from colabkeep.frameworks.base import Batch, Boundary, LoaderState, Remembered
from colabkeep.frameworks.shared.iterables import no_batches
from colabkeep.session.data_fingerprint import SameData
from colabkeep.session.machine import StopRequests
from colabkeep.session.open import Observer, OpenSession, RunSpec, as_event, checked_length
from colabkeep.session.ranks import AtATime, Group
from colabkeep.session.scheduler import SaveScheduler, StopTraining
from colabkeep.session.state import Averages, LoopState, Place, Position, RunState


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
            text = f"An observer failed and is not called any more ({why}); all else goes on."
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
    "Nobody can go to a place in these batches, so this run is saved at the end of each epoch only: a disconnect costs "
    "all of the epoch."
)
_AROUND = (
    "This epoch takes steps outside of its loop over run.batches(), so it can be saved at its end only: a disconnect "
    "costs all of the epoch. Take each step inside of that loop, and do not collect its batches in a list."
)
_FREE = (
    "This loop is neither in run.epochs() nor in run.steps(): colabkeep saves what was handed in, but not how far the "
    "loop is. Write: for step in run.steps(n); or begin your count at run.progress.step."
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


class Loop:
    """A training loop, in any of its forms. `Run` is one, with a beginning and an end.

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

    finished = False
    """Did the loop come to its end?"""

    undo: Remembered | None = None
    """What runs again: above the loop, and before the first batch of a resumed epoch."""

    # All of these are there from the beginning of the `with` block on.
    _spec: RunSpec
    _session: OpenSession
    _state: LoopState
    _position: Position
    _boundary: Boundary
    _save_scheduler: SaveScheduler
    _event_bus: EventBus
    _signals: StopRequests
    _zero: float  # when the run would have begun, without a break, in seconds of the clock
    _until: float  # when max_time is over
    _counts: tuple[int, int]  # steps, and updates of the optimizer, when this epoch began
    _shown = 0  # the newest step that was told
    _looked = False  # for who counts
    _waited: float | None = None  # seconds, for the next batch
    _grad_norm: Any = None  # as the loop passed it, of the step that was counted last
    _tokens: Any = None  # of this session, as far as they were told

    @property
    def progress(self) -> Progress:
        """The last finished step, or end of an epoch."""
        return self._position.progress

    @property
    def state(self) -> RunState:
        """Variables of the loop that are saved with each checkpoint, and back before the loop goes on: by attribute
        (`run.state.best = 0.0`) or by key. Plain values, arrays, tensors, and lists, tuples and dicts of them."""
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
        """The batches of `batches` with their numbers in the epoch, which in a resumed epoch go on where they were.

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
            SaveFailed, RunTakenOver, NotStorable, TrainingDiverged: training must not go on.
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
        return self._session.checkpointer.busy

    def redo_step(self) -> str:
        """Go back to `mark_step`: random streams, buffers, gradients, modes and options are as they were, and the
        batches that the loop was given are still its own. Waits for a save in flight. Returns what may have been
        changed meanwhile and could not be put back, a clause; else empty."""
        self._session.checkpointer.wait()
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
        reason = (reason or scheduler.due(now)) if group.leads else None
        ends = 1 if now >= self._until else 0
        if reason == "deadline":
            _tell_deadline(self, now)
            ends = 2 if deadline is not None and deadline.ends else ends
        decided = group.decide(saves=reason is not None, signal=self._signals.requested or 0, ends=ends)
        if any(decided):
            self._gather(group)
        if decided.saves:
            scheduler.save(reason or "asked", wait=scheduler.waits or self._spec.waits)
        if self._event_bus.queue:
            self._event_bus.drain()
        if decided.signal:
            self._signals.requested = signal.Signals(decided.signal)
            self._signals.honour()
        if decided.ends:
            raise StopTraining("max_time" if decided.ends == 1 else "session_end")

    def _gather(self, group: Group) -> None:
        self._refuse_other_weights(group)
        parts, standing = self._spec.parts, self._boundary.gradients
        if other := self._state.gather(group, self.progress, parts, standing, self._position.told()):
            self._event_bus.once(other)

    def _refuse_other_weights(self, group: Group) -> None:
        # Before a step of this session nothing of the others can be lost, and a model may still be wrapped.
        if self.progress.step > self._session.progress.step:
            group.refuse_other_weights(self._spec.parts, sums_gradients=self._spec.loader is not None)

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
            self._refuse_other_weights(self._spec.group)
        self._save_scheduler.wait_if_best()
        self._pause(now)


def _watched(run: Loop, loader: object, start: int | None = None) -> Iterator[Any]:
    """The batches, which know the iterator that they are given to the user's code in."""
    watched: list[Iterator[Any]] = []
    watched.append(_batches(run, loader, watched, start))
    return watched[0]


def _batches(run: Loop, loader: object, watched: list[Iterator[Any]], start: int | None) -> Iterator[Any]:
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


def _timed(run: Loop, batches: Iterator[Batch], now: Callable[[], float]) -> Batch | None:
    """The next one, None behind the last; the wait for it is counted."""
    began = now()
    batch = next(batches, None)
    run._waited = (run._waited or 0.0) + now() - began
    return batch


def _next_batch(run: Loop, opened: LoaderState, fetch: Callable[[], Batch | None]) -> Batch | None:
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
    if opened.length is None:
        reason = run._save_scheduler.due(now) if group is None or group.leads else None
        wanted = reason is not None or run._stops(now)
        if wanted if group is None else group.any(wanted):
            position.hold()
            batch = run._waited_for(fetch)
            if batch is None:  # it was the last one, so this belongs to the end of the epoch
                run._save_scheduler.ask(reason)
                return None
            run._pause(now, reason)
            return batch
    run._pause(now, reason)
    return run._waited_for(fetch)


def arrive(run: Loop) -> None:
    """A resumed run has come to its loop, or the body of a resumed epoch to its batches: what the code did before them
    it did when the run or the epoch began, too. It is undone, and told where it cannot be."""
    undo, run.undo = run.undo, None
    if undo is not None and (twice := undo()) is not None:
        _tell_inexact(run, twice)


def _conclude(run: Loop, length: str) -> None:
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


def _end_session(run: Loop, now: float) -> None:
    """The end of the session is near; leave if training ends by itself before it."""
    _tell_deadline(run, now)
    if run._spec.deadline is not None and run._spec.deadline.ends:
        raise StopTraining("session_end")


def _tell_deadline(run: Loop, now: float) -> None:
    deadline, takes = run._spec.deadline, run._save_scheduler.until_safe(now)
    if deadline is not None:
        run._event_bus.tell(DeadlineNear(seconds=max(0.0, deadline.at - now), ends=deadline.ends, takes=takes))


def _tell_inexact(run: Loop, reason: str) -> None:
    run._event_bus.tell(RestoredInexactly(checkpoint=run._session.checkpointer.newest or "", reason=reason))


def _tell_counted(run: Loop, text: str) -> None:
    if run.progress.batches:
        _tell_inexact(run, text.format(again="in this resumed epoch too", goes="goes"))
    else:
        run._event_bus.tell(Noted(text=text.format(again="again in an epoch that is resumed", goes="will go")))


def _tell_notes(run: Loop, notes: Sequence[str], told: int) -> int:
    """Tell what a loader noted since the first `told` notes."""
    for note in notes[told:]:
        run._event_bus.tell(as_event(run._session.checkpointer.newest or "", note))
    return len(notes)
