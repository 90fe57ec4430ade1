"""One thing at a time in the store behind: a copy, a deletion, a question. Knows what is there and what never can."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterator

from colabkeep.stores._bandwidth import Meter
from colabkeep.stores._queue import Task, blobs_of
from colabkeep.stores.base import Receipt, Store, remade, rest
from colabkeep.vocabulary.errors import CheckpointDamaged, NameTaken, ObjectNotFound, StoreError

__all__ = ["Carrier"]

_CHUNK = 2**20


class Carrier:
    """Used by the copier's thread, and asked by all. `turn` is held while the store behind is being changed or asked,
    for its promise is to one writer."""

    def __init__(self, front: Store, behind: Store, *, turn: threading.Lock, monotonic: Callable[[], float]) -> None:
        self.may_delete: Callable[[str, bool], bool] | None = None  # as `Known.may_delete`; None: always
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
    """The copier was closed, or the object is not wanted any more."""
