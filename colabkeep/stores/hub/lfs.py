"""How a hub of models keeps files (small ones in git, of large ones a pointer); what a store asks of such a hub."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

from colabkeep.core.errors import StoreUnavailable
from colabkeep.core.rate_limits import Budget, Limit
from colabkeep.stores.base import Entry, Receipt, Source
from colabkeep.stores.shared.retry import Patience

MOMENT = 1.0
"""Seconds that a question about durability may take."""

TIMEOUTS = (10, 60)
"""Seconds to connect, and between two pieces of an answer."""

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


_PART = r"[A-Za-z0-9_-][A-Za-z0-9._-]*"


def place(url: str, start: str) -> tuple[str, str] | None:
    """Repository ("owner/name") and folder of a URL that begins with `start`; None if it names none."""
    match = re.fullmatch(rf"{start}({_PART}/{_PART})(?:/({_PART}(?:/{_PART})*))?/?", url.strip())
    return None if match is None else (match[1], match[2] or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact(Entry):
    """What a hub states about a file: its size in bytes, git's name for it (of a large file: for its pointer), and the
    SHA-256 of its bytes, None where it told none. `large`: does git keep a pointer only? None: not known."""

    git: str
    sha256: str | None
    large: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """A file to be committed. `git`: git's name for a small one. `data`: its bytes, where they are few and not yet at
    the hub. `uploaded`: the hub has them, though in no commit. `handle` is the hub's own."""

    name: str
    size: int
    sha256: str
    git: str | None
    data: bytes | None = None
    uploaded: bool = False
    handle: Any = None


class Moved(StoreUnavailable):
    """Somebody else committed in between."""


class Hub(Protocol):
    """A folder of a repository. All methods raise `StoreError`s. `batches`: a commit takes many files, and bytes can
    be handed over before it. `commits`: the limit of commits, None if none is known."""

    batches: bool
    commits: Limit | None
    budget: Budget | None
    largest: int
    patience: Patience

    @property
    def trouble(self) -> str | None:
        """What is out of order, in a sentence for the user."""
        ...

    def prepare(self) -> str:
        """Make the repository, private, if there is none; the newest commit's id."""
        ...

    def facts(self, names: Iterable[str], at: str | None = None) -> Mapping[str, Fact]:
        """Those of the files that are there, at a commit or now; none where there is no repository."""
        ...

    def tree(self, prefix: str) -> Iterable[Fact]:
        """All files below the prefix; none where there is no repository."""
        ...

    def reader(self, fact: Fact) -> BinaryIO:
        """A file, opened for reading."""
        ...

    def upload(self, name: str, source: Source) -> AbstractContextManager[Addition]:
        """Hand the bytes over, as far as the hub takes them before a commit. What lies on this machine's disk for it
        is gone after the `with`."""
        ...

    def commit(self, additions: Iterable[Addition], deletions: Iterable[Fact], parent: str) -> str:
        """Commit on top of `parent`; the new commit's id.

        Raises:
            Moved: `parent` is not the newest commit any more.
        """
        ...

    def holds(self, fact: Fact, addition: Addition) -> bool:
        """Does the hub state just these bytes?"""
        ...

    def states(self, receipt: Receipt, fact: Fact | None) -> bool | None:
        """The same of what anybody put, by what is known of it (None: not yet). None: that cannot be told within a
        second or two."""
        ...

    def give_back(self, deleted: Iterable[Fact], waiting: Iterable[str]) -> bool:
        """Give back the space of files that were deleted, unless their digests are among the `waiting`. Was the history
        written anew?"""
        ...

    def close(self) -> None:
        """Stop whatever is under way."""
        ...
