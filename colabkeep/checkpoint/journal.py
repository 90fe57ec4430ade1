"""The run's journal: metrics and events as closed segments of JSON lines; written by one session, read while it
goes on or by whoever was not there.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from colabkeep.checkpoint.codec import read_up_to
from colabkeep.checkpoint.repository import Repository
from colabkeep.core.errors import NameTaken, ObjectNotFound, StoreError
from colabkeep.core.layout import SEGMENT_FILE, SMALL, dumps, is_amount, parse
from colabkeep.stores.base import BytesSource

# A segment is written whole, beside a checkpoint or at the end of a session, and never appended to. Its last line is
# {"sha256": digest of the lines before it}. The journal is for reading; a resume does not need it.
#
# So that a session of half a day that saves every 15 seconds leaves some thirty files and not three thousand, each of
# which is a request to read, a segment holds the lines of the one before it as well, as long as these are few. Its
# first line says from which number on it holds all, and when it is written the one before is deleted. A session that
# dies in between leaves some lines twice: who reads in order leaves out what `folded_since` covers. Where nobody may
# delete, a segment holds new lines only.


_FOLDED = "SegmentsFolded"
_FULL = 2**17  # bytes of lines in one segment: so many are written again with a save, at most
_REFUSALS = 3  # to delete, in a row: then nothing is written again, for it would only add to what is there


class Journal:
    """This session's journal. `add` on any thread, `write` on the writer's (or when that is done)."""

    def __init__(self, repository: Repository, session: str) -> None:
        self._repository = repository
        self._session = session
        self._records: deque[Mapping[str, Any]] = deque()
        self._next = self._since = 0  # numbers of the next segment, and of the first whose lines are in it
        self._body = self._new = b""  # lines since then that are written, and lines that are being written
        self._doomed: deque[int] = deque()  # numbers of segments that another one covers
        self._refusals = 0  # to delete one, in a row

    def add(self, record: Mapping[str, Any]) -> None:
        """Note one thing. Values are JSON-able, and nobody changes them any more; others go as text."""
        self._records.append(record)

    def write(self) -> None:
        """Close a segment, if anything was noted since the last. Lines that could not be written wait for the next."""
        if self._new:
            self._put()  # the very same bytes: only so can it be told whether they are there already
        lines = [_line(self._records.popleft()) for _ in range(len(self._records))]  # `add` may go on meanwhile
        if lines:
            self._new = b"\n".join(lines) + b"\n"
            if len(self._body) + len(self._new) > _FULL or self._refusals == _REFUSALS:
                self._since, self._body = self._next, b""
            self._put()
        self._delete()

    def _put(self) -> None:
        while not self._is_put():
            self._next += 1
            self._since, self._body = self._next, b""
        if self._since < self._next:
            self._doomed.append(self._next - 1)
        self._next += 1
        self._body, self._new = self._body + self._new, b""

    def _is_put(self) -> bool:
        """False where other bytes have that name."""
        mark = dumps({"event": _FOLDED, "since": self._since}) + b"\n" if self._since < self._next else b""
        body = mark + self._body + self._new
        text = body + dumps({"sha256": hashlib.sha256(body).hexdigest()}) + b"\n"
        try:
            self._repository.store.put(self._name(self._next), BytesSource(text))
        except NameTaken:  # by an attempt of which the answer was lost?
            with self._repository.store.get(self._name(self._next)) as reader:
                return read_up_to(reader, len(text) + 1) == text
        return True

    def _delete(self) -> None:
        """As far as the store lets us: what stays is covered, and read by nobody."""
        while self._doomed and self._refusals < _REFUSALS:
            try:
                self._repository.store.delete(self._name(self._doomed[0]))
            except StoreError as error:
                self._refusals = self._refusals + 1 if error.retryable else _REFUSALS
                return
            self._doomed.popleft()
            self._refusals = 0

    def _name(self, number: int) -> str:
        return f"{self._repository.folder}/journal/{self._session}-{number:05d}.jsonl"


def folded_since(records: Sequence[Mapping[str, Any]], number: int) -> int:
    """The number of the first segment whose lines are in this one, which has `number`: that itself, if none other's."""
    first = records[0] if records else {}
    since = first.get("since") if first.get("event") == _FOLDED else None
    return since if type(since) is int and 0 <= since <= number else number


def read_segment(text: bytes) -> list[dict[str, Any]]:
    """The records of a segment.

    Raises:
        ValueError: not the bytes that were written.
    """
    body, _, last = text.rstrip(b"\n").rpartition(b"\n")
    body += b"\n"
    if text != body + last + b"\n" or last != dumps({"sha256": hashlib.sha256(body).hexdigest()}):
        raise ValueError("it is not what was written (its digest differs)")
    records: list[Any] = parse(b"[" + b",".join(body.splitlines()) + b"]")
    if not all(isinstance(record, dict) for record in records):
        raise ValueError("a line of it is not a record")
    return records


def _line(record: Mapping[str, Any]) -> bytes:
    try:
        return dumps(record)
    except (TypeError, ValueError):  # NaN, or a value that somebody's code put into an event: no reason to fail a save
        return dumps({key: value if _is_json(value) else repr(value) for key, value in record.items()})


def _is_json(value: Any) -> bool:
    try:
        dumps(value)
    except (TypeError, ValueError):
        return False
    return True


LOOKS = 3
"""So often the journal is listed again at most, for a reader who found a part gone: each save writes another one."""


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
    """These parts of one session's journal, the last one first, without those that one before it covers.

    Where a part is gone the journal is listed again, and what is new comes next: it may cover parts that came already.
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
    repository.look_again()
    try:
        files = [file for file in repository.files("journal") if file.startswith(f"{session}-")]
    except StoreError:
        return []  # the part that is gone is told of
    return [each for each in _in_order(files) if each[0] > newest]


def _in_order(files: Iterable[str]) -> list[tuple[int, str]]:
    return sorted((int(match[2]), match[0]) for match in map(SEGMENT_FILE.fullmatch, files) if match is not None)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalLines:
    """Session → its lines, in order. `troubles` names each segment that could not be read, and why; `left_out` is the
    number of those that were not looked at, there being so many."""

    lines: Mapping[str, Sequence[Line]]
    troubles: tuple[str, ...]
    left_out: int


def read_journal(repository: Repository, files: Iterable[str], order: Sequence[str], most: int) -> JournalLines:
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
    return JournalLines(lines=lines, troubles=tuple(troubles), left_out=len(wanted) - len(chosen))
