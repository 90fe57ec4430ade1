"""What the store behind has: as of its last listing, and of what this process has done there since.

Once it has answered, and something was put, nobody waits for it any more: answers come from memory, and a thread of
its own looks again when a listing is asked for that is older than a minute. What others have done there is seen then:
a newer session, or an object that is gone.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from colabkeep.stores._carrier import Carrier
from colabkeep.stores._copier import Copier
from colabkeep.stores._patience import within
from colabkeep.stores.base import Entry, Receipt, Store, run_of, sign_in
from colabkeep.vocabulary.errors import StoreError, StoreUnavailable

__all__ = ["Known"]

_LEASE = re.compile(r"(.+)/lease/(\d{6,12})-([0-9a-f]{8})\.json")
_FRESH = 60.0  # seconds; how soon a session hears of another one that took its run over
_FRESH_AT_FIRST = 10.0  # seconds, before anything is put: opening a run lists it several times
_LAG = 120.0  # seconds that a listing may be behind what was put or deleted; the service gives no figure
_FIRST = 25.0  # seconds for the first answer: one that takes longer is as good as none to who waits for a training
_STOP_SECONDS = 1.0

Leader = tuple[int, str]
"""Fencing number and session."""


class Known:
    """`front_sizes` tells, for a prefix, what could be sent again: name → size in bytes."""

    def __init__(
        self,
        behind: Store,
        copier: Copier,
        carrier: Carrier,
        *,
        front_sizes: Callable[[str], Mapping[str, int]],
        monotonic: Callable[[], float],
    ) -> None:
        self._behind = behind
        self._copier = copier
        self._carrier = carrier
        self._front_sizes = front_sizes
        self._monotonic = monotonic
        self._looking = threading.Lock()  # one look at a time
        self._guard = threading.Lock()  # of what follows
        self._entries: dict[str, Entry] = {}
        self._shown: dict[str, float] = {}  # when a listing showed it last
        self._forgotten: dict[str, float] = {}  # when it was given to be deleted
        self._prefixes: set[str] = set()
        self._leaders: dict[str, Leader] = {}  # of each run, as this process knew it when it began to write
        self._written: set[str] = set()  # the runs that this process writes: what becomes of others is not told
        self._looked_at = -math.inf
        self._looker: threading.Thread | None = None
        self._closed = False
        self.overtaken: dict[str, str] = {}  # run → which newer session has it
        self.trouble: str | None = None

    def list(self, prefix: str) -> Sequence[Entry]:
        """The objects behind, without those that are to be deleted there.

        Raises:
            StoreError: it cannot be listed, and never could be.
        """
        if not self._covers(prefix):
            self._first_look(prefix)
        elif self._copier.running:
            if not self._is_fresh(_FRESH):
                self._look_soon()
        elif not self._is_fresh(_FRESH_AT_FIRST):
            try:
                self.look()
            except StoreError as error:
                if not error.retryable:
                    raise
        arrived = self._carrier.sizes()
        with self._guard:
            arrived = {name: size for name, size in arrived.items() if name not in self._forgotten}
            known = {name: Entry(name=name, size=size) for name, size in arrived.items()} | self._entries
            return [entry for entry in known.values() if _below(entry.name, prefix)]

    def has(self, name: str) -> bool:
        """Is it believed to be there?"""
        return name in self._entries or name in self._carrier.arrivals()

    def receipt(self, receipt: Receipt) -> Receipt | None:
        """The receipt as of an object behind, if it is believed to be there and nothing speaks against it."""
        entry = self._entries.get(receipt.name)
        if entry is None or entry.size != receipt.size or receipt.name in self._carrier.stuck:
            return None
        if receipt.name in self._copier.pending():
            return None
        return Receipt(name=receipt.name, size=receipt.size, sha256=receipt.sha256, rung="sent")

    def put(self, name: str) -> None:
        """This process has put it in front: a lease of its own is not taken for somebody else's."""
        with self._guard:
            self._forgotten.pop(name, None)
            self._written.add(run_of(name))
            lease = _LEASE.fullmatch(name)
            if lease is not None:
                self._leaders[lease[1]] = max(self._leaders.get(lease[1], (0, "")), _leader(lease))

    def forget(self, name: str) -> None:
        """It is to be deleted."""
        with self._guard:
            self._forgotten[name] = self._monotonic()
            self._entries.pop(name, None)

    def doubt(self) -> None:
        """What was seen last may not be so any more: look before it is relied on."""
        self._looked_at = -math.inf

    def may_delete(self, name: str, doubtful: bool) -> bool:
        """Is the run still this process's, as of a look that is no older than a minute, or, where it is `doubtful`
        whether the store was there meanwhile, of one that is made now?

        Raises:
            StoreError: it could not be seen.
        """
        if doubtful or not self._is_fresh(_FRESH):
            self.look()
        return run_of(name) not in self.overtaken

    def look(self) -> None:
        """List all that was ever listed again.

        Raises:
            StoreError: it does not answer; what was known is kept.
        """
        with self._looking:
            self._look(_outermost(self._prefixes))

    def close(self) -> None:
        """Look no more."""
        with self._guard:
            self._closed = True
            looker = self._looker
        if looker is not None:
            looker.join(_STOP_SECONDS)

    def _covers(self, prefix: str) -> bool:
        with self._guard:
            return any(prefix == known or _below(prefix, known) for known in self._prefixes)

    def _is_fresh(self, seconds: float) -> bool:
        return self._monotonic() - self._looked_at <= seconds

    def _first_look(self, prefix: str) -> None:
        def look() -> None:
            with self._looking:
                self._look([prefix])

        sign_in(self._behind)
        try:
            within(_FIRST, look)
        except TimeoutError:
            problem = f"{self._behind.url} has not answered for {_FIRST:.0f} seconds."
            raise StoreUnavailable(problem=problem, remedy="See that it can be reached, and run again.") from None

    def _look_soon(self) -> None:
        """On a thread of its own: a store that does not answer may take minutes to say so, and the copier, with an
        hour of sending before it, may not look in time."""
        with self._guard:
            if self._closed or (self._looker is not None and self._looker.is_alive()):
                return
            self._looker = threading.Thread(target=self._look_and_tell, name="colabkeep-looker", daemon=True)
            self._looker.start()

    def _look_and_tell(self) -> None:
        try:
            self.look()
        except StoreError as error:
            self.trouble = error.problem
        except Exception as error:  # noqa: BLE001  # shown: a thread has no caller
            self.trouble = f"{type(error).__name__}: {error}"

    def _look(self, prefixes: Iterable[str]) -> None:
        began = self._monotonic()
        try:
            for prefix in prefixes:
                self._learn(prefix, tuple(self._behind.list(prefix)), began)
        except StoreError as error:
            self.trouble = error.problem
            raise
        finally:
            self._looked_at = self._monotonic()  # a failure too: the next attempt is a minute away
        self.trouble = None

    def _learn(self, prefix: str, found: Sequence[Entry], began: float) -> None:
        arrived = {name: at for name, at in self._carrier.arrivals().items() if _below(name, prefix)}
        pending = self._copier.pending()
        with self._guard:
            if self._closed:
                return
            self._forgotten = {name: at for name, at in self._forgotten.items() if began - at <= _LAG}
            seen = {entry.name: entry for entry in found}
            believed = {name: self._shown.get(name, -math.inf) for name in self._entries if _below(name, prefix)}
            for name, at in arrived.items():
                believed[name] = max(at, believed.get(name, -math.inf))
            missing = {name for name in believed.keys() - seen.keys() if pending.get(name) is None}
            gone = {name for name in missing if began - believed[name] > _LAG}
            late = {name: self._entries[name] for name in (missing - gone) & self._entries.keys()}
            shown = {
                name: entry
                for name, entry in seen.items()
                if pending.get(name) != "delete" and name not in self._forgotten
            }
            self._entries = {n: e for n, e in self._entries.items() if not _below(n, prefix)} | late | shown
            self._shown = {n: at for n, at in self._shown.items() if n in self._entries} | dict.fromkeys(shown, began)
            self._prefixes.add(prefix)
            self._see_leases(seen)
        self._copier.found(seen.keys() | arrived.keys(), gone)
        if gone:
            self._send_again(gone, prefix)

    def _see_leases(self, names: Iterable[str]) -> None:
        highest: dict[str, Leader] = {}
        for lease in filter(None, map(_LEASE.fullmatch, names)):
            highest[lease[1]] = max(highest.get(lease[1], (0, "")), _leader(lease))
        for run, leader in highest.items():
            if leader > self._leaders.setdefault(run, leader) and run in self._written:
                self.overtaken[run] = leader[1]

    def _send_again(self, gone: set[str], prefix: str) -> None:
        """Somebody else has removed them, or they never got there: what this machine has is brought once more."""
        here = self._front_sizes(prefix)
        for name in sorted(name for name in gone if not _below(run_of(name), prefix) or not prefix):
            receipt = self._carrier.lose(name)
            if name in here:
                sha256 = "" if receipt is None else receipt.sha256
                self._copier.copy(Receipt(name=name, size=here[name], sha256=sha256, rung="local"))


def _outermost(prefixes: Iterable[str]) -> list[str]:
    found = set(prefixes)
    return sorted(prefix for prefix in found if not any(_below(prefix, other) and prefix != other for other in found))


def _leader(lease: re.Match[str]) -> Leader:
    return int(lease[2]), lease[3]


def _below(name: str, prefix: str) -> bool:
    return not prefix or name.startswith(f"{prefix}/")
