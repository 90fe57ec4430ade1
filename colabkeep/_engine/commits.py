"""What the diary says of a run's checkpoints: which were committed, and which it took leave of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

from colabkeep._engine.journal import SEGMENT_FILE, read_segment
from colabkeep._engine.pruning import PRUNING
from colabkeep._engine.reading import SMALL, read_up_to
from colabkeep._engine.repository import CHECKPOINT_ID, Repository
from colabkeep.vocabulary.errors import StoreError
from colabkeep.vocabulary.events import Pruned, SaveCommitted

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
            if record.get("event") == SaveCommitted.__name__:
                self._committed |= _ids([record.get("checkpoint")])
            elif record.get("event") in (PRUNING, Pruned.__name__):
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
    segments = sorted((name for name in repository.files("journal") if SEGMENT_FILE.fullmatch(name)), reverse=True)
    for name in segments[:_MOST]:
        try:
            with repository.store.get(f"{repository.run}/journal/{name}") as reader:
                commits.read(read_segment(read_up_to(reader, SMALL + 1)))
        except (StoreError, ValueError):
            continue  # `colabkeep verify` tells of it
    return commits.missing(repository.ids())


def _ids(values: Any) -> set[str]:
    if not isinstance(values, list):
        return set()
    return {value for value in values if isinstance(value, str) and CHECKPOINT_ID.fullmatch(value)}
