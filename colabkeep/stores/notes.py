"""Small files beside the objects that are replaced as a whole: for people to look at, and read by nothing here.

Objects are written once, notes again and again, so they lie outside of every run: in the store's folder itself, where
no run's files are listed, copied behind, swept or verified.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from colabkeep.stores._posix import explained
from colabkeep.stores.base import check_name

__all__ = ["write_note"]

_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


def write_note(folder: str, name: str, data: bytes) -> None:
    """Write `folder`/`name`, or replace it: who reads it sees the old bytes or the new ones, never a part.

    Not made durable: after a power cut it may be the one before. One process writes a note at a time; a killed one
    leaves a file with a dot in front, which the next one uses.

    Raises:
        UsageError: `name` is no single legal name.
        StoreError: it cannot be written; the old bytes stand.
    """
    target = Path(folder) / check_name(name).replace("/", "_")
    draft = target.with_name(f".{target.name}.new")
    with explained(folder, f"write {name!r}"):
        try:
            descriptor = os.open(draft, _NEW, 0o666)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            draft.replace(target)
        except BaseException:
            with suppress(OSError):
                draft.unlink()
            raise
