"""Two stores as one: a fast one in front, and behind it a slower one that outlives the machine.

`put` is done when the front store has the object; a thread brings it behind, checkpoint by checkpoint, each with its
manifest last; where it falls behind, the newest one comes next (`_queue`). Reading asks the front store first. The
store behind may be slow, damaged or away: that never holds up or fails a `put` or a `delete`, is seen in `degraded`,
and is made good when it comes back.

"local" means that the object is in front only. A store behind whose own highest rung is "local" (a folder on
another disk, a mounted share) is the remote from here, so what has arrived there is "sent".
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import BinaryIO

from colabkeep.stores._carrier import Carrier
from colabkeep.stores._copier import Copier, Pauses
from colabkeep.stores._known import Known
from colabkeep.stores._queue import MANIFEST
from colabkeep.stores.base import (
    Behind,
    Entry,
    Lock,
    Receipt,
    Rung,
    Source,
    Store,
    StoreProperties,
    as_front,
    check_name,
    run_of,
)
from colabkeep.vocabulary.errors import CheckpointError, NameTaken, ObjectNotFound, StoreError, StoreUnavailable
from colabkeep.vocabulary.manifest import Manifest

__all__ = ["TieredStore"]


class TieredStore:
    """`front` and `behind` as one store, which closes both.

    `sweep(prefix)`, which a writer calls once it holds the lock, also adopts the run of that name: what a killed
    session left in front only is queued for copying, the newest checkpoint first. That begins with the writer's first
    put, so that its lease is behind before anything else. Opening lists nothing. A deletion that the store
    behind has not seen when the process ends is forgotten: the object is listed again by the next session,
    whose retention removes it.
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
        self._turn = threading.Lock()
        self._carrier = Carrier(front, behind, turn=self._turn, monotonic=monotonic)
        self._copier = Copier(self._carrier, pauses=pauses, looked=self._look_behind)
        self._properties_behind: StoreProperties | None = None  # as of the last copy
        self._known = Known(behind, self._copier, self._carrier, front_sizes=self._front_sizes, monotonic=monotonic)
        self._carrier.may_delete = self._known.may_delete
        self._doubted: set[str] = set()  # names whose copy in front is not what was put

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
        # Free space is a request to some services: the copier asks for it, so that no save waits for the answer.
        behind = self._properties_behind or self.behind.properties
        self._properties_behind = behind
        limits = [size for size in (front.max_object_bytes, behind.max_object_bytes) if size is not None]
        return StoreProperties(
            top_rung=_seen_from_here(behind.top_rung, behind.top_rung),
            persists=behind.persists,
            locks=front.locks,
            max_object_bytes=min(limits, default=None),
            free_bytes=front.free_bytes,
            lists_lag=behind.lists_lag,
            folder=front.folder,
            behind=Behind(
                url=self.behind.url,
                free_bytes=behind.free_bytes,
                full=self._copier.full,
                refuses=self._copier.refuses,
                waiting_bytes=self._copier.waiting_bytes,
                bytes_per_second=self._carrier.bytes_per_second,
                sending=self._copier.sending,
                account=behind.account,
                budget=behind.budget,
            ),
        )

    def _top_behind(self) -> Rung:
        return (self._properties_behind or self.behind.properties).top_rung

    @property
    def degraded(self) -> str | None:
        """What is wrong with the store behind and what that means, for a user to read; None when all is well."""
        trouble = self._copier.trouble or self._known.trouble or self._carrier.silence
        if trouble is not None:
            return (
                f"{self.behind.url} is out of order. New checkpoints are on this machine only ({self.front.url}) and "
                f"would be lost with it; training goes on, and the copying is tried again and again. {trouble}"
            )
        stays = _unmended(self._carrier, self._known, self.front.url, self.behind.url)
        return stays or self.behind.degraded

    def put(self, name: str, source: Source) -> Receipt:
        check_name(name)
        if self._known.has(name):
            raise NameTaken(
                problem=f"{name!r} exists already in {self.behind.url}; its bytes are untouched.",
                remedy="Names are written once: choose another name, or delete the old object first.",
            )
        receipt = self.front.put(name, source)
        self._known.put(name)
        self._copier.copy(receipt)
        return receipt

    def get(self, name: str) -> BinaryIO:
        try:
            if name not in self._doubted:
                return self.front.get(name)
        except ObjectNotFound:
            waits = self._copier.pending().get(name)
            if waits == "delete" or (waits == "copy" and not self._known.has(name)):
                raise  # what was to be sent from a folder that somebody has emptied is nowhere
        trouble = self._copier.trouble if self._copier.away else self._known.trouble
        if self._copier.running and trouble is not None:
            raise StoreUnavailable(  # asked again, it would take minutes to say so, and a save may wait for it
                problem=f"{name!r} is in {self.behind.url} only, which is out of order: {trouble}",
                remedy="Nothing needs to be done: it is read when that is back.",
            )
        try:
            return self.behind.get(name)
        except StoreError as error:
            if error.retryable:
                self._known.doubt()
            raise

    def list(self, prefix: str) -> Sequence[Entry]:
        known = {entry.name: entry for entry in self._known.list(prefix)}
        return list((known | {entry.name: entry for entry in self._in_front(prefix)}).values())

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
        self._known.forget(name)
        self._copier.delete(name)

    def confirm(self, receipt: Receipt) -> Receipt:
        arrived = self._carrier.arrived(receipt.name) or self._known.receipt(receipt)
        if arrived is None:
            return replace(self.front.confirm(receipt), rung="local")
        top = self._top_behind()
        if arrived.rung != top:
            self._ask(arrived)  # the last answer has to do where the next one takes its time
            arrived = self._carrier.arrived(receipt.name) or arrived
        return replace(receipt, rung=_seen_from_here(arrived.rung, top))

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
        self._reach(prefix)
        with self._turn:
            swept = self.behind.sweep(prefix)
        if swept:
            self._known.doubt()
        self.adopt(prefix)
        return count + swept

    def adopt(self, prefix: str) -> None:
        """Queue for copying what the run `prefix` has in front and not behind, checkpoints in the order of their age.

        Raises:
            StoreError: one of the two cannot be listed.
        """
        behind = {entry.name: entry.size for entry in self._known.list(prefix)}
        pending = self._copier.pending()
        here = [entry for entry in self._in_front(prefix) if prefix in ("", run_of(entry.name))]
        missing = [entry for entry in here if entry.name not in pending and behind.get(entry.name) != entry.size]
        missing.sort(key=lambda e: (MANIFEST.fullmatch(e.name) is not None, _age(self.front, e.name), e.name))
        self._copier.hold([Receipt(name=e.name, size=e.size, sha256="", rung="local") for e in missing])

    def flush(self, timeout: float) -> bool:
        end = self._monotonic() + timeout
        if not self._copier.wait(timeout) or self._carrier.stuck:
            return False
        return self.behind.flush(max(0.0, end - self._monotonic()))

    def close(self) -> None:
        """Stop copying, in the middle of an object if need be; the next session's `sweep` finds what is missing."""
        self._known.close()
        self._copier.close()
        self.front.close()
        self.behind.close()

    def _reach(self, prefix: str) -> None:
        """See what is behind, for the first time; this waits for half a minute at most."""
        try:
            self._known.list(prefix)
        except StoreError as error:
            if not error.retryable:
                raise
            raise _unreachable(self.front, self.behind, prefix, error) from error

    def _ask(self, arrived: Receipt) -> None:
        if self._copier.running:
            self._copier.ask(arrived)
        else:  # nothing is trained here: who asks may wait for the answer
            self._carrier.ask(arrived)
            self._carrier.answer()

    def _in_front(self, prefix: str) -> Sequence[Entry]:
        return [entry for entry in self.front.list(prefix) if entry.name not in self._doubted]

    def _front_sizes(self, prefix: str) -> dict[str, int]:
        return {entry.name: entry.size for entry in self._in_front(prefix)}

    def _look_behind(self) -> None:
        """How much room is there now? Called by the copier, between two objects."""
        try:
            with self._turn:
                self._properties_behind = self.behind.properties
        except StoreError as error:
            self._known.trouble = error.problem


class _BothLocks:
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

    def __enter__(self) -> _BothLocks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _seen_from_here(rung: Rung, top: Rung) -> Rung:
    """A store whose own highest rung is "local" is the remote from here; one that can rise higher has not sent it."""
    return "sent" if rung == top == "local" else rung


def _unmended(carrier: Carrier, known: Known, here: str, there: str) -> str | None:
    """What does not end when the store behind is back; always the same words, so that it is told once."""
    stuck, refused = carrier.stuck, carrier.refused
    if stuck:
        name, why = next(iter(stuck.items()))
        return f"{len(stuck)} object(s) cannot be brought from {here} to {there}: {name} {why}."
    for run, session in known.overtaken.items():
        return f"Session {session} has taken over {run!r}, so nothing of it is deleted in {there} from here any more."
    for name, why in refused.items():
        return f"What is not needed any more cannot be deleted in {there}, which fills up: {name}: {why}"
    return None


def _age(store: Store, name: str) -> tuple[int, str, int, int]:
    """Sorts manifests from the oldest to the newest; what is none of ours counts as older."""
    try:
        if MANIFEST.fullmatch(name):
            with store.get(name) as reader:
                return Manifest.from_bytes(reader.read(), id=name.rpartition("/")[2].removesuffix(".json")).order
    except (CheckpointError, StoreError):
        pass  # it is found and told where it matters: when it is copied, and on resume
    return 0, "", 0, 0


def _unreachable(front: Store, behind: Store, run: str, error: StoreError) -> StoreUnavailable:
    """To go on all the same might fork the run, so that is for the user to decide."""
    has_some = any(MANIFEST.fullmatch(entry.name) for entry in front.list(run))
    own = f' Or go on from what this machine has, without it: storage="{front.url}".' if has_some else ""
    return StoreUnavailable(
        problem=f"{behind.url} does not answer, so it is not known how far {run!r} came there, nor whether another "
        f"machine has gone on with it. {error.problem}",
        remedy=f"Run this again when it can be reached.{own}",
    )
