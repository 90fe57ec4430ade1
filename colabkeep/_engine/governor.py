"""Keeps a run within the room there is: plans what is kept so that it fits, and tells before a place is full.

It only ever makes the retention policy stricter; what is then deleted are checkpoints of this run's own line that the
stricter policy does not keep. The decisions are in `colabkeep.vocabulary.quota`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace

from colabkeep.stores.base import Store, StoreProperties
from colabkeep.vocabulary.clock import Clock
from colabkeep.vocabulary.events import Event, SpaceShort
from colabkeep.vocabulary.manifest import Manifest
from colabkeep.vocabulary.policies import RetentionPolicy
from colabkeep.vocabulary.quota import (
    Load,
    Look,
    Room,
    fitted,
    full_at,
    load_of,
    proven,
    slack,
    strictest,
    total_bytes,
)

__all__ = ["Governor"]

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


class Governor:
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
