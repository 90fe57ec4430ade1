"""The store at any place that fsspec or obstore reaches, and how a URL becomes one."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import Any, BinaryIO

from colabkeep.core.errors import MissingDependency, NameTaken, ObjectNotFound, StoreError, StoreUnavailable, UsageError
from colabkeep.core.timeouts import within
from colabkeep.stores.base import (
    UNCHANGED,
    DurabilityLevel,
    Entry,
    Receipt,
    Source,
    StoreProperties,
    check_name,
    check_prefix,
    shown,
    taken,
)
from colabkeep.stores.fsspec.backend import OTHER, Backend, Kind, block_size, kind_of, restated, stated
from colabkeep.stores.shared.listings import RemoteStore
from colabkeep.stores.shared.retry import Asking, Patience
from colabkeep.stores.shared.streaming import Tally, chunks, digest_of, ranged

_MOMENT = 1.0  # seconds that a question about durability may take
_SMALL = 2**20  # bytes that can be read in such a moment


class FsspecStore(RemoteStore[Entry]):
    """Objects at `url`, by the backend that `reach` makes when the first one is asked for.

    How durable is told as follows. On this machine: "local". Where the service states a digest (S3's ETag, Google's
    MD5) it is compared with what was sent, and is "confirmed" when equal. An ETag need not be a digest (with keys of
    one's own it is not): then the object is read back once, and if it is whole, this place's word is not asked for
    any more, and its objects are "sent". Where nothing is stated they are "sent" too.

    What another session put is "confirmed" when the service states a digest that belongs to the SHA-256 in question,
    by the notes of whoever wrote it (see `backend`); or, where there are none, when it is small and was read back.
    Of a large object without notes only the size can be seen: it stays "sent". Each is asked about once.
    """

    def __init__(
        self, url: str, kind: Kind, reach: Callable[[], Backend], *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(url, monotonic, whole_runs=kind.flat)
        self._kind = kind
        self._reach = reach
        self._monotonic = monotonic
        self._states_digest = kind.digest != "none"
        self._guard = threading.Lock()  # of `_backend`
        self._backend: Backend | None = None
        self._unsure: dict[str, Tally] = {}  # sent, and nobody could be asked about it yet

    @property
    def properties(self) -> StoreProperties:
        return StoreProperties(
            top_level=self._top_level(), persists=self._kind.persists, lists_lag=self._kind.lists_lag
        )

    def put(self, name: str, source: Source) -> Receipt:
        check_name(name)
        backend, tally = self._at_work(), Tally()
        if not self._listings.lacks(name):
            self._refuse_taken(backend, name)
        try:
            level = self._sent(backend, name, source, tally)
        except BaseException:
            self._listings.forget(name)
            raise
        self._listings.wrote(name, Entry(name=name, size=tally.size))
        self._confirmed.forget(name)
        if level == "confirmed":
            self._confirmed.learn(name, tally.sha256)
        return Receipt(name=name, size=tally.size, sha256=tally.sha256, level=level)

    def get(self, name: str) -> BinaryIO:
        check_name(name)
        backend = self._at_work()
        return ranged(int(backend.stat(name)["size"]), lambda start, end: backend.read(name, start, end))

    def delete(self, name: str) -> None:
        check_name(name)
        try:
            self._at_work().remove(name)
        except BaseException:
            self._listings.forget(name)
            raise
        self._listings.deleted(name)
        self._unsure.pop(name, None)
        self._confirmed.forget(name)

    def confirm(self, receipt: Receipt) -> Receipt:
        return receipt if self._top_level() != "confirmed" else super().confirm(receipt)

    def sweep(self, prefix: str) -> int:
        return self._at_work().sweep(check_prefix(prefix))

    def flush(self, timeout: float) -> bool:
        end = self._monotonic() + timeout
        for name, tally in list(self._unsure.items()):
            if self._monotonic() >= end:
                break
            del self._unsure[name]
            if self._level(self._at_work(), name, tally) == "confirmed":
                self._confirmed.learn(name, tally.sha256)
        return not self._unsure

    def close(self) -> None:
        with self._guard:
            self._backend = None

    def _at_work(self) -> Backend:
        with self._guard:
            if self._backend is None:
                self._backend = self._reach()
            return self._backend

    def _find(self, prefix: str) -> Iterator[Entry]:
        return (Entry(name=name, size=size) for name, size in self._at_work().find(prefix))

    def _sent(self, backend: Backend, name: str, source: Source, tally: Tally) -> DurabilityLevel:
        try:
            backend.send(name, source, self._watched(backend, name, source, tally))
        except NameTaken:
            if not tally.ended or self._is_there(backend, name, tally) is not True:
                raise  # else an answer got lost, some libraries ask again unnoticed, and what has the name is our own
        return self._level(backend, name, tally)

    def _states(self, receipt: Receipt) -> bool | None:
        backend = self._at_work()

        def look() -> bool:
            info = backend.stat(receipt.name, again=False)
            if int(info["size"]) != receipt.size:
                return False
            if restated(info, self._kind.digest, receipt.sha256):
                return True
            return receipt.size <= _SMALL and _reads_back(backend, receipt.name, receipt)

        try:
            return within(_MOMENT, look)
        except (StoreError, TimeoutError):
            return None  # it is asked again

    def _watched(self, backend: Backend, name: str, source: Source, tally: Tally) -> Iterator[memoryview]:
        """The chunks, hashed; and before the last one, which publishes the object, a last look."""
        for chunk in chunks(name, source, block_size(source.size)):
            tally.add(chunk.data)
            if chunk.is_last:
                if tally.sha256 != source.sha256:
                    problem = f"The bytes of {name!r} are not those that were captured; it is not kept."
                    raise StoreError(problem=problem, remedy=f"{UNCHANGED} The next save starts afresh.")
                self._refuse_taken(backend, name)
                tally.ended = True
            if len(chunk.data):
                yield chunk.data

    def _refuse_taken(self, backend: Backend, name: str) -> None:
        with suppress(ObjectNotFound):
            backend.stat(name)
            raise taken(name, self._url)

    def _top_level(self) -> DurabilityLevel:
        if not self._kind.remote:
            return "local"
        return "confirmed" if self._states_digest else "sent"

    def _level(self, backend: Backend, name: str, tally: Tally) -> DurabilityLevel:
        """How durable what was just sent is.

        Raises:
            StoreUnavailable: it arrived changed, and was removed.
        """
        try:
            there = self._is_there(backend, name, tally)
        except StoreUnavailable:
            self._unsure[name] = tally
            return "sent" if self._kind.remote else "unknown"
        if there is False:
            backend.remove(name)
            self._listings.forget(name)
            raise StoreUnavailable(
                problem=f"{name!r} did not arrive in {self._url} as it was sent; it was removed there.",
                remedy="It is sent again by itself.",
            )
        if not self._kind.remote:
            return "local"
        return "confirmed" if there else "sent"

    def _is_there(self, backend: Backend, name: str, tally: Tally) -> bool | None:
        """Does the place have these very bytes? None: they are as many, and it does not say more."""
        info = backend.stat(name)
        if int(info["size"]) != tally.size:
            return False
        said = stated(info, self._kind.digest, tally) if self._states_digest else None
        if said is not False:
            return said
        whole = _reads_back(backend, name, tally)
        self._states_digest = self._states_digest and not whole
        return whole


def _reads_back(backend: Backend, name: str, sent: Tally | Receipt) -> bool:
    """Are these the bytes that the place gives?"""
    return digest_of(ranged(sent.size, lambda start, end: backend.read(name, start, end))) == sent.sha256


_FORCED = "fsspec+"
"""Before the scheme: fsspec's own file system, although colabkeep has a store for that scheme (fsspec+memory://)."""

_SECRET = re.compile(r"[^/@]*:[^/@]*@")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def open_url(url: str, *, patience: Patience | None = None) -> FsspecStore | None:
    """The store at a URL such as "s3://bucket/folder"; None if fsspec knows no such scheme. Nothing is contacted yet.
    Credentials come from where the service's own tools look for them.

    Raises:
        UsageError: the URL holds a password or options, or names no bucket.
        MissingDependency: the package for this scheme is not installed.
    """
    address = url.strip().rstrip("/")
    protocol, _, rest = address.partition(":")
    protocol, rest = protocol.lower().removeprefix(_FORCED), rest.removeprefix("//")
    kind = kind_of(protocol)
    try:
        import fsspec
    except ImportError as error:
        if kind is OTHER:
            return None
        raise _missing(protocol, error, kind) from error
    if protocol not in fsspec.available_protocols():
        return None
    _check(url, rest)
    if kind.flat and _BUCKET.fullmatch(rest.partition("/")[0]) is None:
        problem = f"storage={shown(url)} names no bucket: its name comes right after the two slashes."
        raise UsageError(problem=problem, remedy=f"Write it as {protocol}://bucket/folder.")
    patience = patience or Patience()
    asking = Asking(address, kind.words, patience, one_at_a_time=not kind.flat)
    if kind.digest == "etag":
        if find_spec("obstore") is None:
            raise _missing(protocol, ImportError("there is no package obstore"), kind)
        return FsspecStore(address, kind, partial(_obstore, rest, asking, patience))
    try:
        fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        raise _missing(protocol, error, kind) from error
    return FsspecStore(address, kind, partial(_file_system, f"{protocol}://{rest}", kind, asking))


def _missing(protocol: str, error: ImportError, kind: Kind) -> MissingDependency:
    problem = f"The store for {protocol}:// cannot be loaded: {error}."
    return MissingDependency(problem=problem, remedy=kind.words.install)


def _check(url: str, rest: str) -> None:
    if _SECRET.match(rest):
        raise UsageError(
            problem="The URL in storage=… holds a password, which would then stand in logs and journals.",
            remedy="Leave it out, and let the service's own environment variables or key files say it.",
        )
    if "?" in rest or "#" in rest or "::" in url:
        raise UsageError(
            problem="The URL in storage=… holds more than a place: options after '?' or '#', or a chain with '::'.",
            remedy='Write the place alone, such as "s3://bucket/folder"; options are set by environment variables.',
        )


def _file_system(address: str, kind: Kind, ask: Asking) -> Backend:
    from fsspec.core import url_to_fs

    from colabkeep.stores.fsspec.filesystem import FolderBackend, GoogleBackend

    options: dict[str, Any] = {**kind.options, "skip_instance_cache": True}
    fs, root = ask("be reached", lambda: url_to_fs(address, **options))
    return (GoogleBackend if kind.flat else FolderBackend)(fs, root, ask)


def _obstore(rest: str, ask: Asking, patience: Patience) -> Backend:
    from obstore.store import from_url

    from colabkeep.stores.fsspec.objects import ObstoreBackend

    bucket, _, root = rest.partition("/")
    again = patience.attempts - 1  # for the parts of an upload, which only obstore itself can send again
    # A signed request's body has to have the digest that was signed: S3 compares each part as it arrives.
    options: dict[str, Any] = {"retry_config": {"max_retries": again}, "unsigned_payload": False}
    place = ask("be reached", lambda: from_url(f"s3://{bucket}", **options))
    return ObstoreBackend(place, root, ask)
