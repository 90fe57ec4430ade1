"""Two stores as one: a fast local one, and a slower remote one that outlives the machine, with an index of what the
remote has.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import BinaryIO

from colabkeep.core.errors import CheckpointError, NameTaken, ObjectNotFound, StoreError, StoreUnavailable
from colabkeep.core.manifest import Manifest
from colabkeep.stores.base import (
    Behind,
    DurabilityLevel,
    Entry,
    Lock,
    Receipt,
    Source,
    Store,
    StoreProperties,
    as_front,
    check_name,
    run_of,
    sign_in,
)
from colabkeep.stores.shared.retry import within
from colabkeep.stores.shared.upload_queue import MANIFEST
from colabkeep.stores.shared.uploader import Pauses, Uploader, UploadThread

__all__ = [
    "RemoteIndex",
    "TieredStore",
]

# Once it has answered, and something was put, nobody waits for it any more: answers come from memory, and a thread of
# its own looks again when a listing is asked for that is older than a minute. What others have done there is seen then:
# a newer session, or an object that is gone.


_LEASE = re.compile(r"(.+)/lease/(\d{6,12})-([0-9a-f]{8})\.json")
_FRESH = 60.0  # seconds; how soon a session hears of another one that took its run over
_FRESH_AT_FIRST = 10.0  # seconds, before anything is put: opening a run lists it several times
_LAG = 120.0  # seconds that a listing may be behind what was put or deleted; the service gives no figure
_FIRST = 25.0  # seconds for the first answer: one that takes longer is as good as none to who waits for a training
_STOP_SECONDS = 1.0

Leader = tuple[int, str]
"""Fencing number and session."""


class RemoteIndex:
    """`front_sizes` tells, for a prefix, what could be sent again: name → size in bytes."""

    def __init__(
        self,
        behind: Store,
        upload_thread: UploadThread,
        uploader: Uploader,
        *,
        front_sizes: Callable[[str], Mapping[str, int]],
        monotonic: Callable[[], float],
    ) -> None:
        self._behind = behind
        self._upload_thread = upload_thread
        self._uploader = uploader
        self._front_sizes = front_sizes
        self._monotonic = monotonic
        self._looking = threading.Lock()  # one look at a time
        self._guard = threading.Lock()  # of what follows
        self._entries: dict[str, Entry] = {}
        self._shown: dict[str, float] = {}  # when a listing showed it last
        self._forgotten: dict[str, float] = {}  # when it was given to be deleted
        self._prefixes: set[str] = set()
        self._leaders: dict[str, Leader] = {}  # of each run, as this process knew it when it began to write
        self._written: set[str] = set()  # the runs that this process writes: what becomes of others is not told
        self._looked_at = -math.inf
        self._looker: threading.Thread | None = None
        self._closed = False
        self.overtaken: dict[str, str] = {}  # run → which newer session has it
        self.trouble: str | None = None

    def list(self, prefix: str) -> Sequence[Entry]:
        """The objects behind, without those that are to be deleted there.

        Raises:
            StoreError: it cannot be listed, and never could be.
        """
        if not self._covers(prefix):
            self._first_look(prefix)
        elif self._upload_thread.running:
            if not self._is_fresh(_FRESH):
                self._look_soon()
        elif not self._is_fresh(_FRESH_AT_FIRST):
            try:
                self.look()
            except StoreError as error:
                if not error.retryable:
                    raise
        arrived = self._uploader.sizes()
        with self._guard:
            arrived = {name: size for name, size in arrived.items() if name not in self._forgotten}
            known = {name: Entry(name=name, size=size) for name, size in arrived.items()} | self._entries
            return [entry for entry in known.values() if _below(entry.name, prefix)]

    def has(self, name: str) -> bool:
        """Is it believed to be there?"""
        return name in self._entries or name in self._uploader.arrivals()

    def receipt(self, receipt: Receipt) -> Receipt | None:
        """The receipt as of an object behind, if it is believed to be there and nothing speaks against it."""
        entry = self._entries.get(receipt.name)
        if entry is None or entry.size != receipt.size or receipt.name in self._uploader.stuck:
            return None
        if receipt.name in self._upload_thread.pending():
            return None
        return Receipt(name=receipt.name, size=receipt.size, sha256=receipt.sha256, rung="sent")

    def put(self, name: str) -> None:
        """This process has put it in front: a lease of its own is not taken for somebody else's."""
        with self._guard:
            self._forgotten.pop(name, None)
            self._written.add(run_of(name))
            lease = _LEASE.fullmatch(name)
            if lease is not None:
                self._leaders[lease[1]] = max(self._leaders.get(lease[1], (0, "")), _leader(lease))

    def forget(self, name: str) -> None:
        """It is to be deleted."""
        with self._guard:
            self._forgotten[name] = self._monotonic()
            self._entries.pop(name, None)

    def doubt(self) -> None:
        """What was seen last may not be so any more: look before it is relied on."""
        self._looked_at = -math.inf

    def may_delete(self, name: str, doubtful: bool) -> bool:
        """Is the run still this process's, as of a look that is no older than a minute, or, where it is `doubtful`
        whether the store was there meanwhile, of one that is made now?

        Raises:
            StoreError: it could not be seen.
        """
        if doubtful or not self._is_fresh(_FRESH):
            self.look()
        return run_of(name) not in self.overtaken

    def look(self) -> None:
        """List all that was ever listed again.

        Raises:
            StoreError: it does not answer; what was known is kept.
        """
        with self._looking:
            self._look(_outermost(self._prefixes))

    def close(self) -> None:
        """Look no more."""
        with self._guard:
            self._closed = True
            looker = self._looker
        if looker is not None:
            looker.join(_STOP_SECONDS)

    def _covers(self, prefix: str) -> bool:
        with self._guard:
            return any(prefix == known or _below(prefix, known) for known in self._prefixes)

    def _is_fresh(self, seconds: float) -> bool:
        return self._monotonic() - self._looked_at <= seconds

    def _first_look(self, prefix: str) -> None:
        def look() -> None:
            with self._looking:
                self._look([prefix])

        sign_in(self._behind)
        try:
            within(_FIRST, look)
        except TimeoutError:
            problem = f"{self._behind.url} has not answered for {_FIRST:.0f} seconds."
            raise StoreUnavailable(problem=problem, remedy="See that it can be reached, and run again.") from None

    def _look_soon(self) -> None:
        """On a thread of its own: a store that does not answer may take minutes to say so, and the upload thread,
        with an hour of sending before it, may not look in time."""
        with self._guard:
            if self._closed or (self._looker is not None and self._looker.is_alive()):
                return
            self._looker = threading.Thread(target=self._look_and_tell, name="colabkeep-looker", daemon=True)
            self._looker.start()

    def _look_and_tell(self) -> None:
        try:
            self.look()
        except StoreError as error:
            self.trouble = error.problem
        except Exception as error:  # noqa: BLE001  # shown: a thread has no caller
            self.trouble = f"{type(error).__name__}: {error}"

    def _look(self, prefixes: Iterable[str]) -> None:
        began = self._monotonic()
        try:
            for prefix in prefixes:
                self._learn(prefix, tuple(self._behind.list(prefix)), began)
        except StoreError as error:
            self.trouble = error.problem
            raise
        finally:
            self._looked_at = self._monotonic()  # a failure too: the next attempt is a minute away
        self.trouble = None

    def _learn(self, prefix: str, found: Sequence[Entry], began: float) -> None:
        arrived = {name: at for name, at in self._uploader.arrivals().items() if _below(name, prefix)}
        pending = self._upload_thread.pending()
        with self._guard:
            if self._closed:
                return
            self._forgotten = {name: at for name, at in self._forgotten.items() if began - at <= _LAG}
            seen = {entry.name: entry for entry in found}
            believed = {name: self._shown.get(name, -math.inf) for name in self._entries if _below(name, prefix)}
            for name, at in arrived.items():
                believed[name] = max(at, believed.get(name, -math.inf))
            missing = {name for name in believed.keys() - seen.keys() if pending.get(name) is None}
            gone = {name for name in missing if began - believed[name] > _LAG}
            late = {name: self._entries[name] for name in (missing - gone) & self._entries.keys()}
            shown = {
                name: entry
                for name, entry in seen.items()
                if pending.get(name) != "delete" and name not in self._forgotten
            }
            self._entries = {n: e for n, e in self._entries.items() if not _below(n, prefix)} | late | shown
            self._shown = {n: at for n, at in self._shown.items() if n in self._entries} | dict.fromkeys(shown, began)
            self._prefixes.add(prefix)
            self._see_leases(seen)
        self._upload_thread.found(seen.keys() | arrived.keys(), gone)
        if gone:
            self._send_again(gone, prefix)

    def _see_leases(self, names: Iterable[str]) -> None:
        highest: dict[str, Leader] = {}
        for lease in filter(None, map(_LEASE.fullmatch, names)):
            highest[lease[1]] = max(highest.get(lease[1], (0, "")), _leader(lease))
        for run, leader in highest.items():
            if leader > self._leaders.setdefault(run, leader) and run in self._written:
                self.overtaken[run] = leader[1]

    def _send_again(self, gone: set[str], prefix: str) -> None:
        """Somebody else has removed them, or they never got there: what this machine has is brought once more."""
        here = self._front_sizes(prefix)
        for name in sorted(name for name in gone if not _below(run_of(name), prefix) or not prefix):
            receipt = self._uploader.lose(name)
            if name in here:
                sha256 = "" if receipt is None else receipt.sha256
                self._upload_thread.copy(Receipt(name=name, size=here[name], sha256=sha256, rung="local"))


def _outermost(prefixes: Iterable[str]) -> list[str]:
    found = set(prefixes)
    return sorted(prefix for prefix in found if not any(_below(prefix, other) and prefix != other for other in found))


def _leader(lease: re.Match[str]) -> Leader:
    return int(lease[2]), lease[3]


def _below(name: str, prefix: str) -> bool:
    return not prefix or name.startswith(f"{prefix}/")


# `put` is done when the front store has the object; a thread brings it behind, checkpoint by checkpoint, each with its
# manifest last; where it falls behind, the newest one comes next (`shared.upload_queue`). Reading asks the front store
# first. The store behind may be slow, damaged or away: that never holds up or fails a `put` or a `delete`, is seen in
# `degraded`, and is made good when it comes back.
#
# "local" means that the object is in front only. A store behind whose own highest rung is "local" (a folder on another
# disk, a mounted share) is the remote from here, so what has arrived there is "sent".


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
        self._uploader = Uploader(front, behind, turn=self._turn, monotonic=monotonic)
        self._upload_thread = UploadThread(self._uploader, pauses=pauses, looked=self._look_behind)
        self._properties_behind: StoreProperties | None = None  # as of the last copy
        self._known = RemoteIndex(
            behind, self._upload_thread, self._uploader, front_sizes=self._front_sizes, monotonic=monotonic
        )
        self._uploader.may_delete = self._known.may_delete
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
        # Free space is a request to some services: the upload thread asks for it, so that no save waits for the answer.
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
                full=self._upload_thread.full,
                refuses=self._upload_thread.refuses,
                waiting_bytes=self._upload_thread.waiting_bytes,
                bytes_per_second=self._uploader.bytes_per_second,
                sending=self._upload_thread.sending,
                account=behind.account,
                budget=behind.budget,
            ),
        )

    def _top_behind(self) -> DurabilityLevel:
        return (self._properties_behind or self.behind.properties).top_rung

    @property
    def degraded(self) -> str | None:
        """What is wrong with the store behind and what that means, for a user to read; None when all is well."""
        trouble = self._upload_thread.trouble or self._known.trouble or self._uploader.silence
        if trouble is not None:
            return (
                f"{self.behind.url} is out of order. New checkpoints are on this machine only ({self.front.url}) and "
                f"would be lost with it; training goes on, and the copying is tried again and again. {trouble}"
            )
        stays = _unmended(self._uploader, self._known, self.front.url, self.behind.url)
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
        self._upload_thread.copy(receipt)
        return receipt

    def get(self, name: str) -> BinaryIO:
        try:
            if name not in self._doubted:
                return self.front.get(name)
        except ObjectNotFound:
            waits = self._upload_thread.pending().get(name)
            if waits == "delete" or (waits == "copy" and not self._known.has(name)):
                raise  # what was to be sent from a folder that somebody has emptied is nowhere
        trouble = self._upload_thread.trouble if self._upload_thread.away else self._known.trouble
        if self._upload_thread.running and trouble is not None:
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
        self._upload_thread.delete(name)

    def confirm(self, receipt: Receipt) -> Receipt:
        arrived = self._uploader.arrived(receipt.name) or self._known.receipt(receipt)
        if arrived is None:
            return replace(self.front.confirm(receipt), rung="local")
        top = self._top_behind()
        if arrived.rung != top:
            self._ask(arrived)  # the last answer has to do where the next one takes its time
            arrived = self._uploader.arrived(receipt.name) or arrived
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
        pending = self._upload_thread.pending()
        here = [entry for entry in self._in_front(prefix) if prefix in ("", run_of(entry.name))]
        missing = [entry for entry in here if entry.name not in pending and behind.get(entry.name) != entry.size]
        missing.sort(key=lambda e: (MANIFEST.fullmatch(e.name) is not None, _age(self.front, e.name), e.name))
        self._upload_thread.hold([Receipt(name=e.name, size=e.size, sha256="", rung="local") for e in missing])

    def flush(self, timeout: float) -> bool:
        end = self._monotonic() + timeout
        if not self._upload_thread.wait(timeout) or self._uploader.stuck:
            return False
        return self.behind.flush(max(0.0, end - self._monotonic()))

    def close(self) -> None:
        """Stop copying, in the middle of an object if need be; the next session's `sweep` finds what is missing."""
        self._known.close()
        self._upload_thread.close()
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
        if self._upload_thread.running:
            self._upload_thread.ask(arrived)
        else:  # nothing is trained here: who asks may wait for the answer
            self._uploader.ask(arrived)
            self._uploader.answer()

    def _in_front(self, prefix: str) -> Sequence[Entry]:
        return [entry for entry in self.front.list(prefix) if entry.name not in self._doubted]

    def _front_sizes(self, prefix: str) -> dict[str, int]:
        return {entry.name: entry.size for entry in self._in_front(prefix)}

    def _look_behind(self) -> None:
        """How much room is there now? Called by the upload thread, between two objects."""
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


def _seen_from_here(rung: DurabilityLevel, top: DurabilityLevel) -> DurabilityLevel:
    """A store whose own highest rung is "local" is the remote from here; one that can rise higher has not sent it."""
    return "sent" if rung == top == "local" else rung


def _unmended(uploader: Uploader, known: RemoteIndex, here: str, there: str) -> str | None:
    """What does not end when the store behind is back; always the same words, so that it is told once."""
    stuck, refused = uploader.stuck, uploader.refused
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
