"""The store in a repository on the Hugging Face Hub, and how a URL becomes one."""

from __future__ import annotations

import io
import math
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import BinaryIO

from colabkeep.core.errors import MissingDependency, NameTaken, ObjectNotFound, StoreError, StoreUnavailable, UsageError
from colabkeep.core.rate_limits import HUB, HUB_COMMITS, Limit
from colabkeep.stores.base import (
    DurabilityLevel,
    Entry,
    Receipt,
    Source,
    StoreContext,
    StoreProperties,
    check_name,
    shown,
)
from colabkeep.stores.fsspec.backend import Backend, Kind
from colabkeep.stores.fsspec.store import AnywhereStore
from colabkeep.stores.hub.huggingface import WORDS, Addition, Fact, Hub, Space, reads_as
from colabkeep.stores.shared.listings import Confirmed, Listings
from colabkeep.stores.shared.locks import NoLock
from colabkeep.stores.shared.retry import Asking, Patience, Throttled

__all__ = [
    "Allowance",
    "HuggingFaceStore",
    "open_url",
]

_AT_ONCE = 1 / 8  # of the limit: the first saves of a session, and those that somebody waits for
_LAST = 0.95  # of the limit: what somebody waits for goes on until then


class Allowance:
    """What was `spent` of a limit by this process, and for how long to `rest` before more of it is. An eighth may go at
    once; what follows is spread, so that no hour has a gap in which nothing is saved. `monotonic` gives seconds."""

    def __init__(self, limit: Limit, monotonic: Callable[[], float]) -> None:
        self._limit = limit
        self._monotonic = monotonic
        self._at_once = limit.most * _AT_ONCE
        self._apart = limit.seconds / (limit.most * (0.9 - _AT_ONCE))
        self._spent: deque[float] = deque()  # when, within the time of the limit
        self._level, self._since = 0.0, monotonic()  # of what was spent faster than it may be for ever
        self._closed_until = -math.inf

    def spent(self) -> None:
        """One more."""
        now = self._now()
        self._level = self._drained(now) + 1.0
        self._since = now
        self._spent.append(now)

    def refused(self, seconds: float) -> None:
        """The place wants to be left alone for so long."""
        self._closed_until = self._now() + seconds

    def rest(self, *, urgent: bool) -> float:
        """Seconds until the next one may be spent. `urgent`: somebody waits for it."""
        now = self._now()
        closed = self._closed_until - now
        if len(self._spent) >= self._limit.most * _LAST:
            return max(0.0, closed, self._spent[0] + self._limit.seconds - now)
        return max(0.0, closed, 0.0 if urgent else (self._drained(now) + 1.0 - self._at_once) * self._apart)

    def _drained(self, now: float) -> float:
        return max(0.0, self._level - (now - self._since) / self._apart)

    def _now(self) -> float:
        now = self._monotonic()
        while self._spent and self._spent[0] <= now - self._limit.seconds:
            self._spent.popleft()
        return now


# The Hub limits the commits an hour (`colabkeep.core.rate_limits.HUB`; huggingface/datasets #6257), and a commit of
# several files is one for all or none. So the bytes of a large `.safetensors` file are handed over by its `put`, which
# returns "sent", and its name is committed together with the next other file: for a checkpoint that is its manifest.
# The journal's segments wait likewise, in memory ("local"), and so do deletions: one save is one commit. What still
# waits when the process dies belongs to no checkpoint, and the Hub has its bytes already when it is put again. `flush`
# commits what waits. Within this process what waits is seen as done. `rest` tells when the next checkpoint may come.


_WAITS = ".safetensors"
_JOURNAL = re.compile(r"(?:.+/)?journal/[^/]+")
_LARGE = 12 * 2**20  # bytes; before sending so many it is worth a request to see that the name is free


class HuggingFaceStore:
    """Objects as files of a repository, which is made, private, when the first one is put.

    **Confirmed** means: after the commit the Hub listed the file with the SHA-256 of these bytes (a large file), or
    with their git digest (a small one). Of what another session put, the Hub states the same; a git digest is none
    that a checkpoint knows, so a small file is read once, and has to have that digest and the right SHA-256.

    **Written once.** A commit names the one it was made on top of, on which the names were seen to be free; the Hub
    refuses it when there is a newer one. Others' changes are seen some seconds late: see `Listings`.

    **Space.** The history keeps what was deleted, and it counts. So large files that were deleted are removed from the
    history too, unless the newest commit, another branch or a tag may need them.
    """

    def __init__(self, hub: Hub, url: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._hub = hub
        self._url = url
        self._turn = threading.RLock()  # held while committing
        self._head: str | None = None
        self._waiting: dict[str, Addition] = {}  # additions by name
        self._doomed: set[str] = set()  # names
        self._listings = Listings(self._find, monotonic)
        self._confirmed = Confirmed()
        self._space = Space(hub, url)
        self._allowance = Allowance(HUB_COMMITS, monotonic)

    @property
    def url(self) -> str:
        return self._url

    @property
    def properties(self) -> StoreProperties:
        # huggingface.co/docs/hub/storage-limits: files up to 50 GB can be handed over by HTTP
        return StoreProperties(top_rung="confirmed", persists=True, max_object_bytes=50 * 10**9, budget=HUB)

    @property
    def degraded(self) -> str | None:
        return self._space.trouble

    def put(self, name: str, source: Source) -> Receipt:
        check_name(name)
        self._refuse_known(name)
        self._see_repository()
        waits, rides = name.endswith(_WAITS), _JOURNAL.fullmatch(name) is not None
        if (waits or rides or source.size > _LARGE) and name not in self._doomed and self._hub.facts([name]):
            raise _taken(name, self._url)
        addition = self._hub.upload(name, source)
        waits = (waits and addition.uploaded) or rides
        with self._turn:
            self._refuse_known(name)
            if waits:
                self._waiting[name] = addition
            else:
                self._commit(addition)
        rung: DurabilityLevel = "confirmed" if not waits else "sent" if addition.uploaded else "local"
        return Receipt(name=name, size=source.size, sha256=source.sha256, rung=rung)

    def get(self, name: str) -> BinaryIO:
        check_name(name)
        if (waiting := self._waiting.get(name)) is not None:
            if waiting.data is not None:
                return io.BytesIO(waiting.data)
            with self._turn:
                self._commit()
        fact = None if name in self._doomed else self._fact(name)
        if fact is None:
            raise ObjectNotFound(
                problem=f"There is no object {name!r} in {self._url}.",
                remedy="See `colabkeep show`: it may have been pruned.",
            )
        return self._hub.reader(fact)

    def doubt(self, name: str) -> bool:
        return False  # there is one copy only

    def list(self, prefix: str) -> Sequence[Entry]:
        start = f"{check_name(prefix)}/" if prefix else ""
        waiting, doomed = dict(self._waiting), set(self._doomed)  # first: they may be committed meanwhile
        sizes = {name: fact.size for name, fact in self._listings.below(prefix).items() if name not in doomed}
        sizes |= {name: addition.size for name, addition in waiting.items() if name.startswith(start)}
        return [Entry(name=name, size=size) for name, size in sizes.items()]

    def delete(self, name: str) -> None:
        check_name(name)
        with self._turn:
            self._confirmed.forget(name)
            if self._waiting.pop(name, None) is None:
                self._doomed.add(name)

    def confirm(self, receipt: Receipt) -> Receipt:
        open_yet = receipt.name in self._waiting or receipt.name in self._doomed
        return receipt if open_yet else self._confirmed.answer(receipt, self._states)

    def rest(self, *, urgent: bool) -> float:
        """As `colabkeep.stores.base.rest` says."""
        return self._allowance.rest(urgent=urgent)

    def lock(self, name: str, holder: str) -> NoLock:
        check_name(name)
        return NoLock()

    def sweep(self, prefix: str) -> int:
        if prefix:
            check_name(prefix)
        return 0  # bytes that no commit names are not seen by anybody, and cleared away by the Hub

    def flush(self, timeout: float) -> bool:
        with self._turn:
            more = bool(self._waiting or self._doomed) and self._allowance.rest(urgent=True) <= 0.0
            if more and timeout > 0:  # a commit that has begun is seen through
                self._commit()
            return not (self._waiting or self._doomed)

    def close(self) -> None:
        """Nothing is held. What waits for a commit is forgotten, as it is when the process dies; `flush` first."""

    def _find(self, prefix: str) -> dict[str, Fact]:
        """All objects below the prefix; what another session deleted is not called confirmed any more."""
        found: dict[str, Fact] = {}
        with suppress(ObjectNotFound):
            found = {fact.name: fact for fact in self._hub.tree(prefix) if _is_legal(fact.name)}
        self._confirmed.listed(prefix, found)
        return found

    def _states(self, receipt: Receipt) -> bool | None:
        """Does the Hub state the bytes of the receipt? None: that cannot be told within a second or two."""
        fact = self._listings.known(receipt.name) or self._hub.glance(receipt.name)
        if fact is None or fact.size != receipt.size:
            return None if fact is None else False
        return reads_as(self._hub, fact, receipt.sha256) if fact.sha256 is None else fact.sha256 == receipt.sha256

    def _see_repository(self) -> None:
        with self._turn:
            if self._head is None:
                try:
                    self._head = self._hub.head()
                except ObjectNotFound:
                    self._hub.create()
                    self._head = self._hub.head()

    def _commit(self, addition: Addition | None = None) -> None:
        """Commit what waits, and the addition.

        Raises:
            NameTaken: the addition's name exists; what waited still waits.
            StoreError: it could not be done.
        """
        before = self._hub.hiccups
        additions = {**self._waiting, **({addition.name: addition} if addition else {})}

        def attempt() -> None:
            ours_may_be_there = self._hub.hiccups > before
            try:
                self._attempt(additions, addition, ours_may_be_there)
            except StoreUnavailable as error:
                self._head = None  # whoever was faster, or our own commit whose answer got lost
                if isinstance(error, Throttled):
                    self._allowance.refused(error.seconds)
                raise

        try:
            self._hub.patience(attempt)
        except BaseException:
            self._listings.forget(*additions, *self._doomed)
            raise
        if self._space.give_back(addition.sha256 for addition in self._waiting.values()):
            self._head = None  # the history was written anew

    def _attempt(self, additions: dict[str, Addition], wanted: Addition | None, ours_may_be_there: bool) -> None:
        head = self._head or self._hub.head()
        there = self._hub.facts([*additions, *self._doomed], at=head)
        fresh = {name: one for name, one in additions.items() if name not in there or name in self._doomed}
        for name in additions.keys() - fresh.keys():
            self._see_ours(additions[name], there[name], wanted, ours_may_be_there)
            self._listings.wrote(name, there[name])
        doomed = self._doomed & there.keys()
        if fresh or doomed:
            self._allowance.spent()
            self._head = self._hub.commit(fresh.values(), doomed - fresh.keys(), parent=head)
            self._see_arrived(fresh, self._head)
        self._space.deleted(digest for name in doomed if (digest := there[name].sha256))
        for name in self._doomed - additions.keys():
            self._listings.deleted(name)
        self._doomed.clear()
        for name in additions:
            self._waiting.pop(name, None)

    def _see_ours(self, one: Addition, there: Fact, wanted: Addition | None, ours_may_be_there: bool) -> None:
        """That a name which is there already stands for these very bytes.

        Raises:
            NameTaken: it does not; or it does, and nothing that we did can be the reason.
        """
        if not one.is_there(there):
            self._waiting.pop(one.name, None)  # it can never be committed
            raise _taken(one.name, self._url)
        if one is wanted and not ours_may_be_there:
            raise _taken(one.name, self._url)
        self._confirmed.learn(one.name, one.sha256)

    def _see_arrived(self, additions: dict[str, Addition], at: str) -> None:
        facts = self._hub.facts(additions, at=at)
        for name, addition in additions.items():
            if name not in facts or not addition.is_there(facts[name]):
                self._doomed.add(name)
                raise StoreError(
                    problem=f"{name!r} did not arrive in {self._url} as it was sent.", remedy="Save again."
                )
            self._confirmed.learn(name, addition.sha256)
            self._listings.wrote(name, facts[name])

    def _fact(self, name: str) -> Fact | None:
        with suppress(ObjectNotFound):
            return self._hub.facts([name]).get(name)
        return None

    def _refuse_known(self, name: str) -> None:
        if name in self._waiting:
            raise _taken(name, self._url)


def _taken(name: str, url: str) -> NameTaken:
    return NameTaken(
        problem=f"{name!r} exists already in {url}; its bytes are untouched.",
        remedy="Names are written once: choose another name, or delete the old object first.",
    )


def _is_legal(name: str) -> bool:
    with suppress(UsageError):
        return bool(check_name(name))
    return False


_PART = r"[A-Za-z0-9_-][A-Za-z0-9._-]*"
_PLACE = re.compile(rf"hf://(?P<bucket>buckets/)?(?P<id>{_PART}/{_PART})(?:/(?P<folder>{_PART}(?:/{_PART})*))?/?")

_KINDS = ("buckets/", "datasets/", "spaces/", "kernels/")  # not an owner, but what kind of thing follows

_BUCKET = Kind(lists_lag=True, words=WORDS)


def open_url(
    url: str,
    context: StoreContext = StoreContext(),
    *,
    token: str | None = None,
    endpoint: str | None = None,
    patience: Patience | None = None,
    deadline: float | None = None,
) -> HuggingFaceStore | AnywhereStore:
    """The store at a hf:// URL. Nothing is contacted yet, but for Colab's secrets, which may ask the user.

    `token` is looked for by huggingface_hub where none is given (HF_TOKEN, its own file, Colab's secrets), then among
    the platform's secrets. That is done here and now because Colab answers the main thread only. It is kept in memory,
    nowhere else. `endpoint` is another Hub than huggingface.co, or what HF_ENDPOINT says. `deadline`: after how many
    seconds without any progress a request is given up.

    Raises:
        UsageError: it names no repository or bucket.
        MissingDependency: huggingface_hub is not installed, or too old.
    """
    match = _PLACE.fullmatch(url.strip())
    if match is None or (not match["bucket"] and match["id"].startswith(_KINDS)):
        raise UsageError(
            problem=f"storage={shown(url)} names no repository of models and no bucket on the Hugging Face Hub.",
            remedy="Write hf://owner/name, or hf://owner/name/folder, the owner being your user name there.",
        )
    try:
        from huggingface_hub import get_token, list_lfs_files  # noqa: F401 - the second one is what old ones lack
    except ImportError as error:
        raise MissingDependency(
            problem=f"The store for hf:// cannot be loaded: {error}.", remedy='Run: pip install "colabkeep[hf]"'
        ) from error
    token = token or get_token() or context.find_secret("HF_TOKEN")
    address, folder = url.strip().rstrip("/"), match["folder"] or ""
    if not match["bucket"]:
        hub = Hub(match["id"], folder, token=token, endpoint=endpoint, patience=patience, deadline=deadline or 120.0)
        return HuggingFaceStore(hub, address)

    def reach() -> Backend:
        from colabkeep.stores.fsspec.filesystem import BucketBackend

        ask = Asking(address, WORDS, patience or Patience(), one_at_a_time=True)
        return BucketBackend.at(match["id"], folder, token=token, endpoint=endpoint, ask=ask)

    return AnywhereStore(address, _BUCKET, reach)
