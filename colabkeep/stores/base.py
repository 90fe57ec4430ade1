"""What a store must do. A new store is one file, one line in `colabkeep.stores`, and one subclass of the contract
suite; and what a store may need that only others know.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import BinaryIO, Final, Literal, Protocol, TypeAlias, cast

from colabkeep.core.errors import (
    ColabKeepError,
    NameTaken,
    ObjectNotFound,
    SecretError,
    StoreError,
    StoreFull,
    StoreUnavailable,
    UsageError,
)
from colabkeep.core.layout import RUN_FOLDERS
from colabkeep.core.rate_limits import Budget

__all__ = [
    "NEW_NAME",
    "UNCHANGED",
    "Behind",
    "BytesSource",
    "DurabilityLevel",
    "Entry",
    "Guard",
    "Inheriting",
    "Lock",
    "Needs",
    "NoLock",
    "Receipt",
    "Replicating",
    "Source",
    "Store",
    "StoreContext",
    "StoreProperties",
    "as_front",
    "changed",
    "check_name",
    "check_prefix",
    "explained",
    "inheriting",
    "is_below",
    "is_key_file",
    "is_name",
    "missing",
    "needs_of",
    "remade",
    "replicating",
    "rest",
    "run_of",
    "shown",
    "sides",
    "sign_in",
    "taken",
]

_URL = re.compile(r"([a-z][a-z0-9+.-]+:/{1,2})(.*)", re.IGNORECASE | re.DOTALL)  # with a slash forgotten, too
_KEY_FILE = re.compile(r"\{\s*\"|.*[\r\n]", re.DOTALL)


def is_key_file(text: str) -> bool:
    """Is it what is in a key file, rather than where one is?"""
    return _KEY_FILE.match(text.strip()) is not None


def shown(storage: object) -> str:
    """Of a URL the place alone: whatever is before an "@", or after "?" or "#", may be a secret. Of what is no string
    (credentials, a key file that was read), and of the text of a key file, its type."""
    if isinstance(storage, tuple | list):
        sides = ", ".join(map(shown, storage))
        return f"({sides})" if isinstance(storage, tuple) else f"[{sides}]"
    if not isinstance(storage, str):
        return f"<{type(storage).__name__}>"
    if is_key_file(storage):
        return f"<{type(storage).__name__} of {len(storage)} characters>"
    return repr(" + ".join(map(_place, storage.split(" + "))))


def to_type(storage: object) -> str:
    """What was written as ``storage=…``, to be written again, without what may be a secret; of an object, the word."""
    if isinstance(storage, tuple | list):
        return f"({', '.join(map(to_type, storage))})"
    path = os.fspath(storage) if isinstance(storage, os.PathLike) else storage
    return shown(path) if isinstance(path, str) and not is_key_file(path) else "storage"


def _place(side: str) -> str:
    """One side of a pair, or the only one."""
    url = _URL.fullmatch(side.strip())
    if url is None:
        return side
    _, at, rest = url[2].rpartition("@")
    place = re.split(r"[?#]", rest, maxsplit=1)[0]
    return f"{url[1]}{'…@' if at else ''}{place}{'?…' if place != rest else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreContext:
    """Handed in by whoever knows the platform; what is None is not to be had.

    `secret`: the value of the user's secret of a name; raises `SecretError` where there is none. `user`: make the
    page's user known to google-auth (Colab's `authenticate_user`); raises `PlatformError` where that cannot be done.
    Both may ask the notebook's page, so they are called on the main thread. `disk`: what lies in there is quick to
    reach, outlives the kernel and not the machine. `notes`: a small store in there, for what a store would like to know
    in the next kernel too. `remount`: mount the user's Drive again, if it is not well. It may
    be called on any thread: False where it cannot be done there and is left to another one. It raises `PlatformError`
    where it was in vain.
    """

    secret: Callable[[str], str] | None = None
    user: Callable[[], None] | None = None
    disk: Path | None = None
    notes: Callable[[], Store] | None = None
    remount: Callable[[], bool] | None = None

    def find_secret(self, name: str) -> str | None:
        """The value of that secret, None if there is none; whoever needs it says what then is to be done."""
        if self.secret is None:
            return None
        try:
            return self.secret(name)
        except SecretError:
            return None


# A store keeps *immutable named bytes*. A name is a relative path of one or more parts joined by "/", each part
# matching ``[A-Za-z0-9._-]+`` and not starting with a dot (`check_name`). A store:
#
# * MUST make an object appear under its name whole or not at all, whatever moment the process,
#   the machine or a single call dies. A reader never sees a part of it.
# * MUST NOT change, truncate, replace or rename over bytes that stand under a name. `put` on a
#   name that exists raises `NameTaken` and leaves the old bytes alone.
# * MUST leave no temporary file behind when `put` raises, for *any* exception, KeyboardInterrupt
#   included. What a SIGKILL leaves behind is removed by `sweep`.
# * MUST say truly how durable an object is (`Receipt.level`): "unknown" is an honest answer.
# * MUST translate foreign exceptions into `StoreError`s, keeping the cause: `StoreFull` for a full
#   disk or quota, `StoreUnavailable` where trying again may help, plain `StoreError` where not.
#
# **Threads.** `put`, `delete` and `confirm` are called by one writer thread; `get` and `list` may be called by other
# threads at the same time.
#
# **Retries.** The engine may call any method again after a `retryable` error. A store that talks to a network retries
# what it knows to be passing by itself, with a bound. A `put` that is tried again reads `Source.chunks()` from the
# start again.


DurabilityLevel: TypeAlias = Literal["local", "sent", "confirmed", "unknown"]
"""local: on this machine's disk; sent: handed to the remote; confirmed: the remote itself stated
the right digest; unknown: it is there as it was put, and the store cannot tell more. What is not is "local" at most."""

_CHUNK = 2**20  # bytes; `Source` promises no more than a few of these in one
_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


def is_name(text: str) -> bool:
    """Is it a legal object name (or prefix)?"""
    return len(text) <= 512 and all(_PART.fullmatch(part) for part in text.split("/"))


def check_name(name: str) -> str:
    """Return `name` if it is a legal object name (or prefix); it cannot leave the store then.

    Raises:
        UsageError: the name is empty, absolute, has an empty or dotted part or a foreign character.
    """
    if not is_name(name):
        raise UsageError(
            problem=f"{name[:100]!r} is not a name for an object in a store.",
            remedy="Use letters, digits, '.', '_' and '-', in parts joined by '/', no part starting with a dot.",
        )
    return name


def check_prefix(prefix: str) -> str:
    """The same for a prefix, which may be "" and then stands for all objects."""
    return check_name(prefix) if prefix else ""


def is_below(name: str, prefix: str) -> bool:
    """Does the name, or the prefix, lie below the prefix?"""
    return not prefix or name.startswith(f"{prefix}/")


def run_of(name: str) -> str:
    """The run to which an object belongs: `exp/lr1` for `exp/lr1/blobs/x` and for `exp/lr1/run.json`.

    What lies in no folder belongs to the run ""."""
    folder, _, _ = name.rpartition("/")
    above, _, last = folder.rpartition("/")
    return above if above and last in RUN_FOLDERS else folder


class Source(Protocol):
    """Bytes to be stored. `chunks` may be called again, from the start, when a put is tried again."""

    @property
    def size(self) -> int:
        """Bytes in all."""
        ...

    @property
    def sha256(self) -> str:
        """The hex digest of all bytes, computed at most once."""
        ...

    def chunks(self) -> Iterator[memoryview]:
        """The bytes in pieces of at most a few MiB, not copied; each is valid until the next is asked for."""
        ...


Needs: TypeAlias = Mapping[str, tuple[int, str]]
"""Other objects of a store: name → size in bytes and SHA-256."""


def needs_of(source: Source) -> Needs | None:
    """The objects without which this one is worth nothing, where its source has an attribute `needs`: it completes a
    whole, which needs nothing else where they are none. None: it is part of another's whole, or of no whole."""
    found: Needs | None = getattr(source, "needs", None)
    return found


class BytesSource:
    """A source of bytes that are in memory already (manifests, leases, probes). `needs`: as `needs_of` says."""

    def __init__(self, data: bytes, needs: Needs | None = None) -> None:
        self._data = data
        self.needs = needs

    @property
    def size(self) -> int:
        """Bytes in all."""
        return len(self._data)

    @cached_property
    def sha256(self) -> str:
        """The hex digest of the bytes."""
        import hashlib

        return hashlib.sha256(self._data).hexdigest()

    def chunks(self) -> Iterator[memoryview]:
        """The bytes, in pieces; nothing is one empty piece."""
        whole = memoryview(self._data)
        yield from (whole[at : at + _CHUNK] for at in range(0, len(whole) or 1, _CHUNK))


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """The slower side of a store that has two, and how far it has caught up.

    `free_bytes`: as in `StoreProperties`. `full`: what it refused last, it refused for want of room. `refuses`: why the
    last attempt failed, where no further one helps unless somebody does something there first. `waiting_bytes`
    are still to come, at `bytes_per_second` as measured lately (None: not yet). `sending` is the object that completes
    the whole on its way (`needs_of`): who deletes it now throws away what was sent of it. `account`, `budget`:
    as in `StoreProperties`.
    """

    url: str
    free_bytes: int | None = None
    full: bool = False
    refuses: StoreError | None = None
    waiting_bytes: int = 0
    bytes_per_second: float | None = None
    sending: str | None = None
    account: str | None = None
    budget: Budget | None = None


def sides(store: Store) -> tuple[Store, ...]:
    """The stores that this one is made of, the quick one first and the one that lasts last; itself where it is one."""
    made_of: tuple[Store, ...] = getattr(store, "sides", (store,))
    return made_of


def sign_in(store: Store) -> None:
    """Have the user asked now, on this thread, where a store has a `sign_in` method since its first request would ask.

    A notebook's page answers the main thread only: who lists or reads on another thread calls this before.

    Raises:
        UsageError: nobody is signed in, with what was tried.
    """
    ask: Callable[[], None] | None = getattr(store, "sign_in", None)
    if ask is not None:
        ask()


def as_front(store: Store) -> Store:
    """The same place, for copies of what is in another store, or on its way there: where it has an `as_front` method,
    and is a folder, that is made anew when somebody deletes it."""
    ask: Callable[[], Store] | None = getattr(store, "as_front", None)
    return store if ask is None else ask()


def remade(store: Store) -> int:
    """How often the folder of a store was deleted under it, and made anew, where a side of it has a number `remade`."""
    return sum(getattr(side, "remade", 0) for side in sides(store))


def rest(store: Store, *, urgent: bool) -> float:
    """Seconds until a store may be given another checkpoint, where it has a `rest` method since its service counts
    them; 0.0 for all others. `urgent`: somebody waits for it."""
    ask: Callable[..., float] | None = getattr(store, "rest", None)
    return 0.0 if ask is None else ask(urgent=urgent)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreProperties:
    """What a store can do, as data: code asks these, never "are you the Drive store?".

    `top_level` is the highest level an object can reach here. `persists`: does it outlive the
    machine (None: cannot be told). `locks`: `lock` tells a live holder from a dead one.
    `max_object_bytes`, `free_bytes`: bytes, None where unknown or unlimited. `lists_lag`: a fresh
    object may be missing from `list` for a while. `behind`: the slower side of a store that has two; then
    `free_bytes` are those of the faster one. `folder`: on this machine's own disk, where small files beside the objects
    may be replaced (`colabkeep.stores.shared.files`); None where there is none. `account`: who is signed in, as the
    service names them; None where nobody is, or it was not told. `versions`: what is put is sent with all the rest, as
    a version that stays: nothing is put here to try it out. `budget`: what the place takes for a time, where that is
    known.
    """

    top_level: DurabilityLevel
    persists: bool | None = None
    locks: bool = False
    max_object_bytes: int | None = None
    free_bytes: int | None = None
    lists_lag: bool = False
    behind: Behind | None = None
    folder: str | None = None
    account: str | None = None
    versions: bool = False
    budget: Budget | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What `put` achieved. `id` is the store's own handle, where it has one."""

    name: str
    size: int
    sha256: str
    level: DurabilityLevel
    id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One object in a listing; `size` in bytes."""

    name: str
    size: int


class Lock(Protocol):
    """Held until `release`, or until the process is gone."""

    def release(self) -> None:
        """Let go. Calling twice is harmless."""
        ...

    def __enter__(self) -> Lock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class NoLock(Lock):
    """The lock of a place that cannot lock: it refuses nobody."""

    def release(self) -> None:
        """Nothing to let go."""


class Store(Protocol):
    """A place for immutable named bytes. The obligations are on top of this page.

    What has a body here is true of most stores: one that inherits from this class says only what is different in it.
    """

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"  # in a URL is no secret

    @property
    def url(self) -> str:
        """How a user would name this place; opening it again gives the same objects."""
        ...

    @property
    def properties(self) -> StoreProperties:
        """Capabilities, asked for again when they may have changed (free space)."""
        ...

    @property
    def degraded(self) -> str | None:
        """What is out of order here and what that means, in a sentence for the user; None when all is well."""
        return None

    def put(self, name: str, source: Source) -> Receipt:
        """Store the bytes under a new name. When it returns, they are as durable as the receipt says.

        MUST read `source.chunks()` once per attempt and check that they add up to `source.size`.

        Raises:
            NameTaken: the name exists; its bytes are untouched.
            StoreFull: no space; nothing of this object is left.
            StoreError: anything else; nothing of this object is left.
        """
        ...

    def get(self, name: str) -> BinaryIO:
        """Open the object for reading, as a context manager, unbuffered or buffered.

        Raises:
            ObjectNotFound: there is no object of that name.
        """
        ...

    def doubt(self, name: str) -> bool:
        """The bytes that `get` gave for this name are not what was put. Is there another copy? If so, `get`
        and `list` answer with that one from now on, and this is True once; the doubted one is not touched."""
        return False

    def list(self, prefix: str) -> Iterable[Entry]:
        """The objects whose name starts with `prefix` + "/" (all objects if `prefix` is "").

        In any order. Never temporary files, foreign files with illegal names, or links. A prefix
        that nothing has is an empty listing, not an error.
        """
        ...

    def delete(self, name: str) -> None:
        """Remove the object. Removing what is not there is not an error."""
        ...

    def confirm(self, receipt: Receipt) -> Receipt:
        """Ask again how durable the object of `receipt` is now. Cheap; MUST NOT block on a network
        for more than a second. A store whose `put` reaches its top level returns the receipt as it is."""
        return receipt

    def lock(self, name: str, holder: str) -> Lock:
        """Hold `name` for this process; `holder` says who, for the next one to read.

        MUST be let go by the operating system when the process dies by any means, at once, also
        when its forked children live on; MUST refuse a second holder in the same process. Where
        that cannot be had (`properties.locks` is False) a lock that never refuses is returned.

        Raises:
            StoreBusy: a live process holds it; `StoreBusy.holder` is what that one wrote.
        """
        check_name(name)
        return NoLock()

    def sweep(self, prefix: str) -> int:
        """Remove temporary files that a killed writer left of the run `prefix`; return how many. "": of all runs.

        Called only while the caller holds the lock of that run. MUST touch nothing but this store's own temporary
        names, beside files of that very run (`run_of`): one that lies below it may be written right now.
        """
        check_prefix(prefix)
        return 0

    def flush(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds until every put object has its top level. True when so."""
        return True

    def close(self) -> None:
        """Let go of threads and connections. Objects stay. Calling twice is harmless."""
        return


Guard: TypeAlias = Callable[[], str | None]
"""Why a run must not be deleted from any more, the beginning of a sentence; None where it may."""


class Replicating(Store, Protocol):
    """A store that is local, and brings what it is given to a remote one behind it."""

    def unsent(self, run: str) -> Sequence[Entry]:
        """The objects of that run (`run_of`) that are local, and neither in the remote store nor on their way there.

        Raises:
            StoreError: one of the two cannot be listed.
        """
        ...

    def send(self, entry: Entry, needs: Needs | None) -> None:
        """Bring this one to the remote store as well, once anything is put. `needs`: as `needs_of` its source."""
        ...

    def guard(self, run: str, why_not: Guard) -> None:
        """From now on, ask this before anything of that run is deleted in the remote store, which may be hours after
        `delete`. The remote store was listed within the minute when it is asked, after a failure just now."""
        ...


class Inheriting(Store, Protocol):
    """A store that shows, beside its own objects, what earlier sessions left in others, which it never writes."""

    def inherited(self, run: str) -> Sequence[Entry]:
        """The objects of that run (`run_of`) that only the others have.

        Raises:
            StoreError: one of them cannot be listed.
        """
        ...

    def bring(self, name: str, expected: tuple[int, str] | None = None) -> None:
        """Copy an object here, from the first of the others that has the `expected` size and SHA-256 of it.

        Raises:
            CheckpointDamaged: none has those bytes.
            StoreError: the copy failed, or no other store has it.
        """
        ...

    def settle(self, run: str, left: str | None) -> None:
        """All of the run was brought, so the others are not asked for it any more; or why not, a sentence for
        `degraded`."""
        ...


def replicating(store: Store) -> Replicating | None:
    """The same, where it is one."""
    return cast("Replicating", store) if hasattr(store, "unsent") else None


def inheriting(store: Store) -> Inheriting | None:
    """The same, where it is one."""
    return cast("Inheriting", store) if hasattr(store, "inherited") else None


NEW_NAME = "Names are written once: choose another name, or delete the old object first."
UNCHANGED = "Its data changed while it was being saved: leave arrays and files alone until their save is done."


def taken(name: str, place: str) -> NameTaken:
    """The name has an object already."""
    return NameTaken(problem=f"{name!r} already exists in {place}; its bytes are untouched.", remedy=NEW_NAME)


def missing(name: str, place: str) -> ObjectNotFound:
    """The name has no object."""
    return ObjectNotFound(
        problem=f"There is no object {name!r} in {place}.",
        remedy="Look at what is there with `colabkeep list`: it may have been pruned, or storage= names another place.",
    )


def changed(name: str, announced: int, came: object) -> StoreError:
    """The source gave other bytes than it announced. `came`: how many."""
    return StoreError(
        problem=f"{name!r} should have {announced} bytes but has {came}, so it was not saved.",
        remedy=UNCHANGED,
    )


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_PASSING = {
    errno.EIO,  # a mounted drive answers so while its network is away
    errno.ESTALE,
    errno.ENOTCONN,  # "transport endpoint is not connected": the mount's own process has died
    errno.ECONNABORTED,
    errno.ECONNRESET,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.ETIMEDOUT,
    errno.EAGAIN,
    errno.EBUSY,
    errno.ENODEV,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
}


@contextmanager
def explained(root: str, doing: str, *, missing: type[StoreError] = StoreUnavailable) -> Iterator[None]:
    """Turn an `OSError` of the operating system into the `StoreError` it means.

    `doing` completes "could not …"; `missing` is what it means that a file or folder is not there.
    """
    try:
        yield
    except ColabKeepError:
        raise
    except OSError as error:
        said = os.strerror(error.errno) if error.errno else str(error)
        kind = missing if error.errno == errno.ENOENT else _kind(error)
        problem, remedy = _WORDS[kind]
        raise kind(
            problem=problem.format(root=root, doing=doing, said=said), remedy=remedy.format(root=root)
        ) from error


def _kind(error: OSError) -> type[StoreError]:
    if error.errno in _FULL:
        return StoreFull
    if error.errno in _PASSING or isinstance(error, ConnectionError):
        return StoreUnavailable
    if error.errno == errno.EEXIST:
        return NameTaken
    return StoreError


_WORDS: Final[Mapping[type[StoreError], tuple[str, str]]] = MappingProxyType(
    {
        StoreFull: (
            "No space is left in {root}: could not {doing} ({said}). What was saved before is untouched.",
            "Free space in {root}, keep fewer checkpoints (keep_last=1), or choose another storage=; "
            "saving resumes as soon as there is room.",
        ),
        StoreUnavailable: (
            "{root} does not answer: could not {doing} ({said}). What was saved before is untouched.",
            "This often passes by itself. If not, look whether {root} still exists and can be listed; "
            "if it is a mounted drive, mount it again.",
        ),
        NameTaken: (
            "Could not {doing} in {root}: the name exists already. Its bytes are untouched.",
            NEW_NAME,
        ),
        ObjectNotFound: (
            "Could not {doing}: there is no such object in {root}.",
            "Look at what is there with `colabkeep list`, and check that storage= names the right place.",
        ),
        StoreError: (
            "Could not {doing} in {root}: {said}.",
            "Check that {root} is an ordinary folder that you may write to, with no links in it (they are not "
            "followed, since they can lead out of it), or choose another storage=.",
        ),
    }
)
