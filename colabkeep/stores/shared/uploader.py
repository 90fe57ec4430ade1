"""The thread that brings the remote store up to the local one: one copy, deletion or question at a time."""

from __future__ import annotations

import contextlib
import hashlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias, TypeGuard

from colabkeep.core.errors import CheckpointDamaged, ColabKeepError, NameTaken, ObjectNotFound, StoreError, StoreFull
from colabkeep.core.system import give_way
from colabkeep.stores.base import Behind, Needs, Receipt, Store, StoreProperties, remade, rest
from colabkeep.stores.shared.remote_index import RemoteIndex
from colabkeep.stores.shared.streaming import digest_of
from colabkeep.stores.shared.upload_queue import Kind, Queue, Task

_WINDOW = 60.0  # seconds of sending that count in full; what was sent before fades, so a link that changes is seen


class Meter:
    """Bytes per second of sending: the time in which nothing was to be sent does not count."""

    def __init__(self) -> None:
        self._bytes = 0.0
        self._seconds = 0.0

    @property
    def bytes_per_second(self) -> float | None:
        """None as long as nothing was sent."""
        return self._bytes / self._seconds if self._seconds > 0 else None

    def add(self, size: int, seconds: float) -> None:
        """So many bytes took so long."""
        self._bytes += size
        self._seconds += seconds
        if self._seconds > _WINDOW:
            self._bytes *= _WINDOW / self._seconds
            self._seconds = _WINDOW


_CHUNK = 2**20


class _LocalObject:
    """A local object as a source. It is hashed on the way, so that damage is never passed on.

    `unfit` says, once it is known, why it can never be copied; `vanished`: it went with the whole folder.
    `read` counts the bytes given.
    """

    def __init__(self, local: Store, task: Task, unwanted: Callable[[], bool]) -> None:
        self._local = local
        self._receipt = task.receipt
        self._unwanted = unwanted
        self._sha256 = task.receipt.sha256  # empty for an object of an earlier session
        self.needs = task.needs
        self.unfit: str | None = None
        self.vanished = False
        self.read = 0

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
        self.read = 0
        try:
            reader = self._local.get(name)
        except ObjectNotFound:
            self.unfit, self.vanished = "vanished before it was copied", remade(self._local) > 0
            raise
        with reader:
            while count := reader.readinto(buffer):  # type: ignore[attr-defined]
                if self._unwanted():
                    raise _Stopped
                digest.update(buffer[:count])
                self.read += count
                yield buffer[:count]
        if self._sha256 not in {"", digest.hexdigest()}:
            self.unfit = "was damaged on this machine's disk before it was copied"
            raise CheckpointDamaged(
                problem=f"{name!r} in {self._local.url} is not what was written.",
                remedy="Nothing needs to be done: the next checkpoint is written again.",
            )
        self._sha256 = digest.hexdigest()


class _Stopped(Exception):
    """The uploader was closed, or the object is not wanted any more."""


def _put(remote: Store, name: str, source: _LocalObject) -> Receipt:
    try:
        return remote.put(name, source)
    except NameTaken:
        # An earlier attempt may have got there without being able to say so.
        there_already = Receipt(name=name, size=source.size, sha256=source.sha256, level="sent")
        with contextlib.suppress(StoreError):  # it cannot say; the bytes can
            if (answer := remote.confirm(there_already)).level == "confirmed":
                return answer  # the digest was stated: no need to fetch gigabytes for it
        if digest_of(remote.get(name)) != source.sha256:
            source.unfit = "is there already, with other bytes"
            raise
        return there_already


_STOP_SECONDS = 3.0
_HURRY = 15.0  # seconds between two attempts for one who waits: they come on top of those that spare the service
_NAP = 5.0  # seconds; how long to rest is asked again then
_MOMENT = 0.5  # seconds; a question may be waited for so long, by who must not wait for more than one
_GIVEN_UP = 3  # failures in a row, after which a whole that was begun is no longer preferred to a newer one

Pauses: TypeAlias = tuple[float, float]
"""The first and the longest wait between two attempts, in seconds. They carry no randomness, which would be drawn
from the generator that belongs to the training."""


class Uploader:
    """One daemon thread, started by the first task that is not held. All that changes is guarded by `_state`.

    What comes next is decided in `upload_queue`, and what comes of it is told the `index`. `may_delete` is asked before
    each deletion, and told whether anything has failed since it was asked last. `looked` is called by this thread when
    a whole has arrived, the queue is empty, or there is no room. `turn` is held while the remote store is being changed
    or asked, for its promise is to one writer.
    """

    def __init__(
        self,
        sides: tuple[Store, Store],
        index: RemoteIndex,
        *,
        may_delete: Callable[[str, bool], bool],
        looked: Callable[[], None],
        pauses: Pauses,
        monotonic: Callable[[], float],
    ) -> None:
        self._local, self._remote = sides
        self._index = index
        self._may_delete = may_delete
        self._looked = looked
        self._pauses = pauses
        self._monotonic = monotonic
        self.turn = threading.Lock()
        self.silence: str | None = None  # why the last questions were not answered
        self._meter = Meter()
        self._state = threading.Condition()
        self._thread: threading.Thread | None = None
        self._queue = Queue()
        self._asked: dict[str, Receipt] = {}  # to be confirmed between two objects
        self._trouble: Exception | None = None
        self._hurry = False
        self._waited_for = 0  # by so many threads
        self._hurried = -math.inf  # when that was asked for last, in seconds of `time.monotonic`
        self._silent = False  # was the last question not answered in a moment?
        self._doubtful = False  # has anything failed since a deletion was allowed?
        self._closed = False

    @property
    def running(self) -> bool:
        """Has anything been put or deleted? From then on nobody else waits for the remote store."""
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

    def behind(self, properties: StoreProperties) -> Behind:
        """How far the remote store, with these properties, has caught up."""
        with self._state:
            return Behind(
                url=self._remote.url,
                free_bytes=properties.free_bytes,
                full=self.full,
                refuses=self.refuses,
                waiting_bytes=self._queue.waiting_bytes,
                bytes_per_second=self._meter.bytes_per_second,
                sending=self._queue.sending,
                account=properties.account,
                budget=properties.budget,
            )

    def copy(self, receipt: Receipt, needs: Needs | None = None, *, held: bool = False) -> None:
        """Bring the object to the remote store. `held`: once there is anything else to do, so that a new session's
        lease goes before it."""
        self._add(Task("copy", receipt, needs), start=not held)

    def delete(self, name: str) -> None:
        """Delete the object there; a copy of it that is waiting or under way is given up."""
        if name not in self._index.refused:
            self._index.doom(name)
            self._add(Task("delete", Receipt(name=name, size=0, sha256="", level="unknown")))

    def ask(self, receipt: Receipt) -> None:
        """Have the remote store asked about an object, and wait a moment for the answer; not after a question that was
        kept waiting, by that store or by what is on the wire. Where nothing is sent at all, it is waited for."""
        with self._state:
            self._asked[receipt.name] = receipt
            self._state.notify_all()
            if self.running:
                if not self._silent:
                    self._silent = not self._state.wait_for(lambda: self._closed or not self._asked, _MOMENT)
                return
        self._answer()

    def pending(self) -> dict[str, Kind]:
        """What is still to be done: for each name the last task."""
        with self._state:
            return {task.name: task.kind for task in self._queue if not task.cancelled}

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

    def _add(self, task: Task, *, start: bool = True) -> None:
        with self._state:
            if self._closed:
                return
            self._queue.add(task)
            if start:
                self._start()
            self._state.notify_all()

    def _start(self) -> None:
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._work, name="colabkeep-uploader", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        give_way()  # hashing and encrypting what is sent would slow training down
        failures = 0
        while (task := self._next()) is not None:
            error = self._do(task)
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
                settled = task.needs is not None or self.full or not self._queue
            self._answer()
            if settled:  # not after each object: it may be a request
                self._looked()
            if failures:
                self._pause(failures)

    def _next(self) -> Task | None:
        """The next task, None when there will be none. A task stays in the queue until it is done."""
        while True:
            with self._state:
                while self._closed or not self._asked:
                    if self._closed:
                        return None
                    seconds = rest(self._remote, urgent=self._waited_for > 0) if self._queue else 0.0
                    task = self._queue.next() if seconds <= 0.0 else None
                    if task is not None:
                        return task
                    self._state.notify_all()
                    self._state.wait(min(seconds, _NAP) if seconds > 0.0 else None)
            self._answer()

    def _do(self, task: Task) -> Exception | None:
        """Do the task, unless it becomes unwanted on the way. Returns why it has to be tried again, if it does."""
        try:
            if task.kind == "delete":
                self._delete(task.name)
            elif task.needs is None or not self._index.give_up_whole(task.name, task.needs):
                with self.turn:
                    self._copy(task)
        except Exception as error:  # noqa: BLE001  # shown, and tried again: a thread has no caller
            self._doubtful = True
            return error
        self.silence = None
        return None

    def _delete(self, name: str) -> None:
        doubtful, self._doubtful = self._doubtful, False
        try:
            if not self._may_delete(name, doubtful):
                self._index.spare(name)
                return
            with self.turn:
                self._remote.delete(name)
        except StoreError as error:
            if not _is_final(error):
                raise
            self._index.refuse(name, error.problem)  # it takes room, and that is all: no copy waits for it
        else:
            self._index.deleted(name)

    def _copy(self, task: Task) -> None:
        unwanted = partial(self._unwanted, task)
        source = _LocalObject(self._local, task, unwanted)
        began = self._monotonic()
        try:
            receipt = _put(self._remote, task.name, source)
        except Exception:
            if source.unfit is None or unwanted():
                raise
            self._index.give_up(task.name, source.unfit, vanished=source.vanished)
        else:
            self._meter.add(source.read, self._monotonic() - began)
            if not task.cancelled:
                self._index.arrived(receipt)

    def _answer(self) -> None:
        """Ask what was to be asked."""
        with self._state:
            asked = list(self._asked.values())
        try:
            for receipt in asked:
                with self.turn:
                    answer = self._remote.confirm(receipt)
                self._index.learn(answer)
        except StoreError as error:
            self.silence = error.problem  # whoever wants to know asks again
        else:
            self.silence = None if asked else self.silence
        finally:
            with self._state:
                for receipt in asked:
                    self._asked.pop(receipt.name, None)
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
                    lambda: self._hurry or self._closed or self._deletions() > deletions or self._asked,
                    end - time.monotonic(),
                )
                if self._closed or not self._asked:
                    self._hurry = False
                    return
            self._answer()

    def _deletions(self) -> int:
        return sum(task.kind == "delete" for task in self._queue)


def _is_final(error: Exception) -> TypeGuard[StoreError]:
    return isinstance(error, StoreError) and not error.retryable
