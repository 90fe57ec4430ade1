"""A source as a file of its own, since aistudio-sdk 0.3.9 takes nothing else (it fails on bytes)."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from colabkeep.stores._git import git_digest
from colabkeep.stores.base import Source
from colabkeep.vocabulary.errors import StoreError

__all__ = ["Spooled", "spooled"]

_SMALL = 5 * 2**20  # bytes; up to which AI Studio keeps a file in git itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Spooled:
    """The file, and what its bytes are. `md5`: as an object storage states it. `git`: git's name for a small one."""

    path: str
    size: int
    sha256: str
    md5: str
    git: str | None


@contextmanager
def spooled(name: str, source: Source) -> Iterator[Spooled]:
    """In the machine's temporary folder, and gone afterwards. Its ending is that of `name`: the SDK judges by it.

    Raises:
        StoreError: the source gave other bytes than it announced.
    """
    with tempfile.TemporaryDirectory(prefix="colabkeep-aistudio-") as folder:
        path = Path(folder) / name.rpartition("/")[2]
        md5, sha256, came = hashlib.md5(usedforsecurity=False), hashlib.sha256(), 0
        with path.open("wb") as file:
            for chunk in source.chunks():
                came += len(chunk)
                file.write(chunk)
                md5.update(chunk)
                sha256.update(chunk)
        if came != source.size:
            raise StoreError(
                problem=f"{name!r} was to have {source.size} bytes and came with {came}; it is not kept.",
                remedy="Its data changed while it was being saved: leave arrays and files alone until their save is "
                "done.",
            )
        git = git_digest(path.read_bytes()) if came <= _SMALL else None
        yield Spooled(path=str(path), size=came, sha256=sha256.hexdigest(), md5=md5.hexdigest(), git=git)
