"""What witnesses that a run has checkpoints, beside a listing of them: its diary, which tells what was committed and
what was pruned, and a note that is written once, when the first of them was safe.

A listing that shows no checkpoint is no proof that there is none: a mount comes up half, and Drive was seen to answer
for some folders only. The note tells such a run from one that died before its first save.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

from colabkeep._engine.history import unfolded
from colabkeep._engine.journal import SEGMENT_FILE
from colabkeep._engine.lease import fences
from colabkeep._engine.repository import CHECKPOINT_ID, Repository
from colabkeep._engine.segments import read_backwards
from colabkeep.stores.base import BytesSource
from colabkeep.vocabulary.diary import COMMITTED, PRUNED, PRUNING
from colabkeep.vocabulary.errors import CheckpointDamaged, NameTaken
from colabkeep.vocabulary.sealed import seal

__all__ = ["NOTE", "Commits", "note_commit", "noted", "vanished"]

NOTE = "committed.json"
"""The note, by its name inside the run. Runs of the first versions have none."""

_MOST = 200  # segments that are read at most, those of the newest session first: each may be a request


class Commits:
    """Ids of checkpoints, from the diary's records."""

    def __init__(self) -> None:
        self._committed: set[str] = set()
        self._pruned: set[str] = set()

    def read(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Take down what these records say."""
        for record in records:
            if record.get("event") == COMMITTED:
                self._committed |= _ids([record.get("checkpoint")])
            elif record.get("event") in (PRUNING, PRUNED):
                self._pruned |= _ids(record.get("checkpoints"))

    def missing(self, present: Set[str]) -> list[str]:
        """Committed, never pruned, and not among those that are there."""
        return sorted(self._committed - self._pruned - present)


def vanished(repository: Repository) -> list[str]:
    """Checkpoints that were committed and never pruned, as far as the diary knows of them, and are not shown.

    Raises:
        StoreError: the store cannot be listed.
    """
    past = unfolded(repository, _MOST)
    commits, fence_of = Commits(), fences(past)
    files = [name for name in past.files("journal") if SEGMENT_FILE.fullmatch(name)]
    # What was pruned is told by the session that committed it, or by a later one.
    files.sort(key=lambda name: (fence_of.get(name.partition("-")[0], 0), name), reverse=True)
    for session in dict.fromkeys(name.partition("-")[0] for name in files[:_MOST]):
        for part in read_backwards(past, (name for name in files[:_MOST] if name.startswith(f"{session}-"))):
            commits.read(part.records)  # `colabkeep verify` tells of parts that cannot be read
    return commits.missing(repository.ids())


def note_commit(repository: Repository, id: str) -> None:
    """Note that the run has had a checkpoint, this one; one that is noted already stays.

    Raises:
        StoreError: it could not be written.
    """
    try:
        repository.store.put(
            f"{repository.folder}/{NOTE}", BytesSource(seal({"run_id": _run_id(repository), "checkpoint": id}))
        )
    except NameTaken:
        return


def noted(repository: Repository) -> str | None:
    """The checkpoint that the note names; None where there is no note, or that of another run of this name.

    Raises:
        StoreError: the store cannot be asked.
    """
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


def _ids(values: Any) -> set[str]:
    if not isinstance(values, list):
        return set()
    return {value for value in values if isinstance(value, str) and CHECKPOINT_ID.fullmatch(value)}
