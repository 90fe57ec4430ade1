"""What the writer thread does with a captured state: encode, store, commit, verify, prune."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from colabkeep._engine.codec import encode_parts
from colabkeep._engine.journal import Journal
from colabkeep._engine.lease import Lease
from colabkeep._engine.repository import Repository
from colabkeep._version import __version__
from colabkeep.stores.base import Receipt
from colabkeep.vocabulary.clock import Clock
from colabkeep.vocabulary.errors import CheckpointDamaged, StoreError
from colabkeep.vocabulary.events import Event, Noted, Pruned, RungReached, SaveCommitted, StoreDegraded
from colabkeep.vocabulary.manifest import Manifest
from colabkeep.vocabulary.policies import RetentionPolicy
from colabkeep.vocabulary.progress import Progress
from colabkeep.vocabulary.state import Capture, Snapshot

__all__ = ["PRUNING", "Committer", "Identity", "Shot"]

PRUNING = "Pruning"
"""The journal's word for what is about to be pruned; `Pruned` is told when that is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """A captured state on its way to disk, with what its manifest will say."""

    capture: Capture
    progress: Progress
    reason: str
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What all checkpoints of a session share. `parent` is the checkpoint it came from, `lineage` as in `Manifest`."""

    framework: str
    fingerprint: Mapping[str, str]
    settings: Mapping[str, str] = field(default_factory=dict)
    parent: str | None = None
    lineage: tuple[tuple[str, int], ...] = ()


class Committer:
    """Turns shots into checkpoints. Lives on the writer thread, except for its constructor.

    `say` hands an event to the training thread.
    """

    def __init__(
        self,
        lease: Lease,
        journal: Journal,
        retention: RetentionPolicy,
        clock: Clock,
        identity: Identity,
        say: Callable[[Event], None],
    ) -> None:
        self._repository: Repository = lease.repository
        self._lease = lease
        self._journal = journal
        self._retention = retention
        self._clock = clock
        self._identity = identity
        self._say = say
        self.newest: str | None = identity.parent
        self._last: Manifest | None = None
        self._degraded: str | None = None
        self._receipts: deque[tuple[str, Receipt]] = deque()  # manifests below the store's top rung
        self._untidy = False  # has anything been committed or arrived since the last pruning that succeeded?

    def commit(self, shot: Shot) -> Manifest:
        """Make a checkpoint of the shot. When it raises, the run is as it was before.

        Raises:
            NotStorable: the state holds a value that cannot be kept.
            RunTakenOver: a newer session writes this run; nothing was committed.
            StoreError: the store failed; what was written is found again by the next attempt.
        """
        started = self._clock.monotonic()
        snapshot = shot.capture.finish()
        try:
            manifest, written = self._store(shot, snapshot)
            self._lease.check()
            receipt = self._repository.commit(manifest)
        finally:
            snapshot.release()
        self.newest = manifest.id
        self._last = manifest
        self._receipts.append((manifest.id, receipt))
        self._untidy = True
        self._say(
            SaveCommitted(
                checkpoint=manifest.id,
                progress=manifest.progress,
                reason=manifest.reason,
                bytes=manifest.total_bytes,
                written=written,
                seconds=self._clock.monotonic() - started,
                rung=receipt.rung,
            )
        )
        self.tidy()
        return manifest

    def tidy(self) -> bool:
        """Ask how durable the newest are, close the journal's segment, then prune. A store's failure is
        only noted: the checkpoint stands. Returns whether anything is still on its way.

        The journal says what will be pruned before it is gone, so that an audit can tell it from what was lost.

        Raises:
            RunTakenOver: a newer session writes this run; nothing was pruned.
        """
        self._tell_degraded()
        try:
            self._confirm()
            doomed = self._doomed() if self._untidy else []  # it lists, which a remote store makes dear
            if doomed:
                self._lease.check()
                ids = [manifest.id for manifest in doomed]
                self._journal.add({"at": self._clock.time(), "event": PRUNING, "checkpoints": ids})
            try:
                self._journal.write()
            finally:  # a full store is no reason not to make room
                self._prune(doomed)
            self._untidy = False
        except (StoreError, CheckpointDamaged) as error:
            self._say(Noted(text=f"Tidying up after a save waits for the next one: {error.problem}"))
            return False
        return bool(self._receipts)

    def catch_up(self, seconds: float) -> bool:
        """Let slower storage catch up, for a bounded time. True when all is where it should be."""
        try:
            return self._repository.store.flush(seconds)
        except StoreError as error:
            self._say(StoreDegraded(url=self._repository.store.url, detail=error.problem))
            return False

    def _tell_degraded(self) -> None:
        degraded, self._degraded = self._degraded, self._repository.store.degraded
        if self._degraded != degraded:
            detail = self._degraded or "works again"
            self._say(StoreDegraded(url=self._repository.store.url, detail=detail))

    def _store(self, shot: Shot, snapshot: Snapshot) -> tuple[Manifest, int]:
        encoded = encode_parts(snapshot.parts)
        present = self._repository.blobs.present()
        blobs, written = [], 0
        for pack in encoded.packs:
            blob, size = self._repository.blobs.put(pack, self._lease.session, present)
            blobs.append(blob)
            written += size
        manifest = Manifest(
            id=self._repository.free_id(shot.progress.step, self._lease.session),
            run=self._repository.run,
            session=self._lease.session,
            fence=self._lease.fence,
            progress=shot.progress,
            blobs=tuple(blobs),
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

    def _confirm(self) -> None:
        top = self._repository.store.properties.top_rung
        for _ in range(len(self._receipts)):
            id, before = self._receipts[0]
            receipt = self._repository.store.confirm(before)  # when it raises, this one is asked for again
            self._receipts.popleft()
            if receipt.rung != before.rung or receipt.rung == top:
                self._untidy = True
                self._say(RungReached(checkpoint=id, rung=receipt.rung))
            if receipt.rung != top:
                self._receipts.append((id, receipt))

    def _doomed(self) -> list[Manifest]:
        if self._last is None:
            return []
        last = self._last
        candidates = self._repository.manifests(self._repository.ids() - self._repository.aside())
        # Only this line of sessions: what an abandoned line or a zombie wrote is not ours to delete.
        manifests = [other for other in candidates if last.continues(other)]
        below = {id for id, _ in self._receipts}
        # Never the last one on the top rung: until a newer one arrives there, it is all that a lost machine leaves.
        arrived = [manifest.id for manifest in manifests if manifest.id not in below]
        spared = {last.id, *arrived[-1:]}
        return [manifest for manifest in self._retention.doomed(manifests) if manifest.id not in spared]

    def _prune(self, doomed: list[Manifest]) -> None:
        if doomed:
            self._repository.remove(doomed)
            ids = tuple(manifest.id for manifest in doomed)
            self._receipts = deque(entry for entry in self._receipts if entry[0] not in ids)  # they arrive no more
            self._say(Pruned(checkpoints=ids))
