"""A run's journal, read by whoever was not there: bounded, and whatever its files hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from colabkeep._engine.journal import SEGMENT_FILE
from colabkeep._engine.repository import Repository
from colabkeep._engine.segments import read_backwards

__all__ = ["Diary", "Line", "is_amount", "read_diary"]


class Line:
    """One line of the journal. A member is asked for by its type; None for one that is missing or of another."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.record = record

    @property
    def event(self) -> str:
        """What happened: the name of an event."""
        return self.text("event") or ""

    @property
    def at(self) -> float | None:
        """When, in seconds since 1970 (UTC)."""
        return self.number("at")

    @property
    def place(self) -> tuple[int, float] | None:
        """How far the training was: the step, and the seconds trained."""
        progress = self.record.get("progress")
        inner = Line(progress if isinstance(progress, dict) else {})
        step, seconds = inner.count("step"), inner.number("seconds")
        return None if step is None or seconds is None else (step, seconds)

    def text(self, name: str) -> str | None:
        """A text."""
        value = self.record.get(name)
        return value if isinstance(value, str) else None

    def number(self, name: str) -> float | None:
        """A number that a time, a duration or a size can be."""
        value = self.record.get(name)
        return float(value) if is_amount(value) else None

    def count(self, name: str) -> int | None:
        """A whole number of the same kind."""
        value = self.record.get(name)
        return value if is_amount(value) and isinstance(value, int) else None

    def names(self, name: str) -> tuple[str, ...]:
        """The texts of a list."""
        value = self.record.get(name)
        return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list) else ()


def is_amount(value: object) -> TypeGuard[float]:
    """Is this a number that a time, a duration or a size can be? Neither NaN, nor what no calendar has."""
    return type(value) in (int, float) and 0 <= value < 2**53  # type: ignore[operator]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diary:
    """Session → its lines, in order. `troubles` names each segment that could not be read, and why; `left_out` is the
    number of those that were not looked at, there being so many."""

    lines: Mapping[str, Sequence[Line]]
    troubles: tuple[str, ...]
    left_out: int


def read_diary(repository: Repository, files: Iterable[str], order: Sequence[str], most: int) -> Diary:
    """Read at most `most` of these files of the journal; `order`: the sessions, the latest first.

    The first and the last segment of each session come before all others, for they say how it began and ended. A
    session may go on meanwhile: each line of the segments chosen is there once, also where it folds some of them.
    """
    found: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for match in filter(None, map(SEGMENT_FILE.fullmatch, files)):
        found[match[1]].append((int(match[2]), match[0]))
    segments = {session: sorted(found[session]) for session in order if session in found}
    wanted = [each for known in segments.values() for each in dict.fromkeys((known[0], known[-1]))]
    wanted += [each for known in segments.values() for each in known[-2:0:-1]]
    chosen, troubles = {name for _, name in wanted[:most]}, list[str]()
    lines: dict[str, list[Line]] = {}
    for session, known in segments.items():
        read = list(read_backwards(repository, (name for _, name in known if name in chosen)))
        parts = [part for part in read if not any(other.covers(part.number) for other in read)]
        parts.sort(key=lambda part: part.number)
        troubles += (f"journal/{part.name}: {part.trouble}" for part in parts if part.trouble)
        lines[session] = [Line(record) for part in parts for record in part.records]
    return Diary(lines=lines, troubles=tuple(troubles), left_out=len(wanted) - len(chosen))
