"""What goes, and in which order: manifests first, then the blobs that only they named.

Nothing goes that another line of sessions, a session of a higher number, or a mark in `aside/` may still need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set

from colabkeep._engine.blobs import damaged
from colabkeep._engine.governor import Governor
from colabkeep._engine.ledger import LOOKS_BACK, Ledger
from colabkeep._engine.repository import Repository, id_parts
from colabkeep.vocabulary.errors import CheckpointError, CheckpointUnsupported
from colabkeep.vocabulary.manifest import Manifest
from colabkeep.vocabulary.proof import Proof

__all__ = ["Pruner", "line_of", "remove", "unneeded"]


class Pruner:
    """Decides for a training session what goes, and removes it. Lives on the writer thread."""

    def __init__(
        self,
        repository: Repository,
        ledger: Ledger,
        governor: Governor,
        proof: Proof,
        stay: Callable[[Mapping[str, int], Sequence[Manifest]], Set[str]],
    ) -> None:
        self._repository = repository
        self._stay = stay  # as `Strangers.stay`
        self._ledger = ledger
        self._governor = governor
        self._proof = proof
        self._held: int | None = None  # the step whose checkpoint another one is held for, until it is proven good
        self._over = False  # training has ended, with losses that are finite numbers

    def lets_go(self, *, leaving: bool = False) -> bool:
        """Is there a checkpoint that was held until a newer one was proven good, and need not be any more? `leaving`:
        training has ended, and there will be no more losses."""
        self._over = leaving and self._proof.broken is None
        if self._held is None:
            return False
        return self._over or (self._proof.finite or 0) > self._held

    def doomed(self, last: Manifest) -> list[Manifest]:
        """What retention and the room there is do not keep, of the line that leads to `last`.

        Never the newest that is as durable as it can become: until a newer one arrives, it is all that a lost machine
        leaves. Nor the one on its way there: if saves come faster than the link takes them, none would ever arrive.
        Nor the newest whose weights are proven to give a finite loss: the newer ones may turn out to hold NaN; nor the
        one that was named to the user when they did.

        Raises:
            StoreError: the store could not be asked.
        """
        # Where all is kept, nobody needs to read what earlier sessions have kept, which may be thousands.
        line = line_of(self._repository, last, earlier=LOOKS_BACK if self._governor.keeps_all else None)
        store, folder = self._repository.store, self._repository.folder
        spared = {last.id, self._ledger.newest_arrived(line) or last.id}
        behind = store.properties.behind
        if behind is not None and behind.sending is not None:
            spared.add(behind.sending.removeprefix(f"{folder}/checkpoints/").removesuffix(".json"))
        good = None if self._over else self._proof.newest_good(line)
        held = good is not None and good.id not in spared
        self._held = last.progress.step if held else None
        spared |= {self._proof.named} if good is None else {self._proof.named, good.id}
        arrived = self._ledger.has_arrived
        return self._governor.doomed(line, spared, store, lambda file: arrived(f"{folder}/blobs/{file}"))

    def remove(self, doomed: Sequence[Manifest], last: Manifest, *, leftovers: bool) -> None:
        """Remove them, once it was seen that `last` is still whole: another machine may have damaged it, before it
        knew that it was overtaken. `leftovers`: as in `unneeded`.

        Raises:
            CheckpointDamaged: it is not, and nothing was removed; the next save writes anew what is missing.
            StoreError: the store failed; what was not deleted stays for the next time.
        """
        lost = self._repository.lost(last)
        if lost:
            for blob in lost:
                self._repository.blobs.distrust(blob)
            self._ledger.forget([last.id])
            raise damaged(last.id, f"its file blobs/{lost[0].file} has vanished since it was written")
        remove(self._repository, doomed, leftovers=leftovers, stay=self._stay)
        self._ledger.forget([manifest.id for manifest in doomed])


def line_of(repository: Repository, last: Manifest, *, earlier: int | None = None) -> list[Manifest]:
    """The checkpoints that led to `last`, itself included, oldest first: what an abandoned line or a zombie wrote is
    not on it, nor what was set aside. `earlier`: of those of other sessions than the last one only the newest so many.

    Names tell what is not on it, so that it need not be read.

    Raises:
        StoreError: the store failed.
    """
    own: list[str] = []
    others: list[tuple[int, int, str]] = []
    for id in repository.ids() - repository.aside():
        step, session, number = id_parts(id)
        if session == last.session:
            own.append(id)
        elif last.came_by(session, step):
            others.append((step, number, id))  # along a line, a later session has later steps
    newest = sorted(others)[0 if earlier is None else max(0, len(others) - earlier) :]
    candidates = repository.manifests([*own, *(id for *_, id in newest)])
    return [other for other in candidates if last.continues(other) and other.order <= last.order]


def unneeded(repository: Repository, doomed: Sequence[Manifest], *, leftovers: bool = True) -> dict[str, int]:
    """Blobs that nothing needs once these checkpoints are gone, `leftovers` of killed saves too: file → bytes.

    A left-over that this session has neither found when it first looked nor written may belong to a session that this
    one does not know of yet: it is let be.

    Raises:
        CheckpointDamaged: a mark in `aside/` cannot be read, so that it is not known what it protects.
        StoreError: the store failed.
    """
    protected = _protected_by_marks(repository)
    ids = repository.known_ids() - {manifest.id for manifest in doomed}
    kept = repository.manifests(ids)
    protected |= {blob.file for manifest in kept for blob in manifest.blobs}
    candidates = {blob.file: blob.size for manifest in doomed for blob in manifest.blobs}
    if any(_is_newer(repository, id) for id in ids - {manifest.id for manifest in kept} - repository.aside()):
        return {}  # whatever a newer version names there stays
    if leftovers and len(kept) == len(ids):  # else a manifest that cannot be read may name any of the others
        present = repository.blobs.present()
        candidates |= {file: size for file, size in present.items() if file in repository.blobs.known}
    return {file: size for file, size in sorted(candidates.items()) if file not in protected}


def remove(
    repository: Repository,
    doomed: Sequence[Manifest],
    watch: Callable[[str, int], None] = lambda *_: None,
    *,
    leftovers: bool = True,
    stay: Callable[[Mapping[str, int], Sequence[Manifest]], Set[str]] = lambda *_: frozenset(),
) -> None:
    """Delete checkpoints: their manifests, then the blobs that are `unneeded` without them, but for those that `stay`,
    asked with these and the checkpoints. `watch` is called with the name inside the run and the bytes of each object
    that is gone.

    Raises:
        CheckpointDamaged: as `unneeded`; nothing was deleted.
        StoreError: the store failed; what was not deleted stays for the next time.
    """
    files = unneeded(repository, doomed, leftovers=leftovers)
    kept = stay(files, doomed)
    for manifest in doomed:
        repository.delete_manifest(manifest.id)
        watch(f"checkpoints/{manifest.id}.json", 0)
    for file, size in files.items():
        if file not in kept:
            repository.blobs.delete(file)
            watch(f"blobs/{file}", size)


def _is_newer(repository: Repository, id: str) -> bool:
    """Can only a newer version read its manifest?

    Raises:
        StoreError: the store failed.
    """
    try:
        repository.manifest(id)
    except CheckpointUnsupported:
        return True
    except CheckpointError:
        return False
    return False


def _protected_by_marks(repository: Repository) -> set[str]:
    """The blobs that marks in `aside/` keep for whoever wants to rescue what was found damaged.

    Raises:
        CheckpointDamaged: a mark cannot be read.
    """
    found: set[str] = set()
    for id in repository.aside():
        protects = repository.sealed_record(f"aside/{id}.json").get("protects")
        if not isinstance(protects, list):
            raise damaged(id, f"the mark aside/{id}.json does not say what it protects")
        found.update(map(str, protects))
    return found
