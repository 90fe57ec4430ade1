"""The stored format: how files are called, how large they may be, and how small ones are sealed.

A run is a folder: `run.json`, and a folder for each kind of file. Nothing is written twice.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

RUN_FOLDERS = ("aside", "blobs", "checkpoints", "journal", "lease")
"""The folders of a run. Any other one below it may be a run: `exp/lr1` lies below `exp`."""

NOTE = "committed.json"
"""Says that the run has had a checkpoint. Runs of the first versions have none."""

CHECKPOINT_ID = re.compile(r"(\d{12})-([0-9a-f]{8})(?:-(\d{1,6}))?")
"""Step, session, and a number where that session saved that step more than once. With ".json" the name of a manifest in
`checkpoints/`, and of a mark in `aside/`."""

BLOB_FILE = re.compile(r"([0-9a-f]{64})(?:-[0-9a-f]{8})?\.safetensors")
"""SHA-256; of a copy that was written because the first one was found damaged, the session too."""

LEASE_FILE = re.compile(r"(\d{6,12})-([0-9a-f]{8})\.json")
"""Fencing number and session."""


SEGMENT_FILE = re.compile(r"([0-9a-f]{8})-(\d{5,9})\.jsonl")
"""A part of the journal: session and number."""

HISTORY_FILE = re.compile(r"history-(\d{6,12})-([0-9a-f]{64})\.jsonl")
"""Old leases and parts of the journal in one file: the highest fencing number in it, and the SHA-256 of its bytes."""

SMALL = 64 * 2**20
"""Bytes; manifests, leases, marks and parts of the journal are never larger."""


def lease_name(fence: int, session: str) -> str:
    """The name of a session's lease inside the run."""
    return f"lease/{fence:06d}-{session}.json"


def id_parts(id: str) -> tuple[int, str, int]:
    """Step, session and number of the checkpoint of that id. An id that is none has step 0 and no session."""
    match = CHECKPOINT_ID.fullmatch(id)
    step, session, number = match.groups() if match else ("0", "", "0")
    return int(step), session, int(number or 0)


def is_amount(value: object) -> TypeGuard[float]:
    """Is this a number that a time, a duration or a size can be? Neither NaN, nor what no calendar has."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 2**63


# A sealed record is one JSON object, without spaces, whose last member is "sha256": the digest of the same text with
# that member cut out. So one flipped bit anywhere is noticed, and a reader in any language can check it.


_MOST_CONTAINERS = 2**21  # as many as a million tensors need; each takes 56 to 232 bytes of memory for 3 of text
_MOST_VALUES = 2**23
_TAIL = len(',"sha256":"') + 64 + len('"}')


def dumps(record: object) -> bytes:
    """Compact JSON; the order of members is kept. NaN and infinity are refused (ValueError)."""
    return json.dumps(record, separators=(",", ":"), allow_nan=False).encode()


def seal(record: Mapping[str, Any]) -> bytes:
    """The text of a record (not empty), with its digest as the last member."""
    body = dumps(record)
    return body[:-1] + b',"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}'


def unseal(text: bytes, each: Callable[[dict[str, Any]], Any] | None = None) -> dict[str, Any]:
    """The record, without the digest; each object in it is what `each` makes of it.

    Raises:
        ValueError: not a sealed record, or not the bytes that were sealed. The message says which.
    """
    body = text[:-_TAIL] + b"}"
    if text[-_TAIL:] != b',"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}':
        raise ValueError("it is not the text that was written (its digest differs)")
    record = parse(body, each)
    if not isinstance(record, dict):
        raise ValueError("it is not a JSON object")
    return record


def parse(text: bytes, each: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """A JSON text that may be hostile. What `dumps` does not write is refused; each object becomes what `each` makes of
    it.

    Raises:
        ValueError: no JSON, a number that a float cannot hold, too many values or too deep a nesting.
    """
    if costly(text):
        raise ValueError("it has more values than any that colabkeep writes")
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite, object_hook=each)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def costly(text: bytes) -> bool:
    """Would this JSON take gigabytes of memory? An empty list is two bytes of text, and some sixty of memory."""

    def many(text: bytes) -> bool:
        return text.count(b"[") + text.count(b"{") > _MOST_CONTAINERS or text.count(b",") > _MOST_VALUES

    # What stands within strings is counted only where that may make the difference.
    return many(text) and many(re.sub(rb'"[^"]*"', b"", text.replace(rb"\\", b"").replace(rb"\"", b"")))


def _finite(number: str) -> float:
    value = float(number)
    if value - value != 0:
        raise ValueError(f"{number:.40} is out of range")
    return value


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")
