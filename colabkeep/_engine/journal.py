"""The run's diary: metrics and events, as closed segments of JSON lines.

A segment is written whole, beside a checkpoint or at the end of a session, and never appended to.
Its last line is {"sha256": digest of the lines before it}. The diary is for reading; a resume does
not need it.

So that a session of half a day that saves every 15 seconds leaves some forty files and not three thousand, each of
which is a request to read, sixteen segments are folded into one, and sixteen of those again. That one has the next
number, its first line says from which number on it holds all, and when it is written the others are deleted. A
session that dies in between leaves some lines twice: who reads in order leaves out what `folded_since` covers.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from colabkeep._engine.repository import Repository
from colabkeep.stores.base import BytesSource
from colabkeep.vocabulary.sealed import dumps

__all__ = ["SEGMENT_FILE", "Journal", "folded_since", "read_segment"]

SEGMENT_FILE = re.compile(r"([0-9a-f]{8})-(\d{5,9})\.jsonl")

_FOLDED = "SegmentsFolded"
_TOGETHER = 16  # segments are folded into one: each line is written three times in 4,000 saves, and twice in 250
_MOST_BYTES = 2**23  # of lines that may still be folded, and are kept in memory for it


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
        self._lines: deque[bytes] = deque()
        self._written = 0
        self._open: list[_Segment] = []  # oldest first; what was folded more often comes before what was less
        self._doomed: deque[int] = deque()  # numbers of segments that another one covers

    def add(self, record: Mapping[str, Any]) -> None:
        """Note one thing. Values are JSON-able; NaN and infinity go as text."""
        self._lines.append(dumps({key: _plain(value) for key, value in record.items()}))

    def write(self) -> None:
        """Close the segment under way, if anything was noted since the last; fold some, if there are many.

        Raises:
            StoreError: it could not be written; its lines wait for the next attempt, as do segments to be deleted.
        """
        lines = [self._lines[i] for i in range(len(self._lines))]  # `add` may go on meanwhile
        if not lines:
            return
        body = b"\n".join(lines) + b"\n"
        self._put(_Segment(self._written, self._written, 0, body))
        for _ in lines:
            self._lines.popleft()
        self._fold()

    def _fold(self) -> None:
        while len(last := self._open[-_TOGETHER:]) == _TOGETHER and last[0].folds == last[-1].folds:
            since = last[0].since
            mark = dumps({"event": _FOLDED, "since": since}) + b"\n"
            # Lines that were folded before have marks of their own, which mean nothing behind the first line.
            self._put(_Segment(self._written, since, last[0].folds + 1, mark + b"".join(one.body for one in last)))
            self._doomed += (one.number for one in last)
            self._open[-_TOGETHER - 1 : -1] = []
        while self._doomed:
            self._repository.store.delete(self._name(self._doomed[0]))
            self._doomed.popleft()
        if sum(len(one.body) for one in self._open) > _MOST_BYTES:
            self._open.clear()

    def _put(self, segment: _Segment) -> None:
        text = segment.body + dumps({"sha256": hashlib.sha256(segment.body).hexdigest()}) + b"\n"
        self._repository.store.put(self._name(segment.number), BytesSource(text))
        self._written += 1
        self._open.append(segment)

    def _name(self, number: int) -> str:
        return f"{self._repository.run}/journal/{self._session}-{number:05d}.jsonl"


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
    try:
        records = [json.loads(line) for line in body.splitlines()]
    except RecursionError as error:
        raise ValueError("a line of it is nested too deeply") from error
    if not all(isinstance(record, dict) for record in records):
        raise ValueError("a line of it is not a record")
    return records


def _plain(value: Any) -> Any:
    return repr(value) if isinstance(value, float) and value - value != 0 else value
