"""Names nobody has used before."""

from __future__ import annotations

import hashlib
import secrets


def fresh(prefix: str = "") -> str:
    """A new name that fits into a URL and into a file name."""
    return prefix + secrets.token_urlsafe(24)


def fresh_file_id() -> str:
    """A new file id. It carries a check, so that `issued` needs no memory and survives a restart."""
    stem = "1" + secrets.token_hex(12)
    return stem + _check(stem)


def issued(file_id: str) -> bool:
    """Did `fresh_file_id` make it? A create with any other id is refused (files.create in the reference: "id" must
    come from files.generateIds)."""
    return file_id[-8:] == _check(file_id[:-8])


def _check(stem: str) -> str:
    return hashlib.sha256(stem.encode()).hexdigest()[:8]
