"""The parts of a session's diary, read while that session may go on and fold them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from colabkeep._engine.journal import SEGMENT_FILE, folded_since, read_segment
from colabkeep._engine.reading import SMALL, read_up_to
from colabkeep._engine.repository import Repository
from colabkeep.vocabulary.errors import ObjectNotFound, StoreError

__all__ = ["LOOKS", "Segment", "read_backwards"]

LOOKS = 3
"""So often the diary is listed again at most, for a reader who found a part gone: a session folds two or three times
in a row, and then not for sixteen saves."""


class Segment(NamedTuple):
    """One part. `records` are empty where it could not be read, and `trouble` says why."""

    number: int
    name: str
    records: Sequence[Mapping[str, Any]] = ()
    trouble: str = ""

    def covers(self, number: int) -> bool:
        """Are the lines of the part of that number in this one?"""
        return folded_since(self.records, self.number) <= number < self.number


def read_backwards(repository: Repository, files: Iterable[str]) -> Iterator[Segment]:
    """These parts of one session's diary, the last one first, without those that one before it covers.

    Where a part is gone the diary is listed again, and what is new comes next: it may cover parts that came already.
    """
    waiting = _in_order(files)
    newest, looks = waiting[-1][0] if waiting else 0, LOOKS
    found: list[Segment] = []
    while waiting:
        number, name = waiting.pop()
        if any(part.covers(number) for part in found):
            continue
        try:
            part = _read(repository, number, name)
        except ObjectNotFound as error:
            later = _later(repository, name, newest) if looks else []
            looks -= 1
            if later:
                waiting += [(number, name), *later]
                newest = later[-1][0]
                continue
            part = Segment(number, name, trouble=error.problem)
        found.append(part)
        yield part


def _read(repository: Repository, number: int, name: str) -> Segment:
    """Raises:
    ObjectNotFound: it is not there any more.
    """
    try:
        with repository.store.get(f"{repository.folder}/journal/{name}") as reader:
            return Segment(number, name, read_segment(read_up_to(reader, SMALL + 1)))
    except ObjectNotFound:
        raise
    except (StoreError, ValueError) as error:
        return Segment(number, name, trouble=error.problem if isinstance(error, StoreError) else str(error))


def _later(repository: Repository, name: str, newest: int) -> list[tuple[int, str]]:
    """What has come to that session's parts since `newest`, as far as the store can be listed."""
    session = name.partition("-")[0]
    repository.listing.forget()
    try:
        files = [file for file in repository.files("journal") if file.startswith(f"{session}-")]
    except StoreError:
        return []  # the part that is gone is told of
    return [each for each in _in_order(files) if each[0] > newest]


def _in_order(files: Iterable[str]) -> list[tuple[int, str]]:
    return sorted((int(match[2]), match[0]) for match in map(SEGMENT_FILE.fullmatch, files) if match is not None)
