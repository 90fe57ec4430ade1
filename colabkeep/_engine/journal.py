"""The run's diary: metrics and events, as closed segments of JSON lines.

A segment is written whole, beside a checkpoint or at the end of a session, and never appended to.
Its last line is {"sha256": digest of the lines before it}. The diary is for reading; a resume does
not need it.

So that a session of half a day that saves every 15 seconds leaves some forty files and not three thousand, each of
which is a request to read, sixteen segments are folded into one, and sixteen of those again. That one has the next
number, its first line says from which number on it holds all, and when it is written the others are deleted. A
session that dies in between leaves some lines twice: who reads in order leaves out what `folded_since` covers. Where
nobody may delete, nothing more is folded.
"""

from __future__ import annotations

import hashlib
import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from colabkeep._engine.reading import read_up_to
from colabkeep._engine.repository import Repository
from colabkeep.stores.base import BytesSource
from colabkeep.vocabulary.errors import NameTaken, StoreError
from colabkeep.vocabulary.sealed import dumps, parse

__all__ = ["SEGMENT_FILE", "Journal", "folded_since", "read_segment"]

SEGMENT_FILE = re.compile(r"([0-9a-f]{8})-(\d{5,9})\.jsonl")

_FOLDED = "SegmentsFolded"
_TOGETHER = 16  # segments are folded into one: each line is written three times in 4,000 saves, and twice in 250
_MOST_BYTES = 2**23  # of lines that may still be folded, and are kept in memory for it
_REFUSALS = 3  # to delete, in a row: then nothing is folded any more, for it would only add to what is there


class _Segment(NamedTuple):
    """One that may be folded: its number, the first that it covers, how often its lines were folded, the lines."""

    number: int
    since: int
    folds: int
    body: bytes


class Journal:
    """This session's diary. `add` on any thread, `write` on the writer's (or when that is done)."""

    def __init__(self, repository: Repository, session: str) -> None:
        self._repository = repository
        self._session = session
        self._records: deque[Mapping[str, Any]] = deque()
        self._next = 0
        self._unsure: _Segment | None = None  # was being written when the store failed: it may be there
        self._open: list[_Segment] = []  # oldest first; what was folded more often comes before what was less
        self._doomed: deque[int] = deque()  # numbers of segments that another one covers
        self._refusals = 0  # to delete one, in a row

    def add(self, record: Mapping[str, Any]) -> None:
        """Note one thing. Values are JSON-able, and nobody changes them any more; NaN and infinity go as text."""
        self._records.append(record)

    def write(self) -> None:
        """Close the segment under way, if anything was noted since the last; fold some, if there are many.

        Raises:
            StoreError: it could not be written; its lines wait for the next attempt.
        """
        if self._unsure is not None:
            self._put(self._unsure)  # the very same bytes: only so can it be told whether they are there already
        lines = [_line(self._records.popleft()) for _ in range(len(self._records))]  # `add` may go on meanwhile
        if lines:
            self._put(_Segment(self._next, self._next, 0, b"\n".join(lines) + b"\n"))
        self._fold()

    def _fold(self) -> None:
        while len(last := self._open[-_TOGETHER:]) == _TOGETHER and last[0].folds == last[-1].folds:
            since = last[0].since
            mark = dumps({"event": _FOLDED, "since": since}) + b"\n"
            # Lines that were folded before have marks of their own, which mean nothing behind the first line.
            self._put(_Segment(self._next, since, last[0].folds + 1, mark + b"".join(one.body for one in last)))
        if self._refusals == _REFUSALS or sum(len(one.body) for one in self._open) > _MOST_BYTES:
            self._open.clear()
        self._delete()

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

    def _put(self, segment: _Segment) -> None:
        self._unsure = segment
        text = segment.body + dumps({"sha256": hashlib.sha256(segment.body).hexdigest()}) + b"\n"
        while not self._is_put(segment.number, text):
            number = segment.number + 1
            segment = segment._replace(number=number, since=segment.since if segment.folds else number)
        self._unsure, self._next = None, segment.number + 1
        self._doomed += (one.number for one in self._open if one.number >= segment.since)
        self._open = [*(one for one in self._open if one.number < segment.since), segment]

    def _is_put(self, number: int, text: bytes) -> bool:
        """False where other bytes have that name."""
        try:
            self._repository.store.put(self._name(number), BytesSource(text))
        except NameTaken:  # by an attempt of which the answer was lost?
            with self._repository.store.get(self._name(number)) as reader:
                return read_up_to(reader, len(text) + 1) == text
        return True

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
        return dumps({key: _plain(value) for key, value in record.items()})
    except (TypeError, ValueError):  # a value that somebody's code put into an event: no reason to fail a save
        return dumps({key: value if _is_json(value) else repr(value) for key, value in record.items()})


def _is_json(value: Any) -> bool:
    try:
        dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _plain(value: Any) -> Any:
    return repr(value) if isinstance(value, float) and value - value != 0 else value
