"""From a captured state to a committed checkpoint: the training thread hands over and goes on; one background
thread encodes, stores, commits, verifies and prunes.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from colabkeep._version import __version__
from colabkeep.checkpoint.codec import Encoded, Encoder
from colabkeep.checkpoint.compaction import Folding
from colabkeep.checkpoint.durability import ForeignBlobs, Ledger, note_commit
from colabkeep.checkpoint.journal import Journal
from colabkeep.checkpoint.repository import Lease, Repository
from colabkeep.checkpoint.retention import Pruner, QuotaPlanner, RetentionPolicy
from colabkeep.core.errors import (
    CheckpointDamaged,
    CheckpointError,
    ColabKeepError,
    MemoryFull,
    NotStorable,
    RunTakenOver,
    SaveFailed,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from colabkeep.core.events import (
    PRUNING,
    CatchingUp,
    Event,
    Noted,
    Pruned,
    SaveCommitted,
    SaveFailing,
    SaveSkipped,
    SaveStarted,
    StoreDegraded,
)
from colabkeep.core.manifest import BlobRef, Manifest, Progress, Proof
from colabkeep.core.state import Capture, Stale, Tagged, referred
from colabkeep.core.system import Clock, give_way
from colabkeep.stores.base import Store, remade

_LOOK = 0.2  # seconds between two looks up from waiting: a stop that was asked for is to be answered soon
_STALL = 300.0  # seconds; a disk that lives moves a piece, or ends a sync of some gigabytes at 50 MB/s, in less


class Writer:
    """Runs submitted jobs, one in flight. `chore` is called every `pause` seconds while idle, as long
    as it returns True. Jobs and chores report their own failures; they must not raise.

    Nobody waits for a job in which nothing has moved for `stall` seconds: a disk that hangs would hold the training
    for ever. One that gets on is waited for, however long that takes.
    """

    def __init__(self, chore: Callable[[], bool], pause: float = 1.0, stall: float = _STALL) -> None:
        self._chore = chore
        self._pause = pause
        self._stall = stall
        self._moved_at = time.monotonic()
        self._job: Callable[[], None] | None = None
        self._changed = threading.Condition()  # guards _job, _closing and _thread
        self._closing = False
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """Is a job waiting or running?"""
        return self._job is not None

    @property
    def wanted(self) -> bool:
        """Is there something else to do than a chore?"""
        return self._job is not None or self._closing

    def start(self) -> None:
        """Begin with the chore, before there is any job."""
        with self._changed:
            if not self._closing:
                self._start()

    def submit(self, job: Callable[[], None]) -> None:
        """Run `job` soon. The caller has seen that the writer is not busy."""
        with self._changed:
            if self._job is not None or self._closing:
                raise RuntimeError("the writer is busy or closed")
            self._start()  # raises where no more threads are to be had: then nothing was submitted
            self._job = job
            self.moved()
            self._changed.notify_all()

    def moved(self) -> None:
        """The job in flight gets on: to be called by it, now and then."""
        self._moved_at = time.monotonic()

    def wait(self, timeout: float | None = None, meanwhile: Callable[[], None] = lambda: None) -> bool:
        """Wait until no job is in flight, at most `timeout` seconds, and as long as it moves. True when so.

        `meanwhile` is called now and then."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            with self._changed:
                if self._job is None:
                    return True
                left = min(end, self._moved_at + self._stall) - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(left, _LOOK))
            meanwhile()

    def close(self, meanwhile: Callable[[], None] = lambda: None) -> bool:
        """Finish the job in flight and end the thread. Calling twice is harmless. False when it hangs."""
        self.abandon()
        if self._thread is None:
            return True
        if self.wait(meanwhile=meanwhile):
            self._thread.join(self._stall)
        return not self._thread.is_alive()

    def abandon(self) -> None:
        """Take no more jobs; the thread ends with the one in flight, which nobody waits for."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _start(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="colabkeep-writer", daemon=True)
            thread.start()
            self._thread = thread

    def _run(self) -> None:
        give_way()
        more = True
        while True:
            with self._changed:
                pause = self._pause if more else None
                called = self._changed.wait_for(lambda: self._job is not None or self._closing, pause)
                job = self._job
                if job is None and self._closing:
                    return
            if job is None:
                more = self._chore() if not called else more
                continue
            try:
                job()
            finally:
                with self._changed:
                    self._job = None
                    self._changed.notify_all()
            more = True


_VANISHED = "{missing} vanished from {url}: deleted, renamed or moved. What is missing there is written again now."
_REMADE = (
    "{front} was deleted while it was in use, and has been made again. Files that had arrived in {behind} are not "
    "affected. Files that were still on their way are lost; colabkeep writes them again if the training needs them."
)
_SLICE = 15.0  # seconds between two words about what slower storage still lacks
_LOOK_UP = 1.0  # seconds between two looks up from waiting for it: a stop that was asked for is to be answered soon


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What all checkpoints of a session share. `began`: the checkpoint it came from. `heir`: that one was the run's
    newest, and every byte of it was checked: what its session was about to prune when it was killed may be pruned."""

    framework: str
    fingerprint: Mapping[str, str]
    settings: Mapping[str, str] = field(default_factory=dict)
    began: Manifest | None = None
    heir: bool = False


def size_text(size: int) -> str:
    """So many bytes, for people."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


class Named:
    """Weights of a frozen base that the newest checkpoint names by checksums, and does not hold: at first those of
    `trees`."""

    def __init__(self, trees: Mapping[str, Any]) -> None:
        self._names = {name for name, leaf in _weights(trees) if referred(leaf)}

    def look(self, trees: Mapping[str, Any]) -> Iterator[Noted]:
        """The next checkpoint. What it holds, and was only named so far, is told once."""
        stored = {name: leaf for name, leaf in _weights(trees) if name in self._names and not referred(leaf)}
        self._names -= stored.keys()
        if stored:
            hosts = [leaf.value["data"] if isinstance(leaf, Tagged) else leaf for leaf in stored.values()]
            sizes = {id(host): host.data.nbytes for host in hosts}  # tied ones are one
            size, (part, first) = size_text(sum(sizes.values())), next(iter(stored))
            base = str(trees[part]["base"]).partition("@")[0]
            yield Noted(
                text=f"{len(sizes)} weight(s) of the frozen base {base} ({size}) are stored from now on, because the "
                "training no longer has them as they were loaded: they were changed, merged, unfrozen or moved "
                f"(first: {part}.{first}). Nothing is lost; saves take more time and room."
            )


def _weights(trees: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], Any]]:
    """Those of the parts that name some, with their part and name."""
    for part, tree in trees.items():
        if isinstance(tree, dict) and "base" in tree:
            yield from (((part, name), leaf) for name, leaf in tree["weights"].items())


class Committer:
    """Turns shots into checkpoints. Lives on the writer thread, except for its constructor.

    `say` hands an event to the training thread. `proof`: what the losses prove of checkpoints, by now. `encode`: makes
    blobs of a snapshot's parts, in place of `Encoder.encode`. `named`: what of a frozen base is not to be stored.
    """

    def __init__(  # noqa: PLR0913, PLR0917  # here the parts of a session meet
        self,
        lease: Lease,
        journal: Journal,
        retention: RetentionPolicy,
        clock: Clock,
        identity: Identity,
        say: Callable[[Event], None],
        proof: Proof | None = None,
        encode: Callable[[Mapping[str, Any]], Encoded] | None = None,
        named: Named | None = None,
    ) -> None:
        self._repository: Repository = lease.repository
        self._lease = lease
        self._journal = journal
        self._clock = clock
        self._identity = identity
        self._say = say
        self._quota_planner = QuotaPlanner(retention, clock, say)
        self.ledger = Ledger(self._repository.store, self._repository.folder, clock)
        self._folding: Folding | None = None  # begins when this session has saved
        stay = ForeignBlobs(self._repository, lease.session, clock, say).stay
        self._pruner = Pruner(self._repository, self.ledger, self._quota_planner, proof or Proof(), stay)
        self.newest = None if identity.began is None else identity.began.id
        self._encode = encode or Encoder().encode
        self._named = named or Named({})
        self._noted = False  # does the run say that it has had a checkpoint?
        self._degraded: str | None = None  # as it was told last
        self._remade = remade(self._repository.store)
        self._leaving = self._saved = False  # before it has saved, only what a session inherits is its to delete
        self._untidy = identity.heir  # may there be anything to prune since the last pruning that succeeded?

    def commit(
        self,
        capture: Capture,
        progress: Progress,
        reason: str,
        metrics: Mapping[str, float],
        moved: Callable[[], None] = lambda: None,
    ) -> Manifest:
        """Make a checkpoint of a captured state. When it raises, the run is as it was before. `moved` is called as long
        as it gets on.

        Raises:
            NotStorable, Stale: as `Capture.finish`.
            RunTakenOver: a newer session writes this run; nothing was committed.
        """
        started = self._clock.monotonic()
        if self._pruner.lets_go():  # before another one is written beside it: the place may have room for two
            self._untidy = True
            self.after_commit()
        snapshot = capture.finish()
        try:
            with self._repository.each_once():
                self.look()
                encoded = self._encode(snapshot.parts)
                blobs, written = self._repository.blobs.put_all(encoded.packs, self._lease.session, moved)
                manifest = self._manifest(progress, reason, metrics, blobs, encoded.parts)
            self._lease.check()
            receipt = self._repository.commit(manifest)
            told = list(self._named.look(snapshot.parts))
            snapshot.stored()
        except StoreFull:
            self._quota_planner.full = self._untidy = True
            self.after_commit()  # which makes room, as far as it can
            raise
        finally:
            snapshot.release()
        committed = self._clock.monotonic()
        self._quota_planner.full = False
        self._saved = self._untidy = True
        self.newest = manifest.id
        self.ledger.add(manifest, {**self._repository.blobs.new_receipts(), receipt.name: receipt})
        self._say(
            SaveCommitted(
                checkpoint=manifest.id,
                progress=manifest.progress,
                reason=manifest.reason,
                bytes=manifest.total_bytes,
                written=written,
                seconds=committed - started,
                level=receipt.level,
                copy=capture.remark,
                monotonic=committed,
            )
        )
        for each in told:
            self._say(each)
        self.after_commit()
        return manifest

    def look(self) -> None:
        """See that what this session has saved is still there: somebody may delete or rename the folder of a run, or
        move it to Drive's trash, while it is trained. What has vanished is told, and nothing that was there counts as
        saved any more: the next save is a whole one.

        Raises:
            RunTakenOver: a newer session writes this run, and may have deleted what is missing.
        """
        self._lease.check()
        missing, store = self._missing(), self._repository.store
        before, self._remade = self._remade, remade(store)
        if self._remade > before:
            place = store.properties
            behind = "" if place.behind is None else place.behind.url
            self._say(Noted(text=_REMADE.format(front=place.folder, behind=behind)))
        if missing is not None:
            self.newest, self._saved = None, False
            self._say(Noted(text=_VANISHED.format(missing=missing, url=store.url)))
            self._begin_anew()

    def _missing(self) -> str | None:
        """What has vanished, in words; None when all is there."""
        repository, newest = self._repository, self.newest if self._saved else None
        if not self._lease.stands():
            return f"The folder of the run {repository.run!r} has"
        if newest is None:
            return None
        if newest not in repository.ids() and not repository.has(f"checkpoints/{newest}.json"):
            return f"Checkpoint {newest} has"
        lost = repository.lost(repository.manifest(newest))
        if lost and not repository.has(f"blobs/{lost[0].file}"):
            return f"{len(lost)} file(s) of checkpoint {newest} have"
        return None

    def _begin_anew(self) -> None:
        """Nothing is relied on that was seen there; the run and this session's number are written down again."""
        repository = self._repository
        repository.blobs.forget()
        self._noted = False
        try:
            repository.open_run(created=self._clock.time(), run_id=secrets.token_hex(8))
        except CheckpointDamaged:
            pass  # it is there
        except StoreUnavailable:
            if "run.json" not in repository.files(""):
                raise  # else it is there, on a side that does not answer now
        self._lease.renew()
        self.ledger.keep({f"{repository.folder}/{name}" for name in repository.files("")})

    def after_commit(self) -> bool:
        """Ask how durable the newest are; if anything has come of that or of a save, close the journal's segment and
        prune. A store's failure is only noted: the checkpoint stands. Returns whether to look again soon: something is
        on its way, or the store is out of order.

        The journal says what will be pruned before it is gone, so that an audit can tell it from what was lost.

        Raises:
            RunTakenOver: a newer session writes this run; nothing was pruned.
        """
        self._tell_degraded()
        try:
            moved = self.ledger.ask()
            self._untidy |= bool(moved)
            for event in moved:
                self._say(event)
            last = self._last()
            doomed = self._doomed(last)
            if doomed:
                self._lease.check()
                self._journal.add({"at": self._clock.time(), "event": PRUNING, "checkpoints": [m.id for m in doomed]})
            try:
                if self._untidy or self._leaving:  # else each word of a long wait would become a file
                    self._journal.write()
            finally:  # a full store is no reason not to make room
                if doomed and last is not None:
                    lags = self._repository.store.properties.lists_lag
                    self._pruner.remove(doomed, last, leftovers=self._saved or not lags)
                    self._say(Pruned(checkpoints=tuple(manifest.id for manifest in doomed)))
            if self._saved and not self._noted and self.ledger.safe is not None:
                note_commit(self._repository, self.ledger.safe)
                self._noted = True
            self._untidy = False
        except (StoreError, CheckpointDamaged) as error:
            self._say(
                Noted(
                    text=f"Old checkpoints could not be deleted; it is tried again after the next save: {error.problem}"
                )
            )
            return False
        finally:
            for event in self.ledger.news(last=self._leaving):
                self._say(event)
        return self.ledger.waiting or self._degraded is not None  # that it works again is to be told, too

    def finish(self) -> bool:
        """Tidy up for the last time: what the journal still holds is written in any case.

        Raises:
            RunTakenOver: as `after_commit`.
        """
        self._leaving = True
        self._untidy |= self._pruner.lets_go(leaving=True)
        more = self.after_commit()
        if self._repository.store.properties.behind is None:  # else the end would wait until a history is sent
            self.fold()
        return more

    def fold(self, wanted: Callable[[], bool] = lambda: False) -> bool:
        """Fold what old sessions have left, as `Folding.work`: a session that has not saved has proven nothing yet."""
        if not self._saved:
            return False
        self._folding = self._folding or Folding(self._lease)
        return self._folding.work(wanted)

    def catch_up(self, seconds: float, waiting: Callable[[], None]) -> bool:
        """Let slower storage catch up, for a bounded time. True when all is where it should be. What is left is said
        once in a while; `waiting` is called each second."""
        store, now = self._repository.store, self._clock.monotonic
        end, say_at = now() + seconds, now() + _SLICE
        try:
            while True:
                began = now()
                look = min(_LOOK_UP, max(0.0, end - began))
                if store.flush(look):
                    return True
                left = end - now()
                if left <= 0 or now() - began < look / 2:  # it does not take the time that it is given: no use
                    return False
                if now() >= say_at:
                    say_at += _SLICE
                    self._say(_left_behind(store, left))
                waiting()
        except StoreError as error:
            self._say(StoreDegraded(url=store.url, detail=error.problem))
            return False

    def _manifest(
        self,
        progress: Progress,
        reason: str,
        metrics: Mapping[str, float],
        blobs: tuple[BlobRef, ...],
        parts: Mapping[str, Any],
    ) -> Manifest:
        lease, identity, began = self._lease, self._identity, self._identity.began
        return Manifest(
            id=self._repository.free_id(progress.step, lease.session),
            run=self._repository.run,
            session=lease.session,
            fence=lease.fence,
            progress=progress,
            blobs=blobs,
            parts=parts,
            framework=identity.framework,
            metrics=metrics,
            reason=reason,
            fingerprint=identity.fingerprint,
            settings=identity.settings,
            created=self._clock.time(),
            parent=self.newest,
            lineage=() if began is None else (*began.lineage, (began.session, began.progress.step)),
            version=__version__,
        )

    def _tell_degraded(self) -> None:
        """Tell what has changed of `Store.degraded`, with what would be lost now."""
        store, before = self._repository.store, self._degraded
        self._degraded = store.degraded
        if self._degraded != before:
            healed = self._degraded is None
            lost, detail = None if healed else self.ledger.durability(), self._degraded or "works again"
            self._say(StoreDegraded(url=store.url, detail=detail, healed=healed, durability=lost))

    def _last(self) -> Manifest | None:
        """The newest checkpoint of this session, or the one that it came from."""
        try:
            return None if self.newest is None else self._repository.manifest(self.newest)
        except CheckpointError:
            return None

    def _doomed(self, last: Manifest | None) -> list[Manifest]:
        if last is None or not self._untidy:  # it lists, which a remote store makes dear
            return []
        if self._saved or self._quota_planner.full:
            return self._pruner.doomed(last)
        # Another rule than before counts from the first save on: who only looks into a run deletes nothing by it.
        doomed = self._pruner.doomed(last) if self._identity.heir else []
        return doomed if doomed and self._lease.keeps_like(last.fence, last.session) else []


def _left_behind(store: Store, seconds: float) -> CatchingUp:
    behind = store.properties.behind
    return CatchingUp(
        url=store.url if behind is None else behind.url,
        waiting_bytes=None if behind is None else behind.waiting_bytes,
        bytes_per_second=None if behind is None else behind.bytes_per_second,
        left=seconds,
    )


_FIRST_RETRY = 15.0  # seconds after a failed save; doubled with each further failure
_LAST_RETRY = 600.0
_LAST_WORDS = 10.0  # seconds for the end of the journal, where the storage has kept up so far


class Checkpointer:
    """Saves a run's parts. Everything here is called on the training thread.

    One save is in flight at most, and the state is copied at most once: a save that is due meanwhile
    waits (`waiting`) and is taken from the state of a later step, when the writer is free.
    `events` is filled by both threads and emptied by the session. `capture`: as `Framework.capture`.
    """

    def __init__(
        self,
        capture: Callable[[Mapping[str, object]], Capture],
        committer: Committer,
        clock: Clock,
        events: deque[Event],
    ) -> None:
        self._capture = capture
        self._committer = committer
        self._clock = clock
        self.events = events
        self._writer = Writer(self._chore)
        self._failure: BaseException | None = None
        self._failures = 0
        self._retry_at: float | None = None
        self._saved: Progress | None = None
        self.ledger = committer.ledger
        self.longest = 0.0  # seconds that the longest save of this session took, from the copy to the commit
        self._began = 0.0  # when the one in flight did, in seconds of the clock
        self.waiting: str | None = None  # the reason of a save that waits for the writer, or for another attempt
        self.stale: Stale | None = None  # why the last attempt made nothing

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
        self.waiting = self.stale = self._retry_at = None
        self._began = started = self._clock.monotonic()
        try:
            capture = self._capture(parts)
        except MemoryFull as error:  # a state may grow by hours of training, which are not to end for it
            self._failed(progress, error)
            return False
        try:
            self.ledger.captured(progress)
            self.events.append(SaveStarted(progress=progress, reason=reason, blocked=self._clock.monotonic() - started))
            work = partial(self._committer.commit, capture, progress, reason, dict(metrics), self._writer.moved)
            self._writer.submit(lambda: self._work(work, progress, reason, started))
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
                remedy=getattr(failure, "remedy", "Fix the storage, or choose another with storage=…, and run again."),
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

    def _work(self, commit: Callable[[], object], progress: Progress, reason: str, started: float) -> None:
        try:
            commit()
        except Stale as error:  # the next capture copies what this one lacked
            self.waiting, self.stale = reason, error
            self._failures = min(self._failures, 1)  # an attempt that did not fail: there is to be another one
        except BaseException as error:  # noqa: BLE001  # kept for `raise_past_failure`; a thread has no caller
            self._failed(progress, error)
        else:
            self._saved = progress
            self.longest = max(self.longest, self._clock.monotonic() - started)
            self._failure = None
            self._failures = 0
        finally:
            self.ledger.released()

    def _look(self) -> None:
        try:
            self._committer.look()
        except StoreError as error:
            self.events.append(Noted(text=f"It is not known whether the last checkpoint still exists: {error.problem}"))
        except BaseException as error:  # noqa: BLE001  # as in `_work`
            self._failure = error

    def _chore(self) -> bool:
        try:
            more = self._committer.after_commit()
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
