"""What the diary says of a run's checkpoints: which were committed, and which it took leave of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

from colabkeep._engine.journal import SEGMENT_FILE
from colabkeep._engine.repository import CHECKPOINT_ID, Repository
from colabkeep._engine.segments import read_backwards
from colabkeep.vocabulary.diary import COMMITTED, PRUNED, PRUNING

__all__ = ["Commits", "vanished"]

_MOST = 200  # segments that are read at most, the newest first: each may be a request


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
    """The checkpoints of a run that has none any more, as far as its diary knows of them.

    Raises:
        StoreError: the store cannot be listed.
    """
    commits = Commits()
    files = sorted((name for name in repository.files("journal") if SEGMENT_FILE.fullmatch(name)), reverse=True)[:_MOST]
    for session in dict.fromkeys(name.partition("-")[0] for name in files):
        for part in read_backwards(repository, (name for name in files if name.startswith(f"{session}-"))):
            commits.read(part.records)  # `colabkeep verify` tells of parts that cannot be read
    return commits.missing(repository.ids())


def _ids(values: Any) -> set[str]:
    if not isinstance(values, list):
        return set()
    return {value for value in values if isinstance(value, str) and CHECKPOINT_ID.fullmatch(value)}
