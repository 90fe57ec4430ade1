"""Two stores as one: a fast local one, and a slower remote one that outlives the machine, brought up to it behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import BinaryIO

from colabkeep.core.errors import ObjectNotFound, StoreError, StoreUnavailable
from colabkeep.stores.base import (
    DurabilityLevel,
    Entry,
    Guard,
    Lock,
    Needs,
    Receipt,
    Source,
    Store,
    StoreProperties,
    as_front,
    check_name,
    needs_of,
    run_of,
    taken,
)
from colabkeep.stores.shared.remote_index import RemoteIndex
from colabkeep.stores.shared.uploader import Pauses, Uploader

# `put` is done when the local store has the object; a thread brings it to the remote one, in the order that
# `shared.upload_queue` decides. Reading asks the local store first. The remote store may be slow, damaged or away: that
# never holds up or fails a `put` or a `delete`, is seen in `degraded`, and is made good when it comes back.
#
# Once the remote store has answered, and something was put, nobody waits for it any more: answers come from memory
# (`shared.remote_index`), and a thread looks again when a listing is asked for that is older than a minute. What others
# have done there is seen then: a newer session, or an object that is gone.
#
# "local" means that the object is local only. A remote store whose own highest level is "local" (a folder on another
# disk, a mounted share) is the remote from here, so what has arrived there is "sent".


_FRESH = 60.0  # seconds; how soon a session hears of another one that took its run over
_FRESH_AT_FIRST = 10.0  # seconds, before anything is put: opening a run lists it several times
_STOP_SECONDS = 1.0


class TieredStore(Store):
    """`front`, the local store, and `behind`, the remote one, as one store, which closes both.

    Opening lists nothing. A deletion that the remote store has not seen when the process ends is forgotten: the object
    is listed again by the next session, whose retention removes it.
    """

    def __init__(
        self,
        front: Store,
        behind: Store,
        *,
        pauses: Pauses = (1.0, 60.0),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.front = front = as_front(front)
        self.behind = behind
        self._monotonic = monotonic
        self._index = RemoteIndex(behind, monotonic)
        self._uploader = Uploader(
            (front, behind),
            self._index,
            may_delete=self._may_delete,
            looked=self._measure_room,
            pauses=pauses,
            monotonic=monotonic,
        )
        self._properties_behind: StoreProperties | None = None  # as of the last copy
        self._doubted: set[str] = set()  # names whose local copy is not what was put
        self._guards: dict[str, Guard] = {}
        self._guarded: str | None = None  # why nothing is deleted of a run any more
        self._looker: threading.Thread | None = None
        self._starting = threading.Lock()  # guards _looker and _closed
        self._closed = False

    @property
    def url(self) -> str:
        return f"{self.front.url} + {self.behind.url}"

    @property
    def sides(self) -> tuple[Store, Store]:
        """What it is made of."""
        return self.front, self.behind

    @property
    def properties(self) -> StoreProperties:
        front = self.front.properties
        # Free space is a request to some services: the uploader asks for it, so that no save waits for the answer.
        behind = self._properties_behind or self.behind.properties
        self._properties_behind = behind
        limits = [size for size in (front.max_object_bytes, behind.max_object_bytes) if size is not None]
        return StoreProperties(
            top_level=_seen_from_here(behind.top_level, behind.top_level),
            persists=behind.persists,
            locks=front.locks,
            max_object_bytes=min(limits, default=None),
            free_bytes=front.free_bytes,
            lists_lag=behind.lists_lag,
            folder=front.folder,
            behind=self._uploader.behind(behind),
        )

    @property
    def degraded(self) -> str | None:
        """What is wrong with the remote store and what that means, for a user to read; None when all is well."""
        trouble = self._uploader.trouble or self._index.trouble or self._uploader.silence
        if trouble is not None:
            return (
                f"{self.behind.url} does not work. New checkpoints are only on this machine ({self.front.url}) and "
                f"would be lost with it. Training continues, and colabkeep keeps retrying. {trouble}"
            )
        return self._unmended() or self.behind.degraded

    def put(self, name: str, source: Source) -> Receipt:
        check_name(name)
        if self._index.has(name):
            raise taken(name, self.behind.url)
        receipt = self.front.put(name, source)
        self._uploader.copy(receipt, needs_of(source))
        return receipt

    def get(self, name: str) -> BinaryIO:
        try:
            if name not in self._doubted:
                return self.front.get(name)
        except ObjectNotFound:
            waits = self._uploader.pending().get(name)
            if waits == "delete" or name in self._index.refused or (waits == "copy" and not self._index.has(name)):
                raise  # what was to be sent from a folder that somebody has emptied is nowhere
        trouble = self._uploader.trouble if self._uploader.away else self._index.trouble
        if self._uploader.running and trouble is not None:
            if self._index.trouble is not None:
                self._look_soon()  # else nobody would see that it is back before the next listing
            raise StoreUnavailable(  # asked again, it would take minutes to say so, and a save may wait for it
                problem=f"{name!r} is only in {self.behind.url}, which does not work now: {trouble}",
                remedy="Nothing needs to be done: it is read when that is back.",
            )
        try:
            return self.behind.get(name)
        except StoreError as error:
            if error.retryable:
                self._index.doubt()
            raise

    def list(self, prefix: str) -> Sequence[Entry]:
        self._see(prefix)
        return list((self._index.entries(prefix) | {entry.name: entry for entry in self._local(prefix)}).values())

    def doubt(self, name: str) -> bool:
        if name in self._doubted:
            return False
        try:
            self.behind.get(name).close()
        except StoreError:
            return False
        self._doubted.add(name)
        return True

    def delete(self, name: str) -> None:
        self.front.delete(name)
        self._uploader.delete(name)

    def confirm(self, receipt: Receipt) -> Receipt:
        arrived = self._index.receipt(receipt)
        if arrived is None:
            return replace(self.front.confirm(receipt), level="local")
        top = (self._properties_behind or self.behind.properties).top_level
        if arrived.level != top:
            self._uploader.ask(arrived)  # the last answer has to do where the next one takes its time
            arrived = self._index.receipt(receipt) or arrived
        return replace(receipt, level=_seen_from_here(arrived.level, top))

    def lock(self, name: str, holder: str) -> Lock:
        front = self.front.lock(name, holder)
        try:
            if not self.behind.properties.locks:
                return front
            return _BothLocks(front, self.behind.lock(name, holder))
        except BaseException:
            front.release()
            raise

    def sweep(self, prefix: str) -> int:
        count = self.front.sweep(prefix)
        try:
            self._see(prefix)
        except StoreError as error:
            if not error.retryable:
                raise
            raise self._unreachable(prefix, error) from error
        with self._uploader.turn:
            swept = self.behind.sweep(prefix)
        if swept:
            self._index.doubt()
        return count + swept

    def unsent(self, run: str) -> Sequence[Entry]:
        self._see(run)
        there, pending = self._index.entries(run), self._uploader.pending()
        local = [entry for entry in self._local(run) if run_of(entry.name) == run and entry.name not in pending]
        return [entry for entry in local if entry.name not in there or there[entry.name].size != entry.size]

    def send(self, entry: Entry, needs: Needs | None) -> None:
        self._uploader.copy(Receipt(name=entry.name, size=entry.size, sha256="", level="local"), needs, held=True)

    def guard(self, run: str, why_not: Guard) -> None:
        self._guards[run] = why_not

    def flush(self, timeout: float) -> bool:
        end = self._monotonic() + timeout
        if not self._uploader.wait(timeout) or self._index.stuck:
            return False
        return self.behind.flush(max(0.0, end - self._monotonic()))

    def close(self) -> None:
        """Stop copying, in the middle of an object if need be; the next session finds what is missing (`unsent`)."""
        with self._starting:
            self._closed = True
            looker = self._looker
        if looker is not None:
            looker.join(_STOP_SECONDS)
        self._uploader.close()
        self.front.close()
        self.behind.close()

    def _local(self, prefix: str) -> Sequence[Entry]:
        return [entry for entry in self.front.list(prefix) if entry.name not in self._doubted]

    def _see(self, prefix: str) -> None:
        """See that what is below the prefix was listed in the remote store, not too long ago.

        Raises:
            StoreError: it cannot be listed, and never could be.
        """
        if not self._index.knows(prefix):
            self._index.look_first(prefix)
        elif self._uploader.running:
            if not self._index.is_fresh(_FRESH):
                self._look_soon()
        elif not self._index.is_fresh(_FRESH_AT_FIRST):
            try:
                self._look()
            except StoreError as error:
                if not error.retryable:
                    raise

    def _look(self) -> None:
        """List the remote store again. What is gone there, because somebody has removed it or it never arrived, is
        brought once more, as far as this machine has it; but not of runs below the one that was listed, which others
        may train.

        Raises:
            StoreError: it does not answer; what was known is kept.
        """
        for prefix, gone in self._index.look().items():
            local = {entry.name: entry.size for entry in self._local(prefix)} if gone else {}
            for name, sha256 in gone.items():
                if name in local and not (prefix and run_of(name).startswith(f"{prefix}/")):
                    self._uploader.copy(Receipt(name=name, size=local[name], sha256=sha256, level="local"))

    def _look_soon(self) -> None:
        """On a thread of its own: a store that does not answer may take minutes to say so, and the uploader, with an
        hour of sending before it, may not look in time."""
        with self._starting:
            if not self._closed and (self._looker is None or not self._looker.is_alive()):
                self._looker = threading.Thread(target=self._look_and_tell, name="colabkeep-looker", daemon=True)
                self._looker.start()

    def _look_and_tell(self) -> None:
        try:
            self._look()
        except StoreError as error:
            self._index.trouble = error.problem
        except Exception as error:  # noqa: BLE001  # shown: a thread has no caller
            self._index.trouble = f"{type(error).__name__}: {error}"

    def _may_delete(self, name: str, doubtful: bool) -> bool:
        """This machine may have been away for hours, and somebody else may need by now what it does not."""
        why_not = self._guards.get(run_of(name))
        if why_not is None:
            return True
        if doubtful or not self._index.is_fresh(_FRESH):
            self._look()
        reason = why_not()
        self._guarded = reason or self._guarded
        return reason is None

    def _measure_room(self) -> None:
        """How much room is there now? Called by the uploader, between two objects."""
        try:
            with self._uploader.turn:
                self._properties_behind = self.behind.properties
        except StoreError as error:
            self._index.trouble = error.problem

    def _unmended(self) -> str | None:
        """What does not end when the remote store is back; always the same words, so that it is told once."""
        stuck, there = self._index.stuck, self.behind.url
        if stuck:
            name, why = next(iter(stuck.items()))
            return f"{len(stuck)} object(s) cannot be brought from {self.front.url} to {there}: {name} {why}."
        if self._guarded is not None:
            return f"{self._guarded}, so nothing of it is deleted in {there} from here any more."
        for name, why in self._index.refused.items():
            return f"Cannot delete old checkpoints in {there}, so it is filling up: {name}: {why}"
        return None

    def _unreachable(self, run: str, error: StoreError) -> StoreUnavailable:
        """To continue all the same might fork the run, so that is for the user to decide."""
        has_some = any(run_of(entry.name) == run for entry in self.front.list(run))
        own = f' Or go on from what this machine has, without it: storage="{self.front.url}".' if has_some else ""
        return StoreUnavailable(
            problem=f"{self.behind.url} does not answer, so colabkeep does not know the last step of {run!r} there, "
            f"nor whether another machine has continued the run. {error.problem}",
            remedy=f"Run this again when it can be reached.{own}",
        )


class _BothLocks(Lock):
    """The lock in front and the lock behind."""

    def __init__(self, front: Lock, behind: Lock) -> None:
        self._front = front
        self._behind = behind

    def release(self) -> None:
        """Let go of both."""
        try:
            self._behind.release()
        finally:
            self._front.release()


def _seen_from_here(level: DurabilityLevel, top: DurabilityLevel) -> DurabilityLevel:
    """A store whose own highest level is "local" is the remote from here; one that can rise higher has not sent it."""
    return "sent" if level == top == "local" else level
