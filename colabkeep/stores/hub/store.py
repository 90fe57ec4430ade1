"""The store in a repository on a hub of models: how such a hub keeps files (small ones in git, of large ones a
pointer), what is asked of it, and what the store makes of that.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

from colabkeep.core.errors import StoreError, StoreUnavailable
from colabkeep.core.rate_limits import Budget, Limit
from colabkeep.stores.base import (
    DurabilityLevel,
    Entry,
    Receipt,
    Source,
    StoreProperties,
    check_name,
    is_below,
    missing,
    taken,
)
from colabkeep.stores.shared.listings import RemoteStore
from colabkeep.stores.shared.retry import Patience, Throttled

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


_AT_ONCE = 0.125  # of the limit: the first saves of a session
_STEADY = 0.775  # of the limit: what follows, spread over its time
_LAST = 0.95  # of the limit: what somebody waits for goes on until then


class Allowance:
    """What was `spent` of a limit by this process, and for how long to `rest` before more of it is. An eighth may go at
    once; what follows is spread, so that no hour has a gap in which nothing is saved. `monotonic` gives seconds."""

    def __init__(self, limit: Limit, monotonic: Callable[[], float]) -> None:
        self._limit = limit
        self._monotonic = monotonic
        self._apart = limit.seconds / (limit.most * _STEADY)
        self._spent: deque[float] = deque(maxlen=int(limit.most * _LAST))  # when
        self._level, self._since = 0.0, monotonic()  # of what was spent faster than it may be for ever
        self._closed_until = -math.inf

    def spent(self) -> None:
        now = self._monotonic()
        self._level, self._since = self._drained(now) + 1.0, now
        self._spent.append(now)

    def refused(self, seconds: float) -> None:
        """The place wants to be left alone for so long."""
        self._closed_until = self._monotonic() + seconds

    def rest(self, *, urgent: bool) -> float:
        """Seconds until the next one may be spent. `urgent`: somebody waits for it."""
        now = self._monotonic()
        waits = [0.0, self._closed_until - now]
        if len(self._spent) == self._spent.maxlen:
            waits.append(self._spent[0] + self._limit.seconds - now)
        if not urgent:
            waits.append((self._drained(now) + 1.0 - self._limit.most * _AT_ONCE) * self._apart)
        return max(waits)

    def _drained(self, now: float) -> float:
        return max(0.0, self._level - (now - self._since) / self._apart)


# Where commits are limited (128 an hour at Hugging Face: huggingface/datasets #6257), one save is one commit. So the
# bytes of a `.safetensors` file are handed over by its `put`, which returns "sent", and its name is committed together
# with the next other file: for a checkpoint that is its manifest. The journal's segments wait likewise, in memory
# ("local"). Deletions wait on each hub. What still waits when the process dies belongs to no checkpoint. `flush`
# commits what waits; within this process what waits is seen as done.


_WAITS = ".safetensors"
_JOURNAL = re.compile(r"(?:.+/)?journal/[^/]+")


class HubStore(RemoteStore[Fact]):
    """Objects as files of a repository, which is made, private, when the first one is put.

    **Confirmed** means: after the commit the hub stated the file with the SHA-256 of these bytes, or with their git
    digest (a small one); each `Hub` says what it takes for that.

    **Written once.** Names are looked at before a commit. Hugging Face refuses a commit on top of another one than the
    newest; AI Studio does not, so two sessions that put the same name within a second can both succeed there: the names
    that colabkeep uses hold a digest or the session, so they do not. Others' changes are seen some seconds late.
    """

    def __init__(self, hub: Hub, url: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__(url, monotonic)
        self._hub = hub
        self._turn = threading.RLock()  # held while committing
        self._head: str | None = None
        self._waiting: dict[str, Addition] = {}
        self._doomed: set[str] = set()  # names
        self._allowance = None if hub.commits is None else Allowance(hub.commits, monotonic)

    @property
    def properties(self) -> StoreProperties:
        return StoreProperties(
            top_level="confirmed", persists=True, max_object_bytes=self._hub.largest, budget=self._hub.budget
        )

    @property
    def degraded(self) -> str | None:
        return self._hub.trouble

    def put(self, name: str, source: Source) -> Receipt:
        check_name(name)
        with self._turn:
            self._head = self._hub.prepare() if self._head is None else self._head
        known = name in self._doomed or self._listings.lacks(name)  # that it is free
        if name in self._waiting or (not known and name in self._hub.facts([name])):
            raise taken(name, self._url)
        with self._hub.upload(name, source) as addition:
            waits = self._hub.batches and (
                (name.endswith(_WAITS) and addition.uploaded) or _JOURNAL.fullmatch(name) is not None
            )
            with self._turn:
                if name in self._waiting:
                    raise taken(name, self._url)
                if waits:
                    self._waiting[name] = addition
                else:
                    self._commit(addition)
        level: DurabilityLevel = "confirmed" if not waits else "sent" if addition.uploaded else "local"
        return Receipt(name=name, size=source.size, sha256=source.sha256, level=level)

    def get(self, name: str) -> BinaryIO:
        check_name(name)
        if (waiting := self._waiting.get(name)) is not None:
            if waiting.data is not None:
                return io.BytesIO(waiting.data)
            with self._turn:
                self._commit()
        fact = None if name in self._doomed else self._hub.facts([name]).get(name)
        if fact is None:
            raise missing(name, self._url)
        return self._hub.reader(fact)

    def list(self, prefix: str) -> Sequence[Entry]:
        waiting, doomed = dict(self._waiting), set(self._doomed)  # first: they may be committed meanwhile
        entries = {entry.name: entry for entry in super().list(prefix) if entry.name not in doomed}
        for name, addition in waiting.items():
            if is_below(name, prefix):
                entries[name] = Entry(name=name, size=addition.size)
        return [*entries.values()]

    def delete(self, name: str) -> None:
        check_name(name)
        with self._turn:
            self._confirmed.forget(name)
            if self._waiting.pop(name, None) is None:
                self._doomed.add(name)

    def confirm(self, receipt: Receipt) -> Receipt:
        open_yet = receipt.name in self._waiting or receipt.name in self._doomed
        return receipt if open_yet else super().confirm(receipt)

    def rest(self, *, urgent: bool) -> float:
        """As `colabkeep.stores.base.rest` says."""
        return 0.0 if self._allowance is None else self._allowance.rest(urgent=urgent)

    def flush(self, timeout: float) -> bool:
        with self._turn:
            if (self._waiting or self._doomed) and self.rest(urgent=True) <= 0.0 and timeout > 0:
                self._commit()  # one that has begun is seen through
            return not (self._waiting or self._doomed)

    def close(self) -> None:
        """Stop what is under way. What waits for a commit is forgotten, as when the process dies; `flush` first."""
        self._hub.close()

    def _find(self, prefix: str) -> Sequence[Fact]:
        return [*self._hub.tree(prefix)]

    def _states(self, receipt: Receipt) -> bool | None:
        return self._hub.states(receipt, self._listings.known(receipt.name))

    def _commit(self, addition: Addition | None = None) -> None:
        """Commit what waits, and the addition.

        Raises:
            NameTaken: the addition's name exists; what waited still waits.
            StoreError: it could not be done.
        """
        additions = {**self._waiting, **({addition.name: addition} if addition else {})}
        deleted: Sequence[Fact] = ()
        ours_may_be_there = False

        def attempt() -> None:
            nonlocal deleted, ours_may_be_there
            try:
                deleted = self._attempt(additions, None if ours_may_be_there else addition)
            except StoreUnavailable as error:
                self._head = None  # somebody else was faster, or our own commit's answer got lost
                ours_may_be_there = ours_may_be_there or not isinstance(error, Moved)
                if isinstance(error, Throttled) and self._allowance is not None:
                    self._allowance.refused(error.seconds)
                raise

        try:
            self._hub.patience(attempt)
        except BaseException:
            self._listings.forget(*additions, *self._doomed)
            raise
        if self._hub.give_back(deleted, [one.sha256 for one in self._waiting.values()]):
            self._head = None

    def _attempt(self, additions: Mapping[str, Addition], fresh_only: Addition | None) -> Sequence[Fact]:
        """One attempt; which files it deleted. `fresh_only`: nothing that we did can be the reason why its name is
        there."""
        head = self._head or self._hub.prepare()
        there = self._hub.facts([*additions, *self._doomed], at=head)
        fresh = {name: one for name, one in additions.items() if name not in there or name in self._doomed}
        for name in additions.keys() - fresh.keys():
            self._see_ours(additions[name], there[name], fresh_only)
        deletions = [there[name] for name in self._doomed & there.keys()]
        if fresh or deletions:
            if self._allowance is not None:
                self._allowance.spent()
            gone = [fact for fact in deletions if fact.name not in fresh]
            self._head = self._hub.commit(fresh.values(), gone, parent=head)
            self._see_arrived(fresh, self._head)
        for name in self._doomed - additions.keys():
            self._listings.deleted(name)
        self._doomed.clear()
        for name in additions:
            self._waiting.pop(name, None)
        return deletions

    def _see_ours(self, one: Addition, there: Fact, fresh_only: Addition | None) -> None:
        """That a name which is there already stands for these very bytes.

        Raises:
            NameTaken: it does not; or it does, and nothing that we did can be the reason.
        """
        if not self._hub.holds(there, one):
            self._waiting.pop(one.name, None)  # it can never be committed
            raise taken(one.name, self._url)
        if one is fresh_only:
            raise taken(one.name, self._url)
        self._arrived(one, there)

    def _see_arrived(self, additions: Mapping[str, Addition], at: str) -> None:
        facts = self._hub.facts(additions, at=at)
        for name, addition in additions.items():
            fact = facts.get(name)
            if fact is None or not self._hub.holds(fact, addition):
                self._doomed.add(name)
                if fact is not None:
                    with suppress(StoreError):  # else the next commit deletes it
                        self._head = self._hub.commit([], [fact], parent=at)
                raise StoreUnavailable(
                    problem=f"{name!r} did not arrive in {self._url} as it was sent; it was deleted there.",
                    remedy="It is sent again by itself. If it keeps happening, name another repository.",
                )
            self._arrived(addition, fact)

    def _arrived(self, addition: Addition, fact: Fact) -> None:
        self._confirmed.learn(addition.name, addition.sha256)
        self._listings.wrote(addition.name, fact)
