"""Amounts of bytes as people write them."""

from __future__ import annotations

import re

from colabkeep.vocabulary.errors import UsageError

__all__ = ["read_size"]

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_MOST = 2**60  # bytes; no storage that colabkeep knows takes a thousandth of that
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?", re.IGNORECASE)


def read_size(name: str, value: object) -> int:
    """Bytes of "500MB", "1.5 GiB" or a whole number, passed as the argument `name`.

    >>> read_size("size", "1.5 kB")
    1500

    Raises:
        UsageError: it is no amount of bytes.
    """
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    size = 0.0 if match is None else float(match[1]) * _UNITS[(match[2] or "").lower()]
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    if not 0.5 < size < _MOST:
        raise UsageError(
            problem=f"{name}={value!r:.100} is no amount of bytes that can be kept.",
            remedy='Pass "500MB", "1.5 GiB", or a number of bytes.',
        )
    return round(size)
