"""How safe what was saved is: each checkpoint on its durability level, asked of the store object by object; whether
saves are still there, what other sessions left, and the store's own condition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from colabkeep.checkpoint.compaction import unfolded
from colabkeep.checkpoint.journal import Line, read_backwards
from colabkeep.checkpoint.repository import Repository, fences
from colabkeep.core.errors import CheckpointDamaged, NameTaken
from colabkeep.core.events import (
    COMMITTED,
    LEVEL,
    LEVELS,
    PRUNED,
    PRUNING,
    REACHED,
    CheckpointDurability,
    CheckpointLevel,
    Durability,
    DurabilityReached,
    DurabilityTold,
    Event,
    Noted,
    Place,
    UploadMeasured,
    assess,
    lowest,
)
from colabkeep.core.layout import CHECKPOINT_ID, NOTE, SEGMENT_FILE, seal
from colabkeep.core.manifest import Manifest, Progress
from colabkeep.core.system import Clock
from colabkeep.stores.base import BytesSource, DurabilityLevel, Receipt, Store, StoreProperties

# A checkpoint is as durable as the least durable of its objects: a manifest is small and may be across long before the
# blobs it names.


_PAUSE = 10.0  # seconds at least between two tellings of what would be lost
_REMINDER = 60.0  # seconds between tellings of what has not changed: something is on its way

LOOKS_BACK = 8
"""Checkpoints of earlier sessions that are looked at, at most, to find one that is safe."""


@dataclass(slots=True, kw_only=True)
class _Entry:
    """A checkpoint with the names of its objects."""

    standing: CheckpointDurability
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
        self._standings: tuple[CheckpointDurability, ...] = ()
        self._in_memory: CheckpointDurability | None = None
        self._look(store.properties)
        self._told: tuple[str | None, CheckpointLevel | None] | None = None
        self._told_at = self._measured_at = -math.inf

    @property
    def waiting(self) -> bool:
        """Is any checkpoint not yet as durable as it can become here?"""
        return any(entry.standing.level != self._top for entry in self._entries.values())

    @property
    def safe(self) -> str | None:
        """The id of a checkpoint that has left this machine, or is as durable as it can become here; None if none is
        known to."""
        standings = [
            standing for standing in self._standings if standing.level == self._top or _has_left(standing.level)
        ]
        return standings[-1].checkpoint if standings else None

    def captured(self, progress: Progress) -> None:
        """State was copied to memory."""
        self._in_memory = CheckpointDurability(
            checkpoint=None, step=progress.step, seconds=progress.seconds, level=LEVELS[0]
        )

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
        standing = CheckpointDurability(
            checkpoint=manifest.id, step=progress.step, seconds=progress.seconds, level=self._level(names)
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
        """Ask the store about all that is not at its top level; what has changed. One with two sides is asked about
        the rest too, which it answers from memory: what somebody else has removed behind is on this machine only.
        """
        self._look(self._store.properties)
        try:
            for name, receipt in self._objects.items():
                if receipt.level != self._top or self._behind is not None:
                    self._objects[name] = self._store.confirm(receipt)
        finally:
            events = self._moved()
        return events

    def newest_arrived(self, manifests: Sequence[Manifest]) -> str | None:
        """The newest of these (oldest first) that is as durable as it can become here. Where none is known to be, the
        best that has left this machine, for it is all that a lost machine leaves. Those of earlier sessions are looked
        at until one is found.
        """
        older, best = 0, None
        for manifest in reversed(manifests):
            if manifest.id not in self._entries:
                if older >= LOOKS_BACK and best is not None:
                    break
                older += 1
                self.add(manifest, {})
                self.ask()
            level = self._entries[manifest.id].standing.level
            if level == self._top:
                return manifest.id
            if level != "local" and (best is None or LEVELS.index(level) > LEVELS.index(best.level)):
                best = self._entries[manifest.id].standing
        return None if best is None else best.checkpoint

    def has_arrived(self, name: str) -> bool:
        """Is this object known not to wait on this machine?"""
        receipt = self._objects.get(name)
        return receipt is None or receipt.level != "local"

    def durability(self, seconds: float | None = None) -> Durability:
        """What would be lost if the machine vanished. `seconds`: of training, if not those until now."""
        in_memory = () if self._in_memory is None else (self._in_memory,)
        now = self._clock.monotonic() - self.zero if seconds is None else seconds
        return assess((*in_memory, *self._standings), self._place, now)

    def news(self, *, last: bool = False) -> list[Event]:
        """What is to be told now: not often. `last`: nothing is told after this."""
        now, durability = self._clock.monotonic(), self.durability()
        figure = durability.checkpoint, durability.level
        pause = 0.0 if last else _PAUSE
        due = now - self._told_at >= (pause if figure != self._told else _REMINDER)
        if not due or (figure == self._told and not self.waiting):
            return []
        self._told, self._told_at = figure, now
        behind = self._behind
        events: list[Event] = [DurabilityTold(durability=durability, monotonic=now)]
        if behind is not None and behind.bytes_per_second is not None and now - self._measured_at >= _REMINDER:
            self._measured_at = now
            speed, waiting = behind.bytes_per_second, behind.waiting_bytes
            events.append(UploadMeasured(url=behind.url, bytes_per_second=speed, waiting_bytes=waiting))
        return events

    @property
    def _top(self) -> CheckpointLevel:
        return self._place.top

    def _look(self, properties: StoreProperties) -> None:
        self._place, self._behind = place_of(self._store, properties), properties.behind

    def _moved(self) -> list[Event]:
        events: list[Event] = []
        for id, entry in self._entries.items():
            before, level = entry.standing, self._level(entry.names)
            if level != before.level:
                entry.standing = CheckpointDurability(
                    checkpoint=id, step=before.step, seconds=before.seconds, level=level
                )
                events.append(DurabilityReached(checkpoint=id, level=level, monotonic=self._clock.monotonic()))
        self._publish()
        return events

    def _level(self, names: Iterable[str]) -> CheckpointLevel:
        return lowest(self._objects[name].level for name in names)

    def _publish(self) -> None:
        self._standings = tuple(entry.standing for entry in self._entries.values())


def _has_left(level: CheckpointLevel) -> bool:
    return LEVELS.index(level) > LEVELS.index("local")


def place_of(store: Store, properties: StoreProperties) -> Place:
    """Where the store's objects end up: behind, where it has two sides."""
    url = store.url if properties.behind is None else properties.behind.url
    return Place(url=url, top=properties.top_level, persists=properties.persists)


def objects_of(
    manifest: Manifest, folder: str, properties: StoreProperties, known: Mapping[str, Receipt] | None = None
) -> list[Receipt]:
    """Receipts to ask the store with, of a checkpoint that another session put there. The manifest's own is last; where
    it is among the `known` ones, the manifest need not be written out for it.

    What a store of two sides has may be in front only; what another one lists has been handed to it.
    """
    at_least: DurabilityLevel = "local" if properties.behind is not None or properties.top_level == "local" else "sent"
    found = {f"{folder}/blobs/{blob.file}": (blob.size, blob.sha256) for blob in manifest.blobs}
    name = f"{folder}/checkpoints/{manifest.id}.json"
    if manifest.origin is None:
        text = (known or {}).get(name) or BytesSource(manifest.to_bytes())
        found[name] = (text.size, text.sha256)
    else:
        found[name] = manifest.origin
    return [Receipt(name=n, size=size, sha256=sha256, level=at_least) for n, (size, sha256) in found.items()]


# A listing that shows no checkpoint is no proof that there is none: a mount comes up half, and Drive was seen to answer
# for some folders only. The note tells such a run from one that died before its first save.


_MOST = 200  # segments that are read at most, those of the newest session first: each may be a request


class Commits:
    """Ids of checkpoints, from the journal's records."""

    def __init__(self) -> None:
        self._committed: set[str] = set()
        self._pruned: set[str] = set()
        self._left: set[str] = set()  # their machine, or where that was not told

    def read(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Take down what these records say."""
        for line in map(Line, records):
            if line.event in (COMMITTED, REACHED):
                ids = {id for id in (line.text("checkpoint"),) if id and CHECKPOINT_ID.fullmatch(id)}
                self._left |= set() if line.text(LEVEL) in ("captured", "local") else ids
                self._committed |= ids if line.event == COMMITTED else set()
            elif line.event in (PRUNING, PRUNED):
                self._pruned |= set(filter(CHECKPOINT_ID.fullmatch, line.names("checkpoints")))

    def missing(self, present: Set[str]) -> list[str]:
        """Committed, never pruned, and not among those that are there."""
        return sorted(self._committed - self._pruned - present)

    def left(self, ids: Iterable[str]) -> list[str]:
        """Those of them that had got further than the disk of the machine that saved them."""
        return [id for id in ids if id in self._left]


def vanished(repository: Repository) -> list[str]:
    """Checkpoints that were committed and never pruned, as far as the journal knows of them, and are not shown."""
    return _commits(repository).missing(repository.ids())


def vanished_there(repository: Repository) -> tuple[list[str], list[str]]:
    """The same, in two: those that had been in this storage, and those that had not left the disk of their machine.
    For a journal can arrive before the checkpoint of which it tells, and then the machine is lost."""
    commits = _commits(repository)
    gone = commits.missing(repository.ids())
    there = gone if repository.store.properties.top_level == "local" else commits.left(gone)
    return there, sorted({*gone} - {*there})


def _commits(repository: Repository) -> Commits:
    past = unfolded(repository)
    commits, fence_of = Commits(), fences(past)
    files = [name for name in past.files("journal") if SEGMENT_FILE.fullmatch(name)]
    # What was pruned is told by the session that committed it, or by a later one.
    files.sort(key=lambda name: (fence_of.get(name.partition("-")[0], 0), name), reverse=True)
    for session in dict.fromkeys(name.partition("-")[0] for name in files[:_MOST]):
        for part in read_backwards(past, (name for name in files[:_MOST] if name.startswith(f"{session}-"))):
            commits.read(part.records)  # `colabkeep verify` tells of parts that cannot be read
    return commits


def note_commit(repository: Repository, id: str) -> None:
    """Note that the run has had a checkpoint, this one; one that is noted already stays."""
    try:
        repository.store.put(
            f"{repository.folder}/{NOTE}", BytesSource(seal({"run_id": _run_id(repository), "checkpoint": id}))
        )
    except NameTaken:
        return


def noted(repository: Repository) -> str | None:
    """The checkpoint that the note names; None where there is no note, or that of another run of this name."""
    try:
        record = repository.sealed_record(NOTE)
    except CheckpointDamaged:
        return None
    return str(record.get("checkpoint")) if record.get("run_id") == _run_id(repository) else None


def _run_id(repository: Repository) -> object:
    try:
        return repository.sealed_record("run.json").get("id")
    except CheckpointDamaged:
        return None


# A file that no manifest names may be a killed save's; or its manifest is there, and a listing does not show it. So one
# listing decides nothing. A session that deletes what another one wrote is the newest (`Lease.check`), has the word
# of the journal that no checkpoint is missing, and, where listings lag, has seen twice that nothing names the file.


_LAG = 120.0  # seconds between the two looks; no service says how far its listings may be behind

_DOUBT = (
    "{count} file(s) of earlier sessions ({size} MiB) are kept in {url}, though no checkpoint that is shown needs "
    "them: the journal says that checkpoint {id} exists, and it is not shown. They only take up space, and are deleted "
    "when it is shown again. If you deleted that checkpoint yourself, `colabkeep prune {run}` removes them."
)


class ForeignBlobs:
    """Files below `blobs` that this session, `session`, did not write. Lives on the writer thread."""

    def __init__(self, repository: Repository, session: str, clock: Clock, say: Callable[[Event], None]) -> None:
        self._repository = repository
        self._session = session
        self._clock = clock
        self._say = say
        self._missing: list[str] | None = None  # checkpoints that the journal knows and no listing has shown
        self._seen: dict[str, float] = {}  # file → when it was first seen that nothing names it
        self._told = False

    def stay(self, files: Mapping[str, int], doomed: Sequence[Manifest]) -> set[str]:
        """Those of these files, needed by no checkpoint that is shown, that are not deleted now. `doomed`: the
        checkpoints that go. What one of another session names goes with it. What only this session's own name may be
        needed by another's that is not shown: two sessions that go on exactly from one checkpoint write the same bytes.
        """
        repository = self._repository
        foreign = files.keys() - repository.blobs.own
        if not foreign:
            return set()
        if self._missing is None:
            self._missing = vanished(repository)
        if self._missing:
            known = repository.known_ids()
            self._missing = [id for id in self._missing if id not in known]
        if self._missing:
            self._tell({file: files[file] for file in foreign}, self._missing[-1])
            return set(foreign)
        if not repository.store.properties.lists_lag:
            return set()
        named = {blob.file for manifest in doomed if manifest.session != self._session for blob in manifest.blobs}
        now = self._clock.monotonic()
        self._seen = {file: self._seen.get(file, now) for file in foreign - named}
        return {file for file, at in self._seen.items() if now - at < _LAG}

    def _tell(self, files: Mapping[str, int], id: str) -> None:
        if not self._told:
            self._told = True
            size, run, url = sum(files.values()) >> 20, self._repository.run, self._repository.store.url
            self._say(Noted(text=_DOUBT.format(count=len(files), size=size, url=url, id=id, run=run)))
