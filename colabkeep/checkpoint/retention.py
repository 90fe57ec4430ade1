"""What is kept: the retention policy within the room there is, planned before a place is full; what goes, and in
which order.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from colabkeep.checkpoint.durability import LOOKS_BACK, Ledger
from colabkeep.checkpoint.repository import Repository, damaged
from colabkeep.core.errors import CheckpointError, CheckpointUnsupported
from colabkeep.core.events import Event, SpaceShort
from colabkeep.core.layout import id_parts
from colabkeep.core.manifest import Manifest, Proof
from colabkeep.core.policies import Mode
from colabkeep.core.system import Clock
from colabkeep.stores.base import Store


class RetentionPolicy:
    """Which committed checkpoints stay; ``a + b`` keeps what either keeps. Sees manifests only."""

    __slots__ = ()

    @property
    def most(self) -> int | None:
        """How many it keeps at most; None where it keeps all, whatever room there is."""
        raise NotImplementedError

    def keeps(self, manifests: Sequence[Manifest]) -> set[str]:
        """The ids to keep, of manifests in the order of their age, oldest first."""
        raise NotImplementedError

    def fewer(self) -> RetentionPolicy | None:
        """The next stricter one, for a place that is too small for this one; None if this cannot be made stricter."""
        raise NotImplementedError

    def doomed(self, manifests: Sequence[Manifest]) -> list[Manifest]:
        """Those that it does not keep."""
        kept = self.keeps(manifests)
        return [manifest for manifest in manifests if manifest.id not in kept]

    def __add__(self, other: RetentionPolicy) -> RetentionPolicy:
        return _Union(policies=(self, other))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Union(RetentionPolicy):
    policies: tuple[RetentionPolicy, ...]

    def keeps(self, manifests: Sequence[Manifest]) -> set[str]:
        return set().union(*(policy.keeps(manifests) for policy in self.policies))

    @property
    def most(self) -> int | None:
        counts = [policy.most for policy in self.policies]
        return None if None in counts else sum(count or 0 for count in counts)

    def fewer(self) -> RetentionPolicy | None:
        """The member that keeps the most is made stricter first."""
        for policy in sorted(self.policies, key=lambda each: each.most or 0, reverse=True):
            stricter = policy.fewer()
            if stricter is not None:
                return _Union(policies=tuple(stricter if each is policy else each for each in self.policies))
        return None


@dataclass(frozen=True, slots=True)
class KeepLast(RetentionPolicy):
    """The newest `n`; None keeps all, whatever room there is."""

    n: int | None

    @property
    def most(self) -> int | None:
        return self.n

    def fewer(self) -> RetentionPolicy | None:
        return KeepLast(self.n - 1) if self.n is not None and self.n > 1 else None

    def keeps(self, manifests: Sequence[Manifest]) -> set[str]:
        kept = manifests if self.n is None else manifests[max(0, len(manifests) - self.n) :]
        return {manifest.id for manifest in kept}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepBest(RetentionPolicy):
    """The `n` best by a metric that was measured at that very step; of equals, the older ones."""

    n: int
    monitor: str
    mode: Mode

    @property
    def most(self) -> int | None:
        return self.n

    def fewer(self) -> RetentionPolicy | None:
        return KeepBest(n=self.n - 1, monitor=self.monitor, mode=self.mode) if self.n > 1 else None

    def keeps(self, manifests: Sequence[Manifest]) -> set[str]:
        return {manifest.id for manifest in self.ranked(manifests)[: self.n]}

    def ranked(self, manifests: Iterable[Manifest]) -> list[Manifest]:
        """Those that have the metric (a number, not NaN), best first."""
        sign = 1 if self.mode == "min" else -1
        measured = [m for m in manifests if not math.isnan(m.metrics.get(self.monitor, math.nan))]
        return sorted(measured, key=lambda manifest: sign * manifest.metrics[self.monitor])

    def among_best(self, value: float, values: Iterable[float]) -> bool:
        """Is `value` one of the `n` best of `values` (which include it)?"""
        sign = 1 if self.mode == "min" else -1
        better = sum(1 for other in values if sign * other < sign * value)
        return not math.isnan(value) and better < self.n


# What is deleted does not always come free: a service may move it to a trash that counts, for minutes or for a month.
# So what a run may fill is what free space and its own bytes have been *together* lately, at the least. The planner
# only ever makes the retention policy stricter; what is then deleted are checkpoints of this run's own line.


_LOOKS = 32  # saves: what a place was like before says little of it now
_FEWEST = 4  # saves from which a pace is read
_NEARLY = 0.97  # of the space: journals, leases and other people's small files come meanwhile
_AHEAD = 24 * 3600.0  # seconds; what is further off than a day is not told: the session ends before
_TIMES_AHEAD = 24.0  # times as far as was looked back: what a disk does for seconds says nothing about the night


class Load(NamedTuple):
    """What a run puts into a place: bytes that one checkpoint has to itself, and bytes that all share."""

    save_bytes: int
    shared_bytes: int

    def needs(self, checkpoints: int) -> int:
        """Bytes of so many checkpoints."""
        return self.shared_bytes + checkpoints * self.save_bytes


def load_of(manifests: Sequence[Manifest]) -> Load:
    """Measured on the newest checkpoint and the one before it; of a single one, all counts as its own."""
    newest, before = _sizes(manifests[-1:]), _sizes(manifests[-2:-1])
    shared = sum(size for file, size in newest.items() if file in before)
    return Load(save_bytes=sum(newest.values()) - shared, shared_bytes=shared)


def _sizes(manifests: Iterable[Manifest]) -> dict[str, int]:
    return {blob.file: blob.size for manifest in manifests for blob in manifest.blobs}


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeSpace:
    """A place. `free_bytes` can still be written there, the trash counted as its service counts it; None where that is
    unknown. `lately`: bytes that this run could fill there if all that it deletes came free, as of its last saves,
    oldest first. `passing` checkpoints lie there for a while beside those that are kept: the one being written, and
    those that are on their way. `proven`: deleting has given bytes back. `full`: it has just refused to take more."""

    url: str
    free_bytes: int | None = None
    lately: Sequence[int] = ()
    passing: int = 1
    proven: bool = False
    full: bool = False

    def takes(self, policy: RetentionPolicy, load: Load) -> bool:
        """Does what the policy keeps fit into the least room of late? Room that was lost from one save to the next may
        be lost again; and half is left alone as long as nobody knows whether deleting helps."""
        if self.full or policy.most is None or not self.lately:
            return not self.full
        lost = max((before - after for before, after in pairwise(self.lately)), default=0)
        least = min(self.lately) - max(0, lost)
        dependable = least if self.proven else min(least, max(self.lately) // 2)
        return load.needs(policy.most + self.passing) <= dependable

    def left(self, most: int | None, load: Load) -> int:
        """Bytes that are left now beside so many checkpoints and the next save; below zero that may not fit."""
        if most is None:
            return (self.free_bytes or 0) - load.save_bytes
        return self.lately[-1] - load.needs(most + self.passing)


def fitted(policy: RetentionPolicy, spaces: Sequence[FreeSpace], load: Load) -> RetentionPolicy:
    """The policy, made stricter until what it keeps fits into all spaces, or until it cannot be made stricter."""
    while not all(space.takes(policy, load) for space in spaces) and (stricter := policy.fewer()) is not None:
        policy = stricter
    return policy


class QuotaPlanner:
    """Lives on the writer thread. While `full` is set, because a save did not fit, as little as possible is kept."""

    def __init__(self, retention: RetentionPolicy, clock: Clock, say: Callable[[Event], None]) -> None:
        self.full = False
        self.keeps_all = retention.most is None
        self.policy = retention  # as strict as the room asked for when it was last looked
        self._retention = retention
        self._clock = clock
        self._say = say
        self._least = fitted(retention, [FreeSpace(url="", full=True)], Load(0, 0)).most
        self._kept = retention.most
        self._lately: defaultdict[str, deque[int]] = defaultdict(lambda: deque(maxlen=_LOOKS))  # by url
        self._deleting: dict[str, int] = {}  # by url: the least room with which anything was deleted
        self._proven: set[str] = set()  # urls
        self._told: defaultdict[str, float] = defaultdict(lambda: math.inf)  # by url: seconds that were left
        self._saves: deque[tuple[str, float]] = deque(maxlen=_LOOKS)  # id of the newest, and when it was seen first

    def doomed(
        self, line: Sequence[Manifest], spared: Set[str], store: Store, arrived: Callable[[str], bool]
    ) -> list[Manifest]:
        """What cannot be kept of these checkpoints, oldest first; never one whose id is `spared`. `arrived` tells of a
        blob's file whether it lies in the slower place too, if the store has two. Where all is kept, the newest two of
        the line are enough: nothing is weighed then but the next save against what is free."""
        newest = line[-1].id if line else ""  # a listing may show nothing of it
        if self._saves and self._saves[-1][0] == newest:  # it is looked at once more
            for rooms_lately in filter(None, self._lately.values()):
                rooms_lately.pop()
        else:
            self._saves.append((newest, self._clock.time()))
        load, spaces = load_of(line), self._spaces(line, store, arrived)
        self.policy = policy = fitted(self._retention, spaces, load)
        doomed = [manifest for manifest in policy.doomed(line) if manifest.id not in spared]
        if len(doomed) > sum(manifest.id not in spared for manifest in self._retention.doomed(line)):
            self._tell_kept(policy.most, spaces, load)
        for space in spaces:
            if space.lately:
                self._warn(space, load)
                if doomed:
                    self._deleting[space.url] = min(space.lately[-1], self._deleting.get(space.url, space.lately[-1]))
        return doomed

    def _spaces(self, line: Sequence[Manifest], store: Store, arrived: Callable[[str], bool]) -> list[FreeSpace]:
        here, sizes = store.properties, _sizes(line)
        if here.behind is None:
            return [self._space(store.url, here.free_bytes, sum(sizes.values()), passing=1, full=self.full)]
        there = sum(size for file, size in sizes.items() if arrived(file))
        # Beside those that are kept, there may be one on its way and the last one that has arrived.
        return [
            self._space(store.url, here.free_bytes, sum(sizes.values()), passing=3, full=self.full),
            self._space(here.behind.url, here.behind.free_bytes, there, passing=2, full=here.behind.full),
        ]

    def _space(self, url: str, free: int | None, ours: int, *, passing: int, full: bool) -> FreeSpace:
        if free is None:
            return FreeSpace(url=url, passing=passing, full=full)
        self._lately[url].append(free + ours)
        if free + ours >= self._deleting.get(url, math.inf) * _NEARLY:
            self._proven.add(url)
        lately, proven = tuple(self._lately[url]), url in self._proven
        return FreeSpace(url=url, free_bytes=free, lately=lately, passing=passing, proven=proven, full=full)

    def _tell_kept(self, most: int | None, spaces: Sequence[FreeSpace], load: Load) -> None:
        """Fewer than were asked for: said once, and again when they become fewer still."""
        if most is not None and self._kept is not None and most < self._kept:
            self._kept = most
            space = next(space for space in spaces if not space.takes(self._retention, load))
            self._say(
                SpaceShort(url=space.url, free_bytes=space.free_bytes or 0, save_bytes=load.save_bytes, keeps=most)
            )

    def _warn(self, space: FreeSpace, load: Load) -> None:
        """Tell when this run's saves will have filled the place, if that is near, or that the next one may not fit."""
        left, now = space.left(self._least, load), self._clock.time()
        seconds = 0.0 if left < 0 else self._lasts(space, left, load, now)
        if seconds > _AHEAD:
            self._told[space.url] = math.inf
        elif self._told[space.url] == math.inf or seconds < self._told[space.url] / 2:
            self._told[space.url] = seconds
            full_at = now + seconds if left >= 0 else None
            free, size = space.free_bytes or 0, load.save_bytes
            self._say(SpaceShort(url=space.url, free_bytes=free, save_bytes=size, full_at=full_at))

    def _lasts(self, space: FreeSpace, left: int, load: Load, now: float) -> float:
        """Seconds until this run's own saves have taken so many bytes, at their pace of late: what other programs write
        is no pace of ours, and may end at any moment. Infinite where what is deleted makes room for what comes."""
        since, taken = now - self._saves[0][1], (len(self._saves) - 1) * load.save_bytes
        if not self.keeps_all:
            taken = 0 if space.proven else min(taken, space.lately[0] - space.lately[-1])
        if len(self._saves) < _FEWEST or since <= 0 or taken < max(1, 2 * load.save_bytes):
            return math.inf
        seconds = left * since / taken
        return seconds if seconds <= _TIMES_AHEAD * since else math.inf


# Nothing goes that another line of sessions, a session of a higher number, or a mark in `aside/` may still need.


class Pruner:
    """Decides for a training session what goes, and removes it. Lives on the writer thread."""

    def __init__(
        self,
        repository: Repository,
        ledger: Ledger,
        quota_planner: QuotaPlanner,
        proof: Proof,
        stay: Callable[[Mapping[str, int], Sequence[Manifest]], Set[str]],
    ) -> None:
        self._repository = repository
        self._stay = stay  # as `ForeignBlobs.stay`
        self._ledger = ledger
        self._quota_planner = quota_planner
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
        """
        # Where all is kept, nobody needs to read what earlier sessions have kept, which may be thousands.
        line = line_of(self._repository, last, earlier=LOOKS_BACK if self._quota_planner.keeps_all else None)
        store, folder = self._repository.store, self._repository.folder
        spared = {last.id, self._ledger.newest_arrived(line) or last.id}
        behind = store.properties.behind
        if behind is not None and behind.sending is not None:
            spared.add(behind.sending.removeprefix(f"{folder}/checkpoints/").removesuffix(".json"))
        good, arrived = None if self._over else self._proof.newest_good(line), self._ledger.has_arrived
        kept = spared | {self._proof.named} | (set() if good is None else {good.id})
        doomed = self._quota_planner.doomed(line, kept, store, lambda file: arrived(f"{folder}/blobs/{file}"))
        # Where the policy keeps it anyway, nothing is held for it, and no save has to make room first.
        held = good is not None and good.id not in spared and good in self._quota_planner.policy.doomed(line)
        self._held = last.progress.step if held else None
        return doomed

    def remove(self, doomed: Sequence[Manifest], last: Manifest, *, leftovers: bool) -> None:
        """Remove them, once it was seen that `last` is still whole: another machine may have damaged it, before it
        knew that it was overtaken. `leftovers`: as in `unneeded`.

        Raises:
            CheckpointDamaged: it is not, and nothing was removed; the next save writes anew what is missing.
        """
        with self._repository.each_once():
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
    not on it, nor what is in quarantine. `earlier`: of those of other sessions than the last one only the newest so
    many.

    Names tell what is not on it, so that it need not be read.
    """
    own: list[str] = []
    others: list[tuple[int, int, str]] = []
    for id in repository.ids() - repository.quarantined():
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
    """
    protected = _protected_by_marks(repository)
    ids = repository.known_ids() - {manifest.id for manifest in doomed}
    kept = repository.manifests(ids)
    protected |= {blob.file for manifest in kept for blob in manifest.blobs}
    candidates = {blob.file: blob.size for manifest in doomed for blob in manifest.blobs}
    if any(_is_newer(repository, id) for id in ids - {manifest.id for manifest in kept} - repository.quarantined()):
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
    """Can only a newer version read its manifest?"""
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
    for id in repository.quarantined():
        protects = repository.sealed_record(f"aside/{id}.json").get("protects")
        if not isinstance(protects, list):
            raise damaged(id, f"the mark aside/{id}.json does not say what it protects")
        found.update(map(str, protects))
    return found
