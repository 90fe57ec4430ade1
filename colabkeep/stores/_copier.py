"""The thread that brings one store up to another, for as long as it takes: one object at a time on the wire.

What comes next is decided in `_queue`, how it is done stands in `_carrier`.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeAlias, TypeGuard

from colabkeep.stores._carrier import Carrier
from colabkeep.stores._queue import Kind, Queue, Task
from colabkeep.stores.base import Receipt
from colabkeep.vocabulary.errors import ColabKeepError, StoreError, StoreFull
from colabkeep.vocabulary.priority import give_way

__all__ = ["Copier", "Pauses"]

_STOP_SECONDS = 3.0
_HURRY = 15.0  # seconds between two attempts for one who waits: they come on top of those that spare the service
_NAP = 5.0  # seconds; how long to rest is asked again then
_MOMENT = 0.5  # seconds; a question may be waited for so long, by who must not wait for more than one
_GIVEN_UP = 3  # failures in a row, after which a checkpoint that was begun is no longer preferred to a newer one

Pauses: TypeAlias = tuple[float, float]
"""The first and the longest wait between two attempts, in seconds. They carry no randomness, which would be drawn
from the generator that belongs to the training."""


class Copier:
    """One daemon thread, started by the first task that is not held. All that changes is guarded by `_state`.

    `looked` is called by this thread when a checkpoint has arrived, the queue is empty, or there is no room.
    """

    def __init__(self, carrier: Carrier, *, pauses: Pauses, looked: Callable[[], None]) -> None:
        self._carrier = carrier
        self._pauses = pauses
        self._looked = looked
        self._state = threading.Condition()
        self._thread: threading.Thread | None = None
        self._queue = Queue(carrier.blobs_of)
        self._trouble: Exception | None = None
        self._hurry = False
        self._waited_for = 0  # by so many threads
        self._hurried = -math.inf  # when that was asked for last, in seconds of `time.monotonic`
        self._silent = False  # was the last question not answered in a moment?
        self._closed = False

    @property
    def running(self) -> bool:
        """Has anything been put or deleted? From then on nobody else waits for the store behind."""
        return self._thread is not None

    @property
    def away(self) -> bool:
        """Did the last attempt fail in a way that may pass?"""
        error = self._trouble
        return isinstance(error, StoreError) and error.retryable and not self.full

    @property
    def trouble(self) -> str | None:
        """Why the last attempt failed; None when it did not."""
        error = self._trouble
        if error is None:
            return None
        return error.problem if isinstance(error, ColabKeepError) else f"{type(error).__name__}: {error}"

    @property
    def full(self) -> bool:
        """Was the last attempt refused for want of room?"""
        return isinstance(self._trouble, StoreFull)

    @property
    def refuses(self) -> StoreError | None:
        """Why the last attempt failed, where that does not pass by itself."""
        error = self._trouble
        return error if isinstance(error, StoreError) and (self.full or _is_final(error)) else None

    @property
    def sending(self) -> str | None:
        """The manifest of the checkpoint on its way."""
        with self._state:
            return self._queue.sending

    @property
    def waiting_bytes(self) -> int:
        """Bytes still to be copied."""
        with self._state:
            return self._queue.waiting_bytes

    def hold(self, receipts: Sequence[Receipt]) -> None:
        """Bring these behind as well, once there is anything else to do: a new session's lease goes before them."""
        with self._state:
            for receipt in receipts:
                self._queue.add(Task("copy", receipt))
            self._state.notify_all()

    def copy(self, receipt: Receipt) -> None:
        """Bring the object behind."""
        self._add(Task("copy", receipt))

    def delete(self, name: str) -> None:
        """Delete the object behind; a copy of it that is waiting or under way is given up."""
        if name not in self._carrier.refused:
            self._add(Task("delete", Receipt(name=name, size=0, sha256="", rung="unknown")))
        self._carrier.forget(name)  # last: a copy that was just finished does not count any more either

    def found(self, names: Iterable[str], gone: Iterable[str]) -> None:
        """These are behind, and what is `gone` is not any more."""
        with self._state:
            self._queue.found(names, gone)

    def ask(self, receipt: Receipt) -> None:
        """Have the store behind asked about an object, and wait a moment for the answer; not after a question that
        was kept waiting, by that store or by what is on the wire."""
        with self._state:
            self._carrier.ask(receipt)
            self._state.notify_all()
            if not self._silent:
                self._silent = not self._state.wait_for(lambda: self._closed or not self._carrier.is_asked, _MOMENT)

    def pending(self) -> dict[str, Kind]:
        """What is still to be done: for each name the last task."""
        with self._state:
            return self._pending()

    def wait(self, timeout: float) -> bool:
        """Wait until nothing is left to do; what waits for its next attempt is tried at once, if that was not asked for
        a moment ago. True when done."""
        with self._state:
            now = time.monotonic()
            if now - self._hurried >= _HURRY:
                self._hurry, self._hurried = True, now
            if self._queue:
                self._start()
            self._waited_for += 1
            self._state.notify_all()
            try:
                self._state.wait_for(lambda: self._closed or not self._queue, timeout)
            finally:
                self._waited_for -= 1
            return not self._queue

    def close(self) -> None:
        """Stop the thread, in the middle of a copy if need be."""
        with self._state:
            self._closed = True
            self._state.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(_STOP_SECONDS)

    def _pending(self) -> dict[str, Kind]:
        refused: dict[str, Kind] = dict.fromkeys(self._carrier.refused, "delete")
        return refused | {task.name: task.kind for task in self._queue if not task.cancelled}

    def _add(self, task: Task) -> None:
        with self._state:
            if self._closed:
                return
            self._queue.add(task)
            self._start()
            self._state.notify_all()

    def _start(self) -> None:
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._work, name="colabkeep-copier", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        give_way()  # hashing and encrypting what is sent would slow training down
        failures = 0
        while (task := self._next()) is not None:
            error = self._carrier.do(task, partial(self._unwanted, task))
            if error is not None and _is_final(error) and task.kind == "delete":
                # It takes room there, and that is all: no copy waits for it, and nobody asks for it again.
                self._carrier.refuse(task.name, error.problem)
                error = None
            with self._state:
                if error is None or self._unwanted(task):
                    failures = 0
                    if not self._closed:
                        self._queue.done(task)
                    if not any(other.refused for other in self._queue):  # else what refused them is trouble still
                        self._trouble = None if error is None else self._trouble
                else:
                    failures += 1
                    self._trouble = error
                    if isinstance(error, StoreFull) or _is_final(error):
                        self._queue.refuse(task)
                    elif failures >= _GIVEN_UP:
                        self._queue.choose_again()
                self._state.notify_all()
                settled = task.is_manifest or self.full or not self._queue
            self._answer()
            if settled:  # not after each object: it may be a request
                self._looked()
            if failures:
                self._pause(failures)

    def _next(self) -> Task | None:
        """The next task, None when there will be none. A task stays in the queue until it is done."""
        while True:
            with self._state:
                while self._closed or not self._carrier.is_asked:
                    if self._closed:
                        return None
                    rest = self._carrier.rest(urgent=self._waited_for > 0) if self._queue else 0.0
                    task = self._queue.next() if rest <= 0.0 else None
                    if task is not None:
                        return task
                    self._state.notify_all()
                    self._state.wait(min(rest, _NAP) if rest > 0.0 else None)
            self._answer()

    def _answer(self) -> None:
        self._carrier.answer()
        with self._state:
            self._silent = False
            self._state.notify_all()

    def _unwanted(self, task: Task) -> bool:
        return task.cancelled or self._closed

    def _pause(self, failures: int) -> None:
        """Wait for the next attempt: longer each time, and not at all once there is something else to delete."""
        first, longest = self._pauses
        seconds = min(longest, first * 2 ** min(failures - 1, 30))
        deletions, end = self._deletions(), time.monotonic() + seconds
        while True:
            with self._state:
                self._state.wait_for(
                    lambda: self._hurry or self._closed or self._deletions() > deletions or self._carrier.is_asked,
                    end - time.monotonic(),
                )
                if self._closed or not self._carrier.is_asked:
                    self._hurry = False
                    return
            self._answer()

    def _deletions(self) -> int:
        return sum(task.kind == "delete" for task in self._queue)


def _is_final(error: Exception) -> TypeGuard[StoreError]:
    return isinstance(error, StoreError) and not error.retryable
