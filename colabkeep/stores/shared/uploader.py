"""The uploader: one copy, deletion or question at a time in the remote store, and the thread that brings it up to
the local one.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeAlias, TypeGuard

from colabkeep.core.errors import CheckpointDamaged, ColabKeepError, NameTaken, ObjectNotFound, StoreError, StoreFull
from colabkeep.core.system import give_way
from colabkeep.stores.base import Receipt, Store, remade, rest
from colabkeep.stores.shared.upload_queue import Kind, Queue, Task, blobs_of

__all__ = [
    "Meter",
    "Pauses",
    "UploadThread",
    "Uploader",
]

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


class Uploader:
    """Used by the upload thread, and asked by all. `turn` is held while the store behind is being changed or asked,
    for its promise is to one writer."""

    def __init__(self, front: Store, behind: Store, *, turn: threading.Lock, monotonic: Callable[[], float]) -> None:
        self.may_delete: Callable[[str, bool], bool] | None = None  # as `RemoteIndex.may_delete`; None: always
        self.silence: str | None = None  # why the last questions were not answered
        self._doubtful = False  # has anything failed since the run was last seen to be ours?
        self._front = front
        self._behind = behind
        self._turn = turn
        self._monotonic = monotonic
        self._guard = threading.Lock()  # of what follows
        self._arrived: dict[str, Receipt] = {}
        self._arrivals: dict[str, float] = {}  # when
        self._asked: dict[str, Receipt] = {}  # to be confirmed between two objects
        self._stuck: dict[str, str] = {}
        self._vanished: set[str] = set()  # of those, what went with the folder in front, and what needs it
        self._refused: dict[str, str] = {}
        self._meter = Meter()

    @property
    def bytes_per_second(self) -> float | None:
        """As measured lately; None as long as nothing was copied."""
        return self._meter.bytes_per_second

    @property
    def stuck(self) -> dict[str, str]:
        """What can never be copied, and why. What went with the whole folder in front, which is told once, is none
        of it."""
        with self._guard:
            return {name: why for name, why in self._stuck.items() if name not in self._vanished}

    def arrived(self, name: str) -> Receipt | None:
        """The receipt of an object that was brought behind, or asked about."""
        with self._guard:
            return self._arrived.get(name)

    def sizes(self) -> dict[str, int]:
        """The bytes of each object that was brought behind."""
        with self._guard:
            return {name: self._arrived[name].size for name in self._arrivals}

    def arrivals(self) -> dict[str, float]:
        """When each object was brought behind, in seconds of `monotonic`."""
        with self._guard:
            return dict(self._arrivals)

    @property
    def refused(self) -> dict[str, str]:
        """What the store behind will not delete, and why. It is not asked again."""
        with self._guard:
            return dict(self._refused)

    def refuse(self, name: str, why: str) -> None:
        """It will not be deleted behind."""
        with self._guard:
            self._refused[name] = why

    def forget(self, name: str) -> None:
        """It is to be deleted."""
        with self._guard:
            self._forget(name)
            self._unstick(name)

    def lose(self, name: str) -> Receipt | None:
        """It is not behind any more, though nobody here deleted it. Returns what was known of it."""
        with self._guard:
            return self._forget(name)

    @property
    def is_asked(self) -> bool:
        """Is there a question that has no answer yet?"""
        with self._guard:
            return bool(self._asked)

    def ask(self, receipt: Receipt) -> None:
        """Ask the store behind about it, between two objects: a long queue must not hide what has been confirmed."""
        with self._guard:
            self._arrived.setdefault(receipt.name, receipt)
            self._asked[receipt.name] = receipt

    def answer(self) -> None:
        """Ask what was to be asked."""
        with self._guard:
            asked = list(self._asked.values())
        try:
            for receipt in asked:
                with self._turn:
                    answer = self._behind.confirm(receipt)
                with self._guard:
                    if receipt.name in self._asked and receipt.name in self._arrived:  # else it is gone meanwhile
                        self._arrived[receipt.name] = answer
        except StoreError as error:
            self.silence = error.problem  # whoever wants to know asks again
        else:
            self.silence = None if asked else self.silence
        finally:
            with self._guard:
                for receipt in asked:
                    self._asked.pop(receipt.name, None)

    def rest(self, *, urgent: bool) -> float:
        """As `colabkeep.stores.base.rest` says, of the store behind."""
        return rest(self._behind, urgent=urgent)

    def do(self, task: Task, unwanted: Callable[[], bool]) -> Exception | None:
        """Do the task, unless it becomes `unwanted` on the way. Returns why it has to be tried again, if it does."""
        try:
            if task.kind == "delete":
                self._delete(task.name)
            else:
                with self._turn:
                    self._copy(task, unwanted)
        except Exception as error:  # noqa: BLE001  # shown, and tried again: a thread has no caller
            self._doubtful = True
            return error
        self.silence = None
        return None

    def _delete(self, name: str) -> None:
        """Unless a newer session has the run, which may need it: this machine may have been away for hours."""
        allowed = self.may_delete is None or self.may_delete(name, self._doubtful)
        self._doubtful = False
        if allowed:
            with self._turn:
                self._behind.delete(name)

    def _unstick(self, name: str) -> None:
        self._stuck.pop(name, None)
        self._vanished.discard(name)

    def _forget(self, name: str) -> Receipt | None:
        self._arrivals.pop(name, None)
        self._asked.pop(name, None)
        return self._arrived.pop(name, None)

    def blobs_of(self, name: str) -> frozenset[str] | None:
        """What the manifest of that name in front names; None if that cannot be read."""
        try:
            with self._front.get(name) as reader:
                return blobs_of(name, reader.read())
        except StoreError:
            return None  # the copy of the manifest itself meets the same error, and tells it

    def _copy(self, task: Task, unwanted: Callable[[], bool]) -> None:
        if task.is_manifest and self._incomplete(task):
            return
        source = _FrontObject(self._front, task.receipt, unwanted)
        began = self._monotonic()
        try:
            receipt = self._put(task.name, source)
        except Exception:
            if source.unfit is None or unwanted():
                raise
            with self._guard:
                self._stuck[task.name] = source.unfit
                self._vanished |= {task.name} if source.vanished else set()
        else:
            self._meter.add(source.read, self._monotonic() - began)
            with self._guard:
                if not task.cancelled:
                    self._arrived[task.name] = receipt
                    self._arrivals[task.name] = self._monotonic()
                    self._refused.pop(task.name, None)  # its name is in use again
                    self._unstick(task.name)  # put again

    def _incomplete(self, manifest: Task) -> bool:
        """Can one of its blobs never be copied? Then the manifest stays away too: behind are whole checkpoints."""
        needs = self.blobs_of(manifest.name) or frozenset()
        with self._guard:
            lost = sorted(needs & self._stuck.keys())
            if lost:
                self._stuck[manifest.name] = f"needs {lost[0]}, which {self._stuck[lost[0]]}"
                self._vanished |= {manifest.name} if lost[0] in self._vanished else set()
        return bool(lost)

    def _put(self, name: str, source: _FrontObject) -> Receipt:
        try:
            return self._behind.put(name, source)
        except NameTaken:
            # An earlier attempt may have got there without being able to say so.
            there_already = Receipt(name=name, size=source.size, sha256=source.sha256, rung="sent")
            with contextlib.suppress(StoreError):  # it cannot say; the bytes can
                if (answer := self._behind.confirm(there_already)).rung == "confirmed":
                    return answer  # the digest was stated: no need to fetch gigabytes for it
            with self._behind.get(name) as there:
                digest = hashlib.sha256()
                while data := there.read(_CHUNK):
                    digest.update(data)
            if digest.hexdigest() != source.sha256:
                source.unfit = "is there already, with other bytes"
                raise
            return there_already


class _FrontObject:
    """An object in front as a source. It is hashed on the way, so that damage is never passed on.

    `unfit` says, once it is known, why it can never be copied; `vanished`: it went with the whole folder.
    `read` counts the bytes given.
    """

    def __init__(self, front: Store, receipt: Receipt, unwanted: Callable[[], bool]) -> None:
        self._front = front
        self._receipt = receipt
        self._unwanted = unwanted
        self._sha256 = receipt.sha256  # empty for an object of an earlier session
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
            reader = self._front.get(name)
        except ObjectNotFound:
            self.unfit, self.vanished = "vanished before it was copied", remade(self._front) > 0
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
                problem=f"{name!r} in {self._front.url} is not what was written.",
                remedy="Nothing needs to be done: the next checkpoint is written anew.",
            )
        self._sha256 = digest.hexdigest()


class _Stopped(Exception):
    """The upload thread was closed, or the object is not wanted any more."""


# What comes next is decided in `upload_queue`; how it is done is `Uploader`'s business.


_STOP_SECONDS = 3.0
_HURRY = 15.0  # seconds between two attempts for one who waits: they come on top of those that spare the service
_NAP = 5.0  # seconds; how long to rest is asked again then
_MOMENT = 0.5  # seconds; a question may be waited for so long, by who must not wait for more than one
_GIVEN_UP = 3  # failures in a row, after which a checkpoint that was begun is no longer preferred to a newer one

Pauses: TypeAlias = tuple[float, float]
"""The first and the longest wait between two attempts, in seconds. They carry no randomness, which would be drawn
from the generator that belongs to the training."""


class UploadThread:
    """One daemon thread, started by the first task that is not held. All that changes is guarded by `_state`.

    `looked` is called by this thread when a checkpoint has arrived, the queue is empty, or there is no room.
    """

    def __init__(self, uploader: Uploader, *, pauses: Pauses, looked: Callable[[], None]) -> None:
        self._uploader = uploader
        self._pauses = pauses
        self._looked = looked
        self._state = threading.Condition()
        self._thread: threading.Thread | None = None
        self._queue = Queue(uploader.blobs_of)
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
        if name not in self._uploader.refused:
            self._add(Task("delete", Receipt(name=name, size=0, sha256="", rung="unknown")))
        self._uploader.forget(name)  # last: a copy that was just finished does not count any more either

    def found(self, names: Iterable[str], gone: Iterable[str]) -> None:
        """These are behind, and what is `gone` is not any more."""
        with self._state:
            self._queue.found(names, gone)

    def ask(self, receipt: Receipt) -> None:
        """Have the store behind asked about an object, and wait a moment for the answer; not after a question that
        was kept waiting, by that store or by what is on the wire."""
        with self._state:
            self._uploader.ask(receipt)
            self._state.notify_all()
            if not self._silent:
                self._silent = not self._state.wait_for(lambda: self._closed or not self._uploader.is_asked, _MOMENT)

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
        refused: dict[str, Kind] = dict.fromkeys(self._uploader.refused, "delete")
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
            error = self._uploader.do(task, partial(self._unwanted, task))
            if error is not None and _is_final(error) and task.kind == "delete":
                # It takes room there, and that is all: no copy waits for it, and nobody asks for it again.
                self._uploader.refuse(task.name, error.problem)
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
                while self._closed or not self._uploader.is_asked:
                    if self._closed:
                        return None
                    rest = self._uploader.rest(urgent=self._waited_for > 0) if self._queue else 0.0
                    task = self._queue.next() if rest <= 0.0 else None
                    if task is not None:
                        return task
                    self._state.notify_all()
                    self._state.wait(min(rest, _NAP) if rest > 0.0 else None)
            self._answer()

    def _answer(self) -> None:
        self._uploader.answer()
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
                    lambda: self._hurry or self._closed or self._deletions() > deletions or self._uploader.is_asked,
                    end - time.monotonic(),
                )
                if self._closed or not self._uploader.is_asked:
                    self._hurry = False
                    return
            self._answer()

    def _deletions(self) -> int:
        return sum(task.kind == "delete" for task in self._queue)


def _is_final(error: Exception) -> TypeGuard[StoreError]:
    return isinstance(error, StoreError) and not error.retryable
