"""The system calls of stores that are folders, in one table; how long a place has said nothing; and small files beside
the objects for people to look at.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from colabkeep.stores.base import check_name, explained

# A test hands in another table and so stands between any two calls (`colabkeep.testing.faults`).


def _getxattr(path: str, name: str) -> bytes:
    """`os.getxattr`, which Python has on Linux only."""
    if sys.platform == "linux":
        return os.getxattr(path, name)
    raise OSError(errno.ENOTSUP, f"no attribute {name} here", path)


def _set_flags(descriptor: int, flags: int) -> None:
    """Set the status flags of an open file."""
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The calls, each with the signature of its namesake in `os` or `fcntl`."""

    open: Callable[..., int] = os.open
    close: Callable[[int], None] = os.close
    write: Callable[[int, Any], int] = os.write
    set_flags: Callable[[int, int], None] = _set_flags
    fsync: Callable[[int], None] = os.fsync
    fstat: Callable[[int], os.stat_result] = os.fstat
    stat: Callable[..., os.stat_result] = os.stat
    statvfs: Callable[..., os.statvfs_result] = os.statvfs
    link: Callable[..., None] = os.link
    rename: Callable[..., None] = os.rename
    unlink: Callable[..., None] = os.unlink
    mkdir: Callable[..., None] = os.mkdir
    scandir: Callable[..., Any] = os.scandir
    ftruncate: Callable[[int, int], None] = os.ftruncate
    pread: Callable[[int, int, int], bytes] = os.pread
    flock: Callable[[int, int], None] = fcntl.flock
    lockf: Callable[[int, int], None] = fcntl.lockf
    getxattr: Callable[[str, str], bytes] = _getxattr


OS_FILES = Files()
"""The real calls."""


SECONDS = 20.0
"""After so long it is told. Whoever trains hears of it within half a minute: it is looked for once a second."""


class Silence:
    """Asked by any thread, from any number of them. `monotonic` is the time in seconds."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._asked: dict[int, float] = {}  # thread → since when it asks
        self._heard = -math.inf  # when anything came back last
        self._given_up = False  # did somebody stop asking who had heard nothing for so long?

    @property
    def lasts(self) -> bool:
        """Is somebody asking, and has heard nothing for long? Or was, and nothing has come since?"""
        return self._given_up or any(map(self._is_long, list(self._asked.values())))

    @contextmanager
    def asking(self) -> Iterator[None]:
        """While this thread asks, all its attempts and the pauses between them included."""
        me = threading.get_ident()
        if me in self._asked:
            yield
            return
        self._asked[me] = since = self._monotonic()
        try:
            yield
        finally:
            self._given_up |= self._is_long(since)  # first: the silence is not over when nobody asks any more
            del self._asked[me]

    def heard(self) -> None:
        """Something came back, or went there."""
        self._heard = self._monotonic()
        self._given_up = False

    def _is_long(self, since: float) -> bool:
        return self._monotonic() - max(since, self._heard) > SECONDS


def watched(files: Files, silence: Silence) -> Files:
    """The same system calls; one that does not come back is a silence, one that fails is none."""

    def call(real: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        with silence.asking():
            try:
                return real(*args, **options)
            finally:
                silence.heard()

    return Files(**{one.name: partial(call, getattr(files, one.name)) for one in fields(files)})


# Objects are written once, notes again and again, so they lie outside of every run: in the store's folder itself, where
# no run's files are listed, copied behind, swept or verified.


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
