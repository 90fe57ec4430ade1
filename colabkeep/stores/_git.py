"""How git names the bytes of a file, and how it keeps a large one: by a pointer, a small text with its SHA-256 and size
(the specification of git-lfs, version 1)."""

from __future__ import annotations

import hashlib
import re

__all__ = ["POINTER_BYTES", "git_digest", "is_pointer_to", "read_pointer"]

POINTER_BYTES = 200
"""No pointer without extensions is longer."""

_POINTER = re.compile(
    rb"version https://git-lfs\.github\.com/spec/v1\noid sha256:([0-9a-f]{64})\nsize ([0-9]{1,18})\n?"
)


def git_digest(data: bytes) -> str:
    """Git's own name for these bytes."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def read_pointer(data: bytes) -> tuple[str, int] | None:
    """The SHA-256 and the size in bytes of the large file that this text stands for; None if it is no pointer."""
    match = _POINTER.fullmatch(data)
    return None if match is None else (match[1].decode(), int(match[2]))


def is_pointer_to(git: str, sha256: str, size: int) -> bool:
    """Is `git` the name of a pointer to a file of this SHA-256 and size? aistudio-sdk leaves out its last newline."""
    text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}".encode()
    return git in (git_digest(text), git_digest(text + b"\n"))
