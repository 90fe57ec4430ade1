"""Is there room for what is to be kept, and if it shrinks, when is it used up? Pure decisions, in bytes and seconds.

What is deleted does not always come free: a service may move it to a trash that counts, for minutes or for a month. So
room is what free space and this run's own bytes have been *together* lately, at the least; and until it was seen once
that a deletion gives its bytes back, half of the room is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import correlation, linear_regression

from colabkeep.vocabulary.manifest import Manifest
from colabkeep.vocabulary.policies import RetentionPolicy

__all__ = ["Load", "Look", "Room", "fitted", "full_at", "load_of", "proven", "slack", "strictest", "total_bytes"]

_NEARLY = 0.97  # of the room: journals, leases and other people's small files come meanwhile
_FEWEST = 4  # looks from which a pace is read
_AHEAD = 24.0  # times as far as was looked back: after an hour, a day
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
    return looks[-1].at + left if left <= _AHEAD * times[-1] else None


def _fits(policy: RetentionPolicy, room: Room, load: Load) -> bool:
    if room.full:
        return False
    dependable = room.dependable_bytes
    if dependable is None or policy.most is None:
        return True
    return load.needs(policy.most + room.passing) <= dependable


def _sizes(manifests: Iterable[Manifest]) -> dict[str, int]:
    return {blob.file: blob.size for manifest in manifests for blob in manifest.blobs}
