"""Seconds since 1970, as Drive writes them: RFC 3339 with milliseconds ("2026-11-20T12:00:00.000Z")."""

from __future__ import annotations

from datetime import datetime, timezone


def written(seconds: float) -> str:
    """The time as text, in milliseconds, as the discovery documents' examples and rclone have it."""
    moment = datetime.fromtimestamp(round(seconds * 1000) / 1000, timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def read(text: str) -> float:
    """The seconds that `text` means; without a zone it is UTC ("Search query terms and operators").

    Raises:
        ValueError: it is not such a time.
    """
    moment = datetime.fromisoformat(_cut(text.replace("Z", "+00:00")))
    return moment.replace(tzinfo=moment.tzinfo or timezone.utc).timestamp()


def _cut(text: str) -> str:
    """Python 3.10 reads fractions of three or six digits only; rclone writes up to nine."""
    head, point, tail = text.partition(".")
    if not point:
        return text
    digits = len(tail) - len(tail.lstrip("0123456789"))
    return f"{head}.{tail[:digits][:6]:0<6}{tail[digits:]}"
