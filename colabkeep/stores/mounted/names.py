"""What files on the mount are called: `weights.safetensors` is kept as `weights~52428800~9f86d081884c7d65.safetensors`.

The number is the size in bytes, by which a file that was cut short is known; the token makes the name new. "~" occurs
in no object's name, so nobody's plain file is taken for one of these. The ending stays last, for other programs.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

from colabkeep.stores.base import check_name
from colabkeep.vocabulary.errors import UsageError

__all__ = ["FileName", "is_legal", "is_overflow", "new_file_name", "overflow", "parse"]

_OURS = re.compile(r"([^~]+)~(0|[1-9][0-9]{0,18})~[0-9a-f]{16}(\.[^~]*)?")
_OVERFLOW = re.compile(r"~[1-9][0-9]*")


@dataclass(frozen=True, slots=True)
class FileName:
    """What a file's name says: the last part of the object's name, and the size in bytes (None: a plain name)."""

    last: str
    size: int | None


def new_file_name(last: str, size: int) -> str:
    """A name that no file has or ever had."""
    stem, dot, ending = last.rpartition(".")
    return f"{stem or last}~{size}~{secrets.token_hex(8)}{dot}{ending if dot else ''}"


def parse(file: str) -> FileName | None:
    """What the name of a file says; None if it cannot be an object."""
    ours = _OURS.fullmatch(file)
    last = file if ours is None else ours[1] + (ours[3] or "")
    if not is_legal(last):
        return None
    return FileName(last, None if ours is None else int(ours[2]))


def overflow(number: int) -> str:
    """The n-th folder (from 1) for the files that would be too many for their own."""
    return f"~{number}"


def is_overflow(folder: str) -> bool:
    """Is this the name of such a folder?"""
    return _OVERFLOW.fullmatch(folder) is not None


def is_legal(name: str) -> bool:
    """May an object be called so?"""
    try:
        check_name(name)
    except UsageError:
        return False
    return True
