"""The training thread's side of saving: capture, hand over, go on; past failures first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress

from colabkeep._engine.committer import Committer, Shot
from colabkeep._engine.writer import Writer
from colabkeep.frameworks.base import Framework
from colabkeep.vocabulary.clock import Clock
from colabkeep.vocabulary.errors import ColabKeepError, MemoryFull, NotStorable, RunTakenOver, SaveFailed, StoreError
from colabkeep.vocabulary.events import Event, Noted, SaveFailing, SaveSkipped, SaveStarted
from colabkeep.vocabulary.progress import Progress
from colabkeep.vocabulary.state import Stale

__all__ = ["Checkpointer"]

_FIRST_RETRY = 15.0  # seconds after a failed save; doubled with each further failure
_LAST_RETRY = 600.0
_LAST_WORDS = 10.0  # seconds for the end of the journal, where the storage has kept up so far


class Checkpointer:
    """Saves a run's parts. Everything here is called on the training thread.

    One save is in flight at most, and the state is copied at most once: a save that is due meanwhile
    waits (`waiting`) and is taken from the state of a later step, when the writer is free.
    `events` is filled by both threads and emptied by the session.
    """

    def __init__(self, framework: Framework, committer: Committer, clock: Clock, events: deque[Event]) -> None:
        self._framework = framework
        self._committer = committer
        self._clock = clock
        self.events = events
        self._writer = Writer(self._chore)
        committer.moved = self._writer.moved
        self._failure: BaseException | None = None
        self._failures = 0
        self._retry_at: float | None = None
        self._saved: Progress | None = None
        self.ledger = committer.ledger
        self.longest = 0.0  # seconds that the longest save of this session took, from the copy to the commit
        self._began = 0.0  # when the one in flight did, in seconds of the clock
        self.waiting: str | None = None  # the reason of a save that waits for the writer, or for another attempt

    @property
    def newest(self) -> str | None:
        """The id of the newest checkpoint, of this session or the one it came from."""
        return self._committer.newest

    @property
    def busy(self) -> bool:
        """Is a save in flight?"""
        return self._writer.busy

    def begin(self, zero: float) -> None:
        """Training begins. `zero` is when the run would have begun without a break, in seconds of `monotonic`."""
        self.ledger.zero = zero
        if self.ledger.waiting:  # what it came from may be on this machine only
            self._writer.start()

    def due(self, now: float) -> str | None:
        """Is there a save to make up for: one that waited for the writer, or one that failed?"""
        if (self.waiting is None and self._retry_at is None) or self._writer.busy:
            return None
        if self.waiting is not None:
            return self.waiting
        return "retry" if self._retry_at is not None and now >= self._retry_at else None

    def save(
        self,
        parts: Mapping[str, object],
        progress: Progress,
        reason: str,
        metrics: Mapping[str, float],
    ) -> bool:
        """Capture the parts and let the writer do the rest. False when one is in flight still, or there is no room
        for a copy now: that is told, and tried again.

        Raises:
            SaveFailed: the last two saves failed, and nothing durable exists.
            NotStorable, RunTakenOver: the save before failed for good.
        """
        self.raise_past_failure(patient=True)  # once may be a moment's trouble: this save is the second attempt
        if self._writer.busy:
            self.events.append(SaveSkipped(progress=progress, reason=reason))
            self.waiting = reason
            return False
        self.waiting = self._retry_at = None
        self._began = started = self._clock.monotonic()
        try:
            capture = self._framework.capture(parts)
        except MemoryFull as error:  # a state may grow by hours of training, which are not to end for it
            self._failed(progress, error)
            return False
        try:
            self.ledger.captured(progress)
            self.events.append(SaveStarted(progress=progress, reason=reason, blocked=self._clock.monotonic() - started))
            shot = Shot(capture=capture, progress=progress, reason=reason, metrics=dict(metrics))
            self._writer.submit(lambda: self._work(shot, started))
        except BaseException:
            if not self._writer.busy:  # interrupted, and nobody else will give the memory back
                self.ledger.released()
                with suppress(Stale):
                    capture.finish().release()
            raise
        return True

    @property
    def saved(self) -> Progress | None:
        """What the newest committed checkpoint of this session holds, as far as is known; None: there is none."""
        return None if self._committer.newest is None else self._saved

    @property
    def left(self) -> float | None:
        """Seconds until the save in flight, or one that begins now, is committed, going by the longest of this session;
        None where there was none yet."""
        if not self.longest:
            return None
        return max(0.0, self.longest - (self._clock.monotonic() - self._began if self._writer.busy else 0.0))

    def wait(self, timeout: float | None = None, meanwhile: Callable[[], None] = lambda: None) -> bool:
        """Wait until no save is in flight, as long as it gets on. True when so. `meanwhile` is called now and then."""
        return self._writer.wait(timeout, meanwhile)

    def look(self) -> None:
        """Have somebody see that what was saved last is still there; `saved` tells once that is done (`wait`)."""
        if self._saved is not None and not self._writer.busy:
            self._writer.submit(self._look)

    def raise_past_failure(self, *, patient: bool = False) -> None:
        """Raise what the background met, if training must know: it cannot pass, or nothing is safe (`patient`: and
        that after two attempts).

        Raises:
            SaveFailed, NotStorable, RunTakenOver: as said.
        """
        failure = self._failure
        if failure is None:
            return
        if isinstance(failure, (NotStorable, RunTakenOver)):
            self._failure = None
            raise failure
        if self._committer.newest is None and not (patient and self._failures < 2):
            self._failure = None
            raise SaveFailed(
                problem=f"No checkpoint could be written, so nothing of this training is safe: {_sentence(failure)}",
                remedy=getattr(failure, "remedy", "Mend the storage, or choose another with storage=…, and run again."),
            ) from failure

    def close(self, patience: float = 60.0, waiting: Callable[[], None] = lambda: None) -> bool:
        """Finish the save in flight, end the thread, let slower storage catch up for at most `patience`
        seconds, write the rest of the journal. True when every checkpoint is where it should be.

        `waiting` is called now and then meanwhile: there may be events. Whoever breaks this off by an exception leaves
        the slower storage behind, and not the journal."""
        if not self._writer.close(waiting):  # it hangs, and still has the committer
            return False
        try:
            there = self._committer.catch_up(patience, waiting)
        finally:
            # On this thread, now that the writer's has ended: one at a time uses the committer.
            self._finish()
        return there and self._committer.catch_up(min(patience, _LAST_WORDS), waiting)

    def abandon(self) -> None:
        """Wait for nothing: the thread ends with the save in flight, which is committed if it still can be."""
        self._writer.abandon()

    def _finish(self) -> None:
        try:
            self._committer.finish()
        except Exception as error:  # noqa: BLE001  # kept, as what the writer's thread meets
            self._failure = error

    def _work(self, shot: Shot, started: float) -> None:
        try:
            self._committer.commit(shot)
        except Stale:  # the next capture copies what this one lacked
            self.waiting = shot.reason
            self._failures = min(self._failures, 1)  # an attempt that did not fail: there is to be another one
        except BaseException as error:  # noqa: BLE001  # kept for `raise_past_failure`; a thread has no caller
            self._failed(shot.progress, error)
        else:
            self._saved = shot.progress
            self.longest = max(self.longest, self._clock.monotonic() - started)
            self._failure = None
            self._failures = 0
        finally:
            self.ledger.released()

    def _look(self) -> None:
        try:
            self._committer.look()
        except StoreError as error:
            self.events.append(Noted(text=f"Whether the last checkpoint is there still is not known: {error.problem}"))
        except BaseException as error:  # noqa: BLE001  # as in `_work`
            self._failure = error

    def _chore(self) -> bool:
        try:
            more = self._committer.tidy()
            return self._committer.fold(lambda: self._writer.wanted) or more
        except BaseException as error:  # noqa: BLE001  # as above
            self._failure = error
            return False

    def _failed(self, progress: Progress, error: BaseException) -> None:
        pause = min(_LAST_RETRY, _FIRST_RETRY * 2**self._failures)
        self._failures += 1
        self._failure = error
        self._retry_at = self._clock.monotonic() + pause
        self.events.append(SaveFailing(progress=progress, error=_sentence(error), retry_in=pause))


def _sentence(error: BaseException) -> str:
    return error.problem if isinstance(error, ColabKeepError) else f"{type(error).__name__}: {error}"
