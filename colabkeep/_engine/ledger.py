"""Every checkpoint on its rung: asked of the store object by object, told when it changes.

A checkpoint is as durable as the least durable of its objects: a manifest is small and may be across long before the
blobs it names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from colabkeep.stores.base import BytesSource, Receipt, Rung, Store, StoreProperties
from colabkeep.vocabulary.clock import Clock
from colabkeep.vocabulary.durability import RUNGS, Durability, Place, RungName, Standing, assess, lowest
from colabkeep.vocabulary.events import DurabilityTold, Event, RungReached, UploadMeasured
from colabkeep.vocabulary.manifest import Manifest
from colabkeep.vocabulary.progress import Progress

__all__ = ["LOOKS_BACK", "Ledger", "objects_of", "place_of"]

_PAUSE = 10.0  # seconds at least between two tellings of what would be lost
_REMINDER = 60.0  # seconds between tellings of what has not changed: something is on its way

LOOKS_BACK = 8
"""Checkpoints of earlier sessions that are looked at, at most, to find one that is safe."""


@dataclass(slots=True, kw_only=True)
class _Entry:
    """A checkpoint with the names of its objects."""

    standing: Standing
    names: tuple[str, ...]


class Ledger:
    """What is known of the durability of one run's checkpoints.

    Written by the writer thread, except for `captured`, `released` and `zero`; `durability` may be asked by any thread,
    for what it reads is replaced as a whole. `zero` is when the run would have begun without a break, in seconds of
    the clock's `monotonic`.
    """

    def __init__(self, store: Store, folder: str, clock: Clock) -> None:
        self.zero = clock.monotonic()
        self._store = store
        self._folder = folder
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._objects: dict[str, Receipt] = {}
        self._standings: tuple[Standing, ...] = ()
        self._in_memory: Standing | None = None
        self._look(store.properties)
        self._told: tuple[str | None, RungName | None] | None = None
        self._told_at = self._measured_at = -math.inf

    @property
    def waiting(self) -> bool:
        """Is any checkpoint not yet as durable as it can become here?"""
        return any(entry.standing.rung != self._top for entry in self._entries.values())

    @property
    def safe(self) -> str | None:
        """The id of a checkpoint that has left this machine, or is as durable as it can become here; None if none is
        known to."""
        standings = [standing for standing in self._standings if standing.rung == self._top or _has_left(standing.rung)]
        return standings[-1].checkpoint if standings else None

    def captured(self, progress: Progress) -> None:
        """State was copied to memory."""
        self._in_memory = Standing(checkpoint=None, step=progress.step, seconds=progress.seconds, rung=RUNGS[0])

    def released(self) -> None:
        """It is a checkpoint now, or was given up."""
        self._in_memory = None

    def add(self, manifest: Manifest, receipts: Mapping[str, Receipt]) -> None:
        """A checkpoint exists. `receipts`, by object name, of what this session has put itself for it."""
        properties = self._store.properties
        self._look(properties)
        objects = objects_of(manifest, self._folder, properties, receipts)
        for receipt in objects:
            self._objects.setdefault(receipt.name, receipt)
            self._objects[receipt.name] = receipts.get(receipt.name, self._objects[receipt.name])
        names = tuple(receipt.name for receipt in objects)
        progress = manifest.progress
        standing = Standing(
            checkpoint=manifest.id, step=progress.step, seconds=progress.seconds, rung=self._rung(names)
        )
        self._entries[manifest.id] = _Entry(standing=standing, names=names)
        self._publish()

    def forget(self, ids: Iterable[str]) -> None:
        """These checkpoints are no more."""
        for id in ids:
            self._entries.pop(id, None)
        named = {name for entry in self._entries.values() for name in entry.names}
        self._objects = {name: receipt for name, receipt in self._objects.items() if name in named}
        self._publish()

    def keep(self, names: Set[str]) -> None:
        """Only these objects are there: checkpoints that need others are no more."""
        self.forget([id for id, entry in self._entries.items() if not names >= set(entry.names)])

    def ask(self) -> list[Event]:
        """Ask the store about all that is not at its top rung; what has changed. One with two sides is asked about
        the rest too, which it answers from memory: what somebody else has removed behind is on this machine only.

        Raises:
            StoreError: it could not say; what it did say is kept.
        """
        self._look(self._store.properties)
        try:
            for name, receipt in self._objects.items():
                if receipt.rung != self._top or self._behind is not None:
                    self._objects[name] = self._store.confirm(receipt)
        finally:
            events = self._moved()
        return events

    def newest_arrived(self, manifests: Sequence[Manifest]) -> str | None:
        """The newest of these (oldest first) that is as durable as it can become here. Where none is known to be, the
        best that has left this machine, for it is all that a lost machine leaves. Those of earlier sessions are looked
        at until one is found.

        Raises:
            StoreError: the store could not be asked.
        """
        older, best = 0, None
        for manifest in reversed(manifests):
            if manifest.id not in self._entries:
                if older >= LOOKS_BACK and best is not None:
                    break
                older += 1
                self.add(manifest, {})
                self.ask()
            rung = self._entries[manifest.id].standing.rung
            if rung == self._top:
                return manifest.id
            if rung != "local" and (best is None or RUNGS.index(rung) > RUNGS.index(best.rung)):
                best = self._entries[manifest.id].standing
        return None if best is None else best.checkpoint

    def has_arrived(self, name: str) -> bool:
        """Is this object known not to wait on this machine?"""
        receipt = self._objects.get(name)
        return receipt is None or receipt.rung != "local"

    def durability(self, seconds: float | None = None) -> Durability:
        """What would be lost if the machine vanished. `seconds`: of training, if not those until now."""
        in_memory = () if self._in_memory is None else (self._in_memory,)
        now = self._clock.monotonic() - self.zero if seconds is None else seconds
        return assess((*in_memory, *self._standings), self._place, now)

    def news(self, *, last: bool = False) -> list[Event]:
        """What is to be told now: not often. `last`: nothing is told after this."""
        now, durability = self._clock.monotonic(), self.durability()
        figure = durability.checkpoint, durability.rung
        pause = 0.0 if last else _PAUSE
        due = now - self._told_at >= (pause if figure != self._told else _REMINDER)
        if not due or (figure == self._told and not self.waiting):
            return []
        self._told, self._told_at = figure, now
        behind = self._behind
        events: list[Event] = [DurabilityTold(durability=durability)]
        if behind is not None and behind.bytes_per_second is not None and now - self._measured_at >= _REMINDER:
            self._measured_at = now
            speed, waiting = behind.bytes_per_second, behind.waiting_bytes
            events.append(UploadMeasured(url=behind.url, bytes_per_second=speed, waiting_bytes=waiting))
        return events

    @property
    def _top(self) -> RungName:
        return self._place.top

    def _look(self, properties: StoreProperties) -> None:
        self._place, self._behind = place_of(self._store, properties), properties.behind

    def _moved(self) -> list[Event]:
        events: list[Event] = []
        for id, entry in self._entries.items():
            before, rung = entry.standing, self._rung(entry.names)
            if rung != before.rung:
                entry.standing = Standing(checkpoint=id, step=before.step, seconds=before.seconds, rung=rung)
                events.append(RungReached(checkpoint=id, rung=rung, monotonic=self._clock.monotonic()))
        self._publish()
        return events

    def _rung(self, names: Iterable[str]) -> RungName:
        return lowest(self._objects[name].rung for name in names)

    def _publish(self) -> None:
        self._standings = tuple(entry.standing for entry in self._entries.values())


def _has_left(rung: RungName) -> bool:
    return RUNGS.index(rung) > RUNGS.index("local")


def place_of(store: Store, properties: StoreProperties) -> Place:
    """Where the store's objects end up: behind, where it has two sides."""
    url = store.url if properties.behind is None else properties.behind.url
    return Place(url=url, top=properties.top_rung, persists=properties.persists)


def objects_of(
    manifest: Manifest, folder: str, properties: StoreProperties, known: Mapping[str, Receipt] | None = None
) -> list[Receipt]:
    """Receipts to ask the store with, of a checkpoint that another session put there. The manifest's own is last; where
    it is among the `known` ones, the manifest need not be written out for it.

    What a store of two sides has may be in front only; what another one lists has been handed to it.
    """
    at_least: Rung = "local" if properties.behind is not None or properties.top_rung == "local" else "sent"
    found = {f"{folder}/blobs/{blob.file}": (blob.size, blob.sha256) for blob in manifest.blobs}
    name = f"{folder}/checkpoints/{manifest.id}.json"
    if manifest.origin is None:
        text = (known or {}).get(name) or BytesSource(manifest.to_bytes())
        found[name] = (text.size, text.sha256)
    else:
        found[name] = manifest.origin
    return [Receipt(name=n, size=size, sha256=sha256, rung=at_least) for n, (size, sha256) in found.items()]
