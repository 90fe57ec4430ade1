"""The forms that a training loop may have, and where in them it is saved: when its body is over."""

from __future__ import annotations

import gc
import itertools
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from inspect import CO_GENERATOR
from types import FrameType, GeneratorType
from typing import Any

from colabkeep.core.errors import UsageError
from colabkeep.core.events import AlreadyComplete, Event, Noted, RestoredInexactly
from colabkeep.core.manifest import Progress
from colabkeep.core.policies import counts_epochs_only
from colabkeep.frameworks.base import Batch, Boundary, LoaderState, Remembered
from colabkeep.session.data_fingerprint import SameData
from colabkeep.session.event_bus import EventBus
from colabkeep.session.machine import StopRequests
from colabkeep.session.open import OpenSession, RunSpec, as_event
from colabkeep.session.position import Place, Position
from colabkeep.session.scheduler import SaveScheduler
from colabkeep.session.validation import checked_length
from colabkeep.session.variables import Averages, RunState

__all__ = [
    "AROUND",
    "BLIND",
    "FREE",
    "SELDOM",
    "Loop",
    "arrive",
    "counted_by",
]

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


BLIND = (
    "This epoch does not read its batches through colabkeep, so it can be saved at its end only: a disconnect costs "
    "all of the epoch. For checkpoints inside it write: for batch in run.batches(loader); or, in a loop that counts "
    "steps: for step in run.steps(n), with run.next(loader)."
)
AROUND = (
    "This epoch takes steps outside of its loop over run.batches(), so it can be saved at its end only: a disconnect "
    "costs all of the epoch. Take each step inside of that loop, and do not collect its batches in a list."
)
FREE = (
    "This loop is neither in run.epochs() nor in run.steps(): colabkeep saves what was handed in, but not how far the "
    "loop is. Write: for step in run.steps(n); or begin your count at run.progress.step."
)
_COUNTED = {
    "enumerate": "enumerate(run.batches(loader)) counts from 0 {again}, so what goes by the number (a schedule, every "
    "100th batch) {goes} wrong there. Write: for i, batch in run.enumerate(loader).",
    "islice": "islice(run.batches(loader), n) counts from 0 {again}, so the epoch {goes} on for too many batches. "
    "Write: for i, batch in run.enumerate(loader), and leave the loop at your number.",
    "zip": "zip() around run.batches(loader) begins its other side anew {again}, so what is paired {goes} wrong there. "
    "Write: for i, batch in run.enumerate(loader); and other = run.next(loader_2) for data of another loader.",
}
SELDOM = (
    "In this epoch the optimizer took {updates} steps, and run.step() was called once: it counts as one step, and can "
    "be saved at the epoch's end only. Call run.step() after each optimizer.step()."
)
_EARLY = (
    "run.next() was called after run.step(): this batch belongs to the next step, and no checkpoint holds it. Draw it "
    "where the body of the loop begins."
)


class Loop:
    """A training loop, in any of its forms. `Run` is one, with all that a loop does not see.

    In an epoch and in a loop over steps a checkpoint is taken where the loop asks for its next batch or step: all that
    its body does belongs to the step, whatever stands behind `run.step()`. After the last batch it is the end of the
    epoch, once what follows the batches is done too.
    """

    resumes_behind = False
    """May the training go on behind the last batch of an epoch, with no batch left? Not if the code there uses
    variables that its loop over batches sets."""

    finished: bool
    _spec: RunSpec
    _session: OpenSession
    _position: Position
    _boundary: Boundary
    _save_scheduler: SaveScheduler
    _event_bus: EventBus
    _signals: StopRequests
    _looked = False  # for who counts
    undo: Remembered | None = None  # what runs again: above the loop, and before the first batch of a resumed epoch

    @property
    def progress(self) -> Progress:
        """The last finished step, or end of an epoch."""
        return self._position.progress

    @property
    def state(self) -> RunState:
        """Variables of the loop that are saved with each checkpoint, and back before the loop goes on: by attribute
        (`run.state.best = 0.0`) or by key. Plain values, arrays, tensors, and lists, tuples and dicts of them."""
        return self._position.memory.state

    @property
    def average(self) -> Averages:
        """Means of an epoch that survive a resume: `run.average(loss=loss)` counts, `run.average.loss` is the mean."""
        return self._position.memory.averages

    @property
    def same_data(self) -> SameData:
        """What is known of the run's data, for a loader that is read beside the loop."""
        return self._session.data

    @property
    def batch_samples(self) -> int | None:
        """How many samples the batch that `batches` or `next` gave last holds; None if it cannot be told."""
        return self._position.batch_samples

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
        if position.in_epoch or counts_epochs_only(self._spec.save_every):
            raise _no_steps_here(in_epoch=position.in_epoch)
        self._event_bus.tell(checked_length(max_steps=max_steps))
        arrive(self)
        position.begin_steps()
        while max_steps is None or self.progress.step < max_steps:
            yield position.hand_out_step()
            if not position.stepped:
                self.step()
            self._rest()
            self._pause(self._spec.clock.monotonic())
        position.go(Place.FREE)
        _conclude(self, "the number in run.steps()")

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
            self._event_bus.once(Noted(text=_EARLY))
        boundary = self._boundary
        if boundary.torn or boundary.opaque or not position.can_rewind or (position.stepped and not position.resting):
            return position.next(loader, name)  # half a step is done: who asks to stop waits for the rest of it
        return self._signals.at_once(lambda: position.next(loader, name))

    def _batches(self, loader: object, watched: list[Iterator[Any]], start: int | None = None) -> Iterator[Any]:
        """`watched`: the iterator that was given to the user's code, where somebody may count what it gives. `start`:
        the number of an epoch's first batch, where they are asked for with their numbers."""
        position, starting = self._position, self._session.starting
        arrive(self)
        opened = starting.opens(position.open, loader)
        told = _tell_notes(self, opened.notes, 0)
        fetch = partial(next, iter(opened), None)
        batch = self._signals.at_once(fetch)
        if batch is not None and not starting.over:
            starting.lap("loader")
        if watched and batch is not None and not self._looked and (kind := counted_by(watched[0])) is not None:
            _tell_counted(self, _COUNTED[kind])
        watched.clear()  # in a circle, a loop that is left would be closed by the garbage collector, on any thread
        self._looked = True  # in the first epoch of a session, for numbers go wrong in one that is resumed
        exhausted = False
        try:
            while batch is not None:
                value = position.hand_out(batch)
                if len(opened.notes) > told:
                    told = _tell_notes(self, opened.notes, told)
                yield value if start is None else (position.batch + start, value)
                batch = self._next_batch(opened, fetch)
            position.refuse_nothing(loader)
            exhausted = True
            position.memory.arrive()
        finally:
            position.batches_over(opened, exhausted=exhausted)
        _tell_notes(self, opened.notes, told)

    def _next_batch(self, opened: LoaderState, fetch: Callable[[], Batch | None]) -> Batch | None:
        """The loop asks for its next batch: all that its body did is done. This is where it may be saved."""
        position = self._position
        if position.loader is not opened:
            raise UsageError(
                problem="These batches belong to an epoch of run.epochs() that is over.",
                remedy="Call run.batches(loader) in each epoch, and read its batches there.",
            )
        if not position.stepped:  # in the middle of an accumulation
            return self._signals.at_once(fetch)
        self._rest()
        if position.batch + 1 == opened.length or position.blind:
            return self._signals.at_once(fetch)
        now, reason = self._spec.clock.monotonic(), None
        if opened.length is None:
            reason = self._save_scheduler.due(now)
            if reason is not None or self._stops(now):
                position.hold()
                batch = self._signals.at_once(fetch)
                if batch is None:  # it was the last one, so this belongs to the end of the epoch
                    self._save_scheduler.ask(reason)
                    return None
                self._pause(now, reason)
                return batch
        self._pause(now, reason)
        return self._signals.at_once(fetch)

    @abstractmethod
    def step(self, loss: Any = None) -> None:
        """A step is done."""

    @abstractmethod
    def _rest(self) -> None:
        """A boundary is here."""

    @abstractmethod
    def _pause(self, now: float, reason: str | None = None) -> None:
        """What happens at a boundary: save, talk, stop. Most of the time, nothing. `reason`: to save, if known."""

    @abstractmethod
    def _stops(self, now: float) -> bool:
        """Is it time to leave?"""

    @property
    @abstractmethod
    def checkpoint(self) -> str | None:
        """The id of the newest committed checkpoint."""

    @abstractmethod
    def _end_epoch(self) -> None:
        """The epoch's body is done."""

    @abstractmethod
    def poll(self) -> None:
        """Honour a request to stop."""

    @abstractmethod
    def tell(self, event: Event) -> None:
        """Tell an event."""


def _watched(run: Loop, loader: object, start: int | None = None) -> Iterator[Any]:
    """The batches, which know the iterator that they are given to the user's code in."""
    watched: list[Iterator[Any]] = []
    watched.append(run._batches(loader, watched, start))
    return watched[0]


def arrive(run: Loop) -> None:
    """A resumed run has come to its loop, or the body of a resumed epoch to its batches: what the code did before them
    it did when the run or the epoch began, too. It is undone, and told where it cannot be."""
    undo, run.undo = run.undo, None
    if undo is not None and (twice := undo()) is not None:
        run.tell(RestoredInexactly(checkpoint=run.checkpoint or "", reason=twice))


def _conclude(run: Loop, length: str) -> None:
    """The loop is over. Whatever the cells below draw, they see what they saw behind the training."""
    run._position.memory.arrive()
    run.finished = True
    resumed, known = run._session.resumed_from, (run._spec.max_epochs, run._spec.max_steps)
    if resumed is not None and resumed.progress.step == run.progress.step and known == (None, None):
        run.tell(AlreadyComplete(since=resumed.created, step=run.progress.step, length=length))


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


def _tell_counted(run: Loop, text: str) -> None:
    if run.progress.batches:
        text = text.format(again="in this resumed epoch too", goes="goes")
        run.tell(RestoredInexactly(checkpoint=run.checkpoint or "", reason=text))
    else:
        run.tell(Noted(text=text.format(again="again in an epoch that is resumed", goes="will go")))


def _tell_notes(run: Loop, notes: Sequence[str], told: int) -> int:
    """Tell what a loader noted since the first `told` notes."""
    for note in notes[told:]:
        run.tell(as_event(run.checkpoint or "", note))
    return len(notes)
