"""What would be lost of a run that this process does not train: by its manifests, its diary and the store's word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

from colabkeep._engine.history import unfolded
from colabkeep._engine.journal import SEGMENT_FILE
from colabkeep._engine.lease import fences
from colabkeep._engine.ledger import objects_of, place_of
from colabkeep._engine.pruning import line_of
from colabkeep._engine.repository import Repository
from colabkeep._engine.restore import newest_first
from colabkeep._engine.segments import read_backwards
from colabkeep.vocabulary.diary import STOPPED
from colabkeep.vocabulary.durability import Durability, Standing, assess, lowest
from colabkeep.vocabulary.errors import CheckpointError
from colabkeep.vocabulary.manifest import Manifest

__all__ = ["LastWord", "durability_of", "last_word", "tip"]

_ASKED = 8  # checkpoints that the store is asked about at most: each of their objects may be a request


@dataclass(frozen=True, slots=True, kw_only=True)
class LastWord:
    """The end of a run's diary. `at`: seconds since 1970 (UTC); `seconds`: how long the run had been trained then;
    `stopped`: did the session end by itself?"""

    session: str
    at: float
    seconds: float
    stopped: bool


def durability_of(repository: Repository) -> Durability:
    """The figure as of the run's last word: what a session has trained since then, nobody but itself knows.

    Raises:
        StoreError: the store cannot be asked.
    """
    store = repository.store
    properties = store.properties
    place = place_of(store, properties)
    newest, standings = tip(repository), []
    line = [] if newest is None else line_of(repository, newest)
    present = repository.blobs.present()
    for manifest in line[: -_ASKED - 1 : -1]:
        if not properties.lists_lag and any(present.get(blob.file) != blob.size for blob in manifest.blobs):
            continue  # `colabkeep verify` tells of it; nobody could go on from it
        rung = lowest(store.confirm(receipt).rung for receipt in objects_of(manifest, repository.folder, properties))
        progress = manifest.progress
        standings.append(Standing(checkpoint=manifest.id, step=progress.step, seconds=progress.seconds, rung=rung))
        if rung == place.top:
            break
    word = last_word(repository)
    trained = max((manifest.progress.seconds for manifest in line), default=0.0)
    return assess(standings, place, trained if word is None else max(trained, word.seconds))


def tip(repository: Repository) -> Manifest | None:
    """The newest checkpoint that can be read and was not set aside: its line is the run's."""
    aside = repository.aside()
    for id in newest_first(repository):
        if id not in aside:
            try:
                return repository.manifest(id)
            except CheckpointError:
                continue  # as on resume, which walks past it
    return None


def last_word(repository: Repository) -> LastWord | None:
    """The newest line of the diary that says how far the training was; None if there is none."""
    return _last_word(repository) or _last_word(unfolded(repository))


def _last_word(repository: Repository) -> LastWord | None:
    fence_of = fences(repository)
    files = [match for match in map(SEGMENT_FILE.fullmatch, repository.files("journal")) if match is not None]
    for session in sorted({match[1] for match in files}, key=lambda s: (fence_of.get(s, 0), s), reverse=True):
        parts = read_backwards(repository, [match[0] for match in files if match[1] == session])
        stopped, at = False, None
        # `colabkeep verify` tells of parts that cannot be read.
        for record in (record for part in parts for record in reversed(part.records)):
            stopped |= record.get("event") == STOPPED
            at = record.get("at") if at is None else at
            progress = record.get("progress")
            seconds = progress.get("seconds") if isinstance(progress, dict) else None
            if _is_time(seconds) and _is_time(at):
                return LastWord(session=session, at=at, seconds=seconds, stopped=stopped)
    return None


def _is_time(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and 0 <= value < 2**63  # neither NaN, nor what no calendar has
