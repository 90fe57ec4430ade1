"""Lengths of time as people write and read them."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import TypeAlias

from colabkeep.vocabulary.errors import UsageError

__all__ = ["Duration", "duration_text", "interval_text", "parse_duration", "read_duration", "span_text"]

_SECONDS = {"s": 1, "sec": 1, "second": 1, "min": 60, "minute": 60, "h": 3600, "hour": 3600, "d": 86400, "day": 86400}
_PIECE = re.compile(r"(\d+(?:\.\d+)?)\s*(s|[a-z]+?)s?(?=[\s\d]|$)\s*")


def parse_duration(value: object) -> float | None:
    """Seconds of "10 min", "1 h 30 min", "45 s", a number of seconds or a timedelta; None if it is none of these
    or not positive.

    >>> parse_duration("1 h 30 min")
    5400.0
    """
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value) if 0 < value < math.inf else None
    if not isinstance(value, str):
        return None
    text, seconds = value.strip().lower(), 0.0
    while text:
        piece = _PIECE.match(text)
        if piece is None or piece[2] not in _SECONDS:
            return None
        seconds += float(piece[1]) * _SECONDS[piece[2]]
        text = text[piece.end() :]
    return seconds or None


def duration_text(seconds: float) -> str:
    """Seconds in the largest units that matter: "12 s", "7 min", "3 h 05 min"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def interval_text(seconds: float) -> str:
    """Seconds as people say an interval: "45 s", "1 min 40 s", "10 min"."""
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if rest and minutes < 10 else f"{round(seconds / 60)} min"


def span_text(seconds: float) -> str:
    """Seconds as people say how long something takes or lasts, roughly: "40 s", "24 min", "2.5 h", "11 h"."""
    if seconds < 3600:
        return interval_text(seconds)
    hours = seconds / 3600
    return f"{hours:.0f} h" if hours >= 10 else f"{hours:.1f} h".replace(".0 h", " h")


Duration: TypeAlias = float | str | timedelta
"""Seconds, "11 h", "1 h 30 min", or a timedelta."""


def read_duration(name: str, value: object) -> float:
    """Seconds of what the user passed as the argument `name`.

    Raises:
        UsageError: it is no length of time.
    """
    seconds = parse_duration(value)
    if seconds is None:
        raise UsageError(
            problem=f"{name}={value!r} is no length of time.",
            remedy='Pass seconds, "11 h", "1 h 30 min" or a timedelta.',
        )
    return seconds
