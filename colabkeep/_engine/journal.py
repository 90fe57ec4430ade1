"""The run's diary: metrics and events, as closed segments of JSON lines.

A segment is written whole, beside a checkpoint or at the end of a session, and never appended to.
Its last line is {"sha256": digest of the lines before it}. The diary is for reading; a resume does
not need it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import deque
from collections.abc import Mapping
from typing import Any

from colabkeep._engine.repository import Repository
from colabkeep.stores.base import BytesSource
from colabkeep.vocabulary.sealed import dumps

__all__ = ["SEGMENT_FILE", "Journal", "read_segment"]

SEGMENT_FILE = re.compile(r"([0-9a-f]{8})-(\d{5,9})\.jsonl")


class Journal:
    """This session's diary. `add` on any thread, `write` on the writer's (or when that is done)."""

    def __init__(self, repository: Repository, session: str) -> None:
        self._repository = repository
        self._session = session
        self._lines: deque[bytes] = deque()
        self._written = 0

    def add(self, record: Mapping[str, Any]) -> None:
        """Note one thing. Values are JSON-able; NaN and infinity go as text."""
        self._lines.append(dumps({key: _plain(value) for key, value in record.items()}))

    def write(self) -> None:
        """Close the segment under way, if anything was noted since the last.

        Raises:
            StoreError: it could not be written; its lines wait for the next attempt.
        """
        lines = [self._lines[i] for i in range(len(self._lines))]  # `add` may go on meanwhile
        if not lines:
            return
        body = b"\n".join(lines) + b"\n"
        text = body + dumps({"sha256": hashlib.sha256(body).hexdigest()}) + b"\n"
        name = f"{self._repository.run}/journal/{self._session}-{self._written:05d}.jsonl"
        self._repository.store.put(name, BytesSource(text))
        self._written += 1
        for _ in lines:
            self._lines.popleft()


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
