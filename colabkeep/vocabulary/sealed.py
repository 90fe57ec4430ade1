"""Small JSON records that carry their own digest, so that one flipped bit anywhere is noticed.

A sealed record is one JSON object, without spaces, whose last member is "sha256": the digest of the
same text with that member cut out. A reader in any language can check it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["dumps", "seal", "unseal"]

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
    try:
        record = json.loads(body, parse_constant=_refuse, object_hook=each)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(record, dict):
        raise ValueError("it is not a JSON object")
    return record


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")
