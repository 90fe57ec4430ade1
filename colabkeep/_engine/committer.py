"""What the writer thread does with a captured state: encode, store, commit, verify, prune."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from colabkeep._engine.codec import Encoder
from colabkeep._engine.condition import Condition
from colabkeep._engine.folding import Folding
from colabkeep._engine.governor import Governor
from colabkeep._engine.journal import Journal
from colabkeep._engine.lease import Lease
from colabkeep._engine.ledger import Ledger
from colabkeep._engine.pruning import Pruner
from colabkeep._engine.repository import Repository
from colabkeep._engine.strangers import Strangers
from colabkeep._engine.vanishing import Presence
from colabkeep._version import __version__
from colabkeep.stores.base import Store
from colabkeep.vocabulary.clock import Clock
from colabkeep.vocabulary.diary import PRUNING
from colabkeep.vocabulary.errors import CheckpointDamaged, CheckpointError, StoreError, StoreFull
from colabkeep.vocabulary.events import CatchingUp, Event, Noted, Pruned, SaveCommitted, StoreDegraded
from colabkeep.vocabulary.manifest import Manifest
from colabkeep.vocabulary.policies import RetentionPolicy
from colabkeep.vocabulary.progress import Progress
from colabkeep.vocabulary.proof import Proof
from colabkeep.vocabulary.state import Capture, Snapshot

__all__ = ["Committer", "Identity", "Shot"]

_VANISHED = "{missing} vanished from {url}: deleted, renamed or moved. What is missing there is written again now."
_SLICE = 15.0  # seconds between two words about what slower storage still lacks
_LOOK = 1.0  # seconds between two looks up from waiting for it: a stop that was asked for is to be answered soon


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """A captured state on its way to disk, with what its manifest will say."""

    capture: Capture
    progress: Progress
    reason: str
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What all checkpoints of a session share. `parent` is the checkpoint it came from, `lineage` as in `Manifest`.
    `heir`: that one was the run's newest, and every byte of it was checked: what its session was about to prune when it
    was killed may be pruned."""

    framework: str
    fingerprint: Mapping[str, str]
    settings: Mapping[str, str] = field(default_factory=dict)
    parent: str | None = None
    heir: bool = False
    lineage: tuple[tuple[str, int], ...] = ()


class Committer:
    """Turns shots into checkpoints. Lives on the writer thread, except for its constructor.

    `say` hands an event to the training thread. `proof`: what the losses prove of checkpoints, by now.
    """

    def __init__(
        self,
        lease: Lease,
        journal: Journal,
        retention: RetentionPolicy,
        clock: Clock,
        identity: Identity,
        say: Callable[[Event], None],
        proof: Proof | None = None,
    ) -> None:
        self._repository: Repository = lease.repository
        self._lease = lease
        self._journal = journal
        self._clock = clock
        self._identity = identity
        self._say = say
        self._governor = Governor(retention, clock, say)
        self.ledger = Ledger(self._repository.store, self._repository.folder, clock)
        self._presence = Presence(lease, self.ledger, clock)
        self._folding = Folding(lease, clock)
        stay = Strangers(self._repository, lease.session, clock, say).stay
        self._pruner = Pruner(self._repository, self.ledger, self._governor, proof or Proof(), stay)
        self.newest: str | None = identity.parent
        self.moved: Callable[[], None] = lambda: None  # called while a commit gets on
        self._encoder = Encoder()
        self._condition = Condition(self._repository.store, self.ledger, say)
        self._leaving = self._saved = False  # before it has saved, only what a session inherits is its to delete
        self._untidy = identity.heir  # may there be anything to prune since the last pruning that succeeded?

    def commit(self, shot: Shot) -> Manifest:
        """Make a checkpoint of the shot. When it raises, the run is as it was before.

        Raises:
            NotStorable, Stale: as `Capture.finish`.
            RunTakenOver: a newer session writes this run; nothing was committed.
            StoreError: the store failed; what was written is found again by the next attempt.
        """
        started = self._clock.monotonic()
        if self._pruner.lets_go():  # before another one is written beside it: the place may have room for two
            self._untidy = True
            self.tidy()
        snapshot = shot.capture.finish()
        try:
            self.look()
            manifest, written = self._store(shot, snapshot)
            self._lease.check()
            receipt = self._repository.commit(manifest)
            snapshot.stored()
        except StoreFull:
            self._make_room()
            raise
        finally:
            snapshot.release()
        committed = self._clock.monotonic()
        self._governor.full = False
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
                rung=receipt.rung,
                copy=shot.capture.remark,
                monotonic=committed,
            )
        )
        self.tidy()
        return manifest

    def look(self) -> None:
        """See that what this session has saved is still there. What has vanished is told, and nothing that was there
        counts as saved any more: the next save is a whole one.

        Raises:
            RunTakenOver, StoreError: as `Presence.missing`.
        """
        missing = self._presence.missing(self.newest if self._saved else None)
        self._condition.tell_remade()
        if missing is not None:
            self.newest, self._saved = None, False
            self._say(Noted(text=_VANISHED.format(missing=missing, url=self._repository.store.url)))
            self._presence.begin_anew()

    def tidy(self) -> bool:
        """Ask how durable the newest are; if anything has come of that or of a save, close the journal's segment and
        prune. A store's failure is only noted: the checkpoint stands. Returns whether to look again soon: something is
        on its way, or the store is out of order.

        The journal says what will be pruned before it is gone, so that an audit can tell it from what was lost.

        Raises:
            RunTakenOver: a newer session writes this run; nothing was pruned.
        """
        self._condition.tell()
        try:
            self._ask()
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
            if self._saved:
                self._presence.note()
            self._untidy = False
        except (StoreError, CheckpointDamaged) as error:
            self._say(Noted(text=f"Tidying up after a save waits for the next one: {error.problem}"))
            return False
        finally:
            for event in self.ledger.news(last=self._leaving):
                self._say(event)
        return self.ledger.waiting or self._condition.told  # that it works again is to be told, too

    def finish(self) -> bool:
        """Tidy up for the last time: what the journal still holds is written in any case.

        Raises:
            RunTakenOver: as `tidy`.
        """
        self._leaving = True
        self._untidy |= self._pruner.lets_go(leaving=True)
        more = self.tidy()
        if self._repository.store.properties.behind is None:  # else the end would wait until a history is sent
            self.fold()
        return more

    def fold(self, wanted: Callable[[], bool] = lambda: False) -> bool:
        """Fold what old sessions have left, as `Folding.work`: a session that has not saved has proven nothing yet."""
        return self._saved and self._folding.work(wanted)

    def catch_up(self, seconds: float, waiting: Callable[[], None]) -> bool:
        """Let slower storage catch up, for a bounded time. True when all is where it should be. What is left is said
        once in a while; `waiting` is called each second."""
        store, now = self._repository.store, self._clock.monotonic
        end, say_at = now() + seconds, now() + _SLICE
        try:
            while True:
                began = now()
                look = min(_LOOK, max(0.0, end - began))
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

    def _store(self, shot: Shot, snapshot: Snapshot) -> tuple[Manifest, int]:
        encoded = self._encoder.encode(snapshot.parts)
        for pack in encoded.packs:
            pack.moved = self.moved
        blobs, written = self._repository.blobs.put_all(encoded.packs, self._lease.session)
        manifest = Manifest(
            id=self._repository.free_id(shot.progress.step, self._lease.session),
            run=self._repository.run,
            session=self._lease.session,
            fence=self._lease.fence,
            progress=shot.progress,
            blobs=blobs,
            parts=encoded.parts,
            framework=self._identity.framework,
            metrics=dict(shot.metrics),
            reason=shot.reason,
            fingerprint=dict(self._identity.fingerprint),
            settings=dict(self._identity.settings),
            created=self._clock.time(),
            parent=self.newest,
            lineage=self._identity.lineage,
            version=__version__,
        )
        return manifest, written

    def _ask(self) -> None:
        moved = self.ledger.ask()
        self._untidy |= bool(moved)
        for event in moved:
            self._say(event)

    def _make_room(self) -> None:
        self._governor.full = self._untidy = True
        self.tidy()

    def _last(self) -> Manifest | None:
        """The newest checkpoint of this session, or the one that it came from."""
        try:
            return None if self.newest is None else self._repository.manifest(self.newest)
        except CheckpointError:
            return None

    def _doomed(self, last: Manifest | None) -> list[Manifest]:
        if last is None or not self._untidy:  # it lists, which a remote store makes dear
            return []
        if self._saved or self._governor.full:
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
