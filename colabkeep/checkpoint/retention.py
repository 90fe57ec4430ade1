"""What is kept: the retention policy within the room there is, planned before a place is full; what goes, and in
which order.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import correlation, linear_regression

from colabkeep.checkpoint.durability import LOOKS_BACK, Ledger
from colabkeep.checkpoint.repository import Repository, damaged, id_parts
from colabkeep.core.errors import CheckpointError, CheckpointUnsupported
from colabkeep.core.events import Event, SpaceShort
from colabkeep.core.manifest import Manifest, Proof
from colabkeep.core.policies import RetentionPolicy
from colabkeep.core.system import Clock
from colabkeep.stores.base import Store, StoreProperties

__all__ = [
    "Load",
    "Look",
    "Pruner",
    "QuotaPlanner",
    "Room",
    "fitted",
    "full_at",
    "line_of",
    "load_of",
    "proven",
    "remove",
    "slack",
    "strictest",
    "total_bytes",
    "unneeded",
]

# What is deleted does not always come free: a service may move it to a trash that counts, for minutes or for a month.
# So room is what free space and this run's own bytes have been *together* lately, at the least; and until it was seen
# once that a deletion gives its bytes back, half of the room is left alone.


_NEARLY = 0.97  # of the room: journals, leases and other people's small files come meanwhile
_FEWEST = 4  # looks from which a pace is read
_TIMES_AHEAD = 24.0  # times as far as was looked back: after an hour, a day
_STEADY = -0.8  # correlation of slack and time, below which it is a pace and not an up and down


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a run puts into a place: `save_bytes` that one checkpoint has to itself, `shared_bytes` that all share."""

    save_bytes: int
    shared_bytes: int

    def needs(self, checkpoints: int) -> int:
        """Bytes of so many checkpoints."""
        return self.shared_bytes + checkpoints * self.save_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A place at a time (seconds since 1970, UTC). `free_bytes` can still be written there, the trash counted as its
    service counts it; `ours_bytes` are this run's. `slack`: as the function of that name says. `wrote_bytes`: what
    this session has written there by then, deleted or not. `deleting`: checkpoints were about to be deleted then."""

    at: float
    free_bytes: int
    ours_bytes: int
    slack: int = 0
    wrote_bytes: int = 0
    deleting: bool = False

    @property
    def room(self) -> int:
        """Bytes that this run could fill if all that it deletes came free."""
        return self.free_bytes + self.ours_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A place and how it looked lately, oldest first (nothing: its free space is unknown). `passing` checkpoints lie
    there for a while beside those that are kept: the one being written, and those that are on their way. `proven`:
    deleting has given bytes back. `full`: it has just refused to take more."""

    url: str
    looks: tuple[Look, ...] = ()
    passing: int = 1
    proven: bool = False
    full: bool = False

    @property
    def dependable_bytes(self) -> int | None:
        """What this run may fill: the least that the room was lately, less what it lost at most from one look to the
        next, for it may lose that again. None where it is unknown."""
        if not self.looks:
            return None
        rooms = [look.room for look in self.looks]
        lost = max((before - after for before, after in pairwise(rooms)), default=0)
        least = min(rooms) - max(0, lost)
        return least if self.proven else min(least, max(rooms) // 2)


def load_of(manifests: Sequence[Manifest]) -> Load:
    """Measured on the newest checkpoint and the one before it; of a single one, all counts as its own."""
    newest, before = _sizes(manifests[-1:]), _sizes(manifests[-2:-1])
    shared = sum(size for file, size in newest.items() if file in before)
    return Load(save_bytes=sum(newest.values()) - shared, shared_bytes=shared)


def total_bytes(manifests: Iterable[Manifest], without: frozenset[str] = frozenset()) -> int:
    """Bytes of all blobs that these name, each counted once; `without` the files of those names."""
    return sum(size for file, size in _sizes(manifests).items() if file not in without)


def fitted(policy: RetentionPolicy, rooms: Iterable[Room], load: Load) -> RetentionPolicy:
    """The policy, made stricter until what it keeps fits into all rooms, or until it cannot be made stricter."""
    rooms = tuple(rooms)
    while not all(_fits(policy, room, load) for room in rooms):
        stricter = policy.fewer()
        if stricter is None:
            break
        policy = stricter
    return policy


def proven(looks: Sequence[Look]) -> bool:
    """After something was deleted, was there ever nearly as much room as before?"""
    return any(
        look.deleting and any(later.room >= look.room * _NEARLY for later in looks[number + 1 :])
        for number, look in enumerate(looks)
    )


def strictest(policy: RetentionPolicy) -> RetentionPolicy:
    """What is kept when there is hardly any room."""
    while (stricter := policy.fewer()) is not None:
        policy = stricter
    return policy


def slack(least: RetentionPolicy, look: Look, load: Load, passing: int) -> int:
    """Bytes that are left beside the least that has to be kept and the next save; below zero that may not fit. Where
    nothing is ever deleted, what is free after the next save."""
    if least.most is None:
        return look.free_bytes - load.save_bytes
    return look.room - load.needs(least.most + passing)


def full_at(looks: Sequence[Look], load: Load) -> float | None:
    """When this run's own writing uses up the slack, at the pace of these looks, oldest first: what other programs
    write meanwhile is no pace of ours, and may end at any moment. None if the slack does not shrink, by no more than
    the coming and going of a checkpoint or two, or not steadily (trash is filled and emptied, too), or if that is much
    further ahead than was looked back: what a disk does for seconds says nothing about the night."""
    times, amounts = [look.at for look in looks], [float(look.slack) for look in looks]
    if len(looks) < _FEWEST or min(times) == max(times) or min(amounts) == max(amounts):
        return None
    times = [at - looks[0].at for at in times]  # small numbers: the squares of today's dates would drown what differs
    slope, at_start = linear_regression(times, amounts)
    ours = (looks[-1].wrote_bytes - looks[0].wrote_bytes) / times[-1]
    pace = min(-slope, ours)
    if correlation(times, amounts) > _STEADY or pace * times[-1] < 2 * load.save_bytes or pace <= 0:
        return None
    left = max(0.0, at_start + slope * times[-1]) / pace
    return looks[-1].at + left if left <= _TIMES_AHEAD * times[-1] else None


def _fits(policy: RetentionPolicy, room: Room, load: Load) -> bool:
    if room.full:
        return False
    dependable = room.dependable_bytes
    if dependable is None or policy.most is None:
        return True
    return load.needs(policy.most + room.passing) <= dependable


def _sizes(manifests: Iterable[Manifest]) -> dict[str, int]:
    return {blob.file: blob.size for manifest in manifests for blob in manifest.blobs}


# It only ever makes the retention policy stricter; what is then deleted are checkpoints of this run's own line that the
# stricter policy does not keep. The decisions are in `colabkeep.checkpoint.retention`.


_LOOKS = 32  # one after each save: what a place was like before says little of it now
_AHEAD = 24 * 3600.0  # seconds; what is further off than a day is not told: the session ends before


@dataclass(slots=True, kw_only=True)
class _Place:
    """What is remembered of one place. `newest`: the checkpoint that was the newest when it was looked at last.
    `wrote`: bytes of this session's, deleted or not. `told`: seconds that were left when it was said last."""

    looks: deque[Look] = field(default_factory=lambda: deque(maxlen=_LOOKS))
    proven: bool = False
    newest: str = ""
    wrote: int = 0
    told: float = math.inf


class QuotaPlanner:
    """Lives on the writer thread. While `full` is set, because a save did not fit, as little as possible is kept."""

    def __init__(self, retention: RetentionPolicy, clock: Clock, say: Callable[[Event], None]) -> None:
        self.full = False
        self._retention = retention
        self._clock = clock
        self._say = say
        self._least = strictest(retention)
        self._kept = retention.most
        self._places: dict[str, _Place] = {}  # by url

    @property
    def keeps_all(self) -> bool:
        """Will nothing ever be doomed?"""
        return self._retention.keeps_all

    def doomed(
        self, line: Sequence[Manifest], spared: Set[str], store: Store, arrived: Callable[[str], bool]
    ) -> list[Manifest]:
        """What cannot be kept of these checkpoints, oldest first; never one whose id is `spared`. `arrived` tells of a
        blob's file whether it lies in the slower place too, if the store has two. Where all is kept, the newest two of
        the line are enough: nothing is weighed then but the next save against what is free."""
        load, rooms = load_of(line), self._rooms(line, store.properties, store.url, arrived)
        policy = fitted(self._retention, rooms, load)
        doomed = [manifest for manifest in policy.doomed(line) if manifest.id not in spared]
        if len(doomed) > sum(manifest.id not in spared for manifest in self._retention.doomed(line)):
            self._tell_kept(policy.most, rooms, load)
        for room in rooms:
            if room.looks:
                self._remember(room, load, line[-1].id, deleting=bool(doomed))
        return doomed

    def _rooms(
        self, line: Sequence[Manifest], here: StoreProperties, url: str, arrived: Callable[[str], bool]
    ) -> tuple[Room, ...]:
        ours, behind = total_bytes(line), here.behind
        if behind is None:
            return (self._room(url, here.free_bytes, ours, passing=1, full=self.full),)
        waiting = frozenset(blob.file for manifest in line for blob in manifest.blobs if not arrived(blob.file))
        there = total_bytes(line, without=waiting)
        # Beside those that are kept, there may be one on its way and the last one that has arrived.
        return (
            self._room(url, here.free_bytes, ours, passing=3, full=self.full),
            self._room(behind.url, behind.free_bytes, there, passing=2, full=behind.full),
        )

    def _room(self, url: str, free: int | None, ours: int, *, passing: int, full: bool) -> Room:
        place = self._places.setdefault(url, _Place())
        if free is None:
            return Room(url=url, passing=passing, full=full)
        looks = (*place.looks, Look(at=self._clock.time(), free_bytes=free, ours_bytes=ours))
        place.proven = place.proven or proven(looks)
        return Room(url=url, looks=looks, passing=passing, full=full, proven=place.proven)

    def _remember(self, room: Room, load: Load, newest: str, *, deleting: bool) -> None:
        """Keep this look, and tell when the run fills the place if that is near, or that the next save may not fit."""
        place, look = self._places[room.url], room.looks[-1]
        if newest != place.newest:
            place.newest, place.wrote = newest, place.wrote + load.save_bytes
        left = slack(self._least, look, load, room.passing)
        place.looks.append(replace(look, slack=left, wrote_bytes=place.wrote, deleting=deleting))
        fills = left >= 0 and (self.keeps_all or not place.proven)  # else what goes makes room for what comes
        full = full_at(tuple(place.looks), load) if fills else None
        seconds = 0.0 if left < 0 else math.inf if full is None else full - look.at
        if seconds > _AHEAD:
            place.told = math.inf
        elif place.told == math.inf or seconds < place.told / 2:
            place.told = seconds
            free, size = look.free_bytes, load.save_bytes
            self._say(SpaceShort(url=room.url, free_bytes=free, save_bytes=size, full_at=full))

    def _tell_kept(self, most: int | None, rooms: Sequence[Room], load: Load) -> None:
        """Fewer than were asked for: said once, and again when they become fewer still."""
        if most is None or self._kept is None or most >= self._kept:
            return
        self._kept = most
        room = min(rooms, key=lambda each: (not each.full, each.looks[-1].room if each.looks else math.inf))
        free = room.looks[-1].free_bytes if room.looks else 0
        self._say(SpaceShort(url=room.url, free_bytes=free, save_bytes=load.save_bytes, keeps=most))


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
        self._stay = stay  # as `Strangers.stay`
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

        Raises:
            StoreError: the store could not be asked.
        """
        # Where all is kept, nobody needs to read what earlier sessions have kept, which may be thousands.
        line = line_of(self._repository, last, earlier=LOOKS_BACK if self._quota_planner.keeps_all else None)
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
        return self._quota_planner.doomed(line, spared, store, lambda file: arrived(f"{folder}/blobs/{file}"))

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
