"""The thread that brings one store up to another: in the order of the puts, for as long as it takes.

Everything is kept in one queue, deletions too, so the store behind goes through the same states as the
one in front: a manifest, put last, arrives last.
"""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

from tenacity import RetryCallState, Retrying, retry_if_exception, wait_exponential

from colabkeep.stores.base import Receipt, Store
from colabkeep.vocabulary.errors import CheckpointDamaged, ColabKeepError, NameTaken, ObjectNotFound

__all__ = ["Copier"]

_CHUNK = 2**20
_STOP_SECONDS = 10.0


@dataclass(slots=True, eq=False)
class _Task:
    """Something to be done behind. `cancelled` is the one thing that changes."""

    kind: Literal["copy", "delete"]
    receipt: Receipt
    cancelled: bool = False


class Copier:
    """One daemon thread, started by the first task. All that changes is guarded by `_state`.

    `turn` is held while the store behind is being changed, for its promise is to one writer. `pauses` are the
    first and the longest wait between two attempts, in seconds; they carry no randomness, which would be
    drawn from the generator that belongs to the training.
    """

    def __init__(
        self,
        front: Store,
        behind: Store,
        *,
        turn: threading.Lock,
        pauses: tuple[float, float],
    ) -> None:
        self._front = front
        self._behind = behind
        self._turn = turn
        self._pauses = pauses
        self._state = threading.Condition()
        self._thread: threading.Thread | None = None
        self._tasks: deque[_Task] = deque()  # the first one is being done
        self._arrived: dict[str, Receipt] = {}
        self._stuck: dict[str, str] = {}
        self._trouble: str | None = None
        self._hurry = False
        self._closed = False

    @property
    def trouble(self) -> str | None:
        """Why the last attempt failed; None when it did not."""
        return self._trouble

    @property
    def stuck(self) -> dict[str, str]:
        """What can never be copied, and why."""
        with self._state:
            return dict(self._stuck)

    def copy(self, receipt: Receipt) -> None:
        """Bring the object behind, after everything asked for before."""
        self._add(_Task("copy", receipt))

    def delete(self, name: str) -> None:
        """Delete the object behind; a copy of it that is waiting or under way is given up."""
        with self._state:
            for task in self._tasks:
                if task.receipt.name == name and task.kind == "copy":
                    task.cancelled = True
            self._arrived.pop(name, None)
            self._stuck.pop(name, None)
        self._add(_Task("delete", Receipt(name=name, size=0, sha256="", rung="unknown")))

    def arrived(self, name: str) -> Receipt | None:
        """The receipt of an object that this copier brought behind."""
        with self._state:
            return self._arrived.get(name)

    def pending(self) -> dict[str, Literal["copy", "delete"]]:
        """What is still to be done: for each name the last task."""
        with self._state:
            return {task.receipt.name: task.kind for task in self._tasks}

    def wait(self, timeout: float) -> bool:
        """Wait until nothing is left to do; what waits for its next attempt is tried at once. True when done."""
        with self._state:
            self._hurry = True
            self._state.notify_all()
            self._state.wait_for(lambda: self._closed or not self._tasks, timeout)
            return not self._tasks

    def close(self) -> None:
        """Stop the thread, in the middle of a copy if need be."""
        with self._state:
            self._closed = True
            self._state.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(_STOP_SECONDS)

    def _add(self, task: _Task) -> None:
        with self._state:
            if self._closed:
                return
            self._tasks.append(task)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="colabkeep-copier", daemon=True)
                self._thread.start()
            self._state.notify_all()

    def _work(self) -> None:
        task = self._next()
        while task is not None:
            self._persist(task)
            task = self._next(done=task)

    def _next(self, done: _Task | None = None) -> _Task | None:
        """The next task, None when there will be none. A task stays the first one until it is done."""
        with self._state:
            if done is not None and not self._closed:
                self._tasks.popleft()
                self._state.notify_all()
            self._state.wait_for(lambda: self._closed or self._tasks)
            return None if self._closed else self._tasks[0]

    def _persist(self, task: _Task) -> None:
        """Do the task, however often it has to be tried, unless it is not wanted any more."""
        first, longest = self._pauses
        unwanted = partial(self._unwanted, task)
        retrying = Retrying(
            retry=retry_if_exception(lambda error: isinstance(error, Exception) and not unwanted()),
            wait=wait_exponential(multiplier=first, max=longest),
            before_sleep=self._failed,
            sleep=partial(self._pause, task),
        )
        try:
            retrying(self._attempt, task)
        except Exception:
            # An unwanted copy is made to stop by an exception; any other one would have been tried again.
            if not unwanted():
                raise
        else:
            self._worked()

    def _attempt(self, task: _Task) -> None:
        if self._unwanted(task):
            return
        with self._turn:
            if task.kind == "copy":
                self._copy(task)
            else:
                self._behind.delete(task.receipt.name)

    def _copy(self, task: _Task) -> None:
        name = task.receipt.name
        source = _FrontObject(self._front, task.receipt, partial(self._unwanted, task))
        try:
            receipt = self._put(name, source)
        except Exception:
            with self._state:
                if source.unfit is None or task.cancelled:
                    raise
                self._stuck[name] = source.unfit
        else:
            with self._state:
                if not task.cancelled:
                    self._arrived[name] = receipt

    def _put(self, name: str, source: _FrontObject) -> Receipt:
        try:
            return self._behind.put(name, source)
        except NameTaken:
            # An earlier attempt may have got there without being able to say so.
            with self._behind.get(name) as there:
                digest = hashlib.sha256()
                while data := there.read(_CHUNK):
                    digest.update(data)
            if digest.hexdigest() != source.sha256:
                source.unfit = "is there already, with other bytes"
                raise
            return Receipt(name=name, size=source.size, sha256=source.sha256, rung="sent")

    def _unwanted(self, task: _Task) -> bool:
        return task.cancelled or self._closed

    def _pause(self, task: _Task, seconds: float) -> None:
        with self._state:
            self._state.wait_for(lambda: self._hurry or self._unwanted(task), seconds)
            self._hurry = False

    def _failed(self, attempt: RetryCallState) -> None:
        error = attempt.outcome.exception() if attempt.outcome else None
        self._trouble = error.problem if isinstance(error, ColabKeepError) else f"{type(error).__name__}: {error}"

    def _worked(self) -> None:
        self._trouble = None


class _FrontObject:
    """An object in front as a source. It is hashed on the way, so that damage is never passed on.

    `unfit` says, once it is known, why it can never be copied.
    """

    def __init__(self, front: Store, receipt: Receipt, unwanted: Callable[[], bool]) -> None:
        self._front = front
        self._receipt = receipt
        self._unwanted = unwanted
        self._sha256 = receipt.sha256  # empty for an object of an earlier session
        self.unfit: str | None = None

    @property
    def size(self) -> int:
        return self._receipt.size

    @property
    def sha256(self) -> str:
        if not self._sha256:
            for _ in self.chunks():
                pass
        return self._sha256

    def chunks(self) -> Iterator[memoryview]:
        """The bytes, in one buffer that is filled again for each chunk."""
        name, digest, buffer = self._receipt.name, hashlib.sha256(), memoryview(bytearray(_CHUNK))
        try:
            reader = self._front.get(name)
        except ObjectNotFound:
            self.unfit = "vanished before it was copied"
            raise
        with reader:
            while count := reader.readinto(buffer):  # type: ignore[attr-defined]
                if self._unwanted():
                    raise _Stopped
                digest.update(buffer[:count])
                yield buffer[:count]
        if self._sha256 not in {"", digest.hexdigest()}:
            self.unfit = "was damaged on this machine's disk before it was copied"
            raise CheckpointDamaged(
                problem=f"{name!r} in {self._front.url} is not what was written.",
                remedy="Nothing needs to be done: the next checkpoint is written anew.",
            )
        self._sha256 = digest.hexdigest()


class _Stopped(Exception):
    """The copier was closed, or the object is not wanted any more."""
