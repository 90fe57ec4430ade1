"""What a remote store is believed to hold: as it was listed last, as it has arrived since, without what is to go."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from colabkeep.core.errors import StoreError, StoreUnavailable
from colabkeep.core.timeouts import within
from colabkeep.stores.base import Entry, Receipt, Store, is_below, sign_in

_LAG = 120.0  # seconds that a listing may be behind what was put or deleted; the service gives no figure
_FIRST = 25.0  # seconds for the first answer: one that takes longer is as good as none to who waits for a training


class RemoteIndex:
    """Asked and changed by any thread. `trouble`: why the last listing failed."""

    def __init__(self, remote: Store, monotonic: Callable[[], float]) -> None:
        self._remote = remote
        self._monotonic = monotonic
        self._listing = threading.Lock()  # one at a time
        self._guard = threading.Lock()  # of what follows
        self._entries: dict[str, Entry] = {}
        self._shown: dict[str, float] = {}  # when a listing showed it last
        self._arrived: dict[str, float] = {}  # when it was brought there
        self._receipts: dict[str, Receipt] = {}  # what was said of it last, of what was brought or asked about
        self._doomed: set[str] = set()  # to be deleted
        self._deleted: dict[str, float] = {}  # when that was done: a listing may show it for a while
        self._prefixes: set[str] = set()  # what was ever listed
        self._looked_at = -math.inf
        self._stuck: dict[str, tuple[str, bool]] = {}  # why; did it go with the local folder, which is told once?
        self._refused: dict[str, str] = {}
        self.trouble: str | None = None

    def knows(self, prefix: str) -> bool:
        """Was it listed?"""
        with self._guard:
            return any(prefix == known or is_below(prefix, known) for known in self._prefixes)

    def is_fresh(self, seconds: float) -> bool:
        """Was it listed in these last seconds, and is there no reason to doubt what was seen?"""
        return self._monotonic() - self._looked_at <= seconds

    def doubt(self) -> None:
        """What was seen last may not be so any more."""
        self._looked_at = -math.inf

    def entries(self, prefix: str) -> dict[str, Entry]:
        """The objects, without those that are to be deleted."""
        with self._guard:
            found = {name: Entry(name=name, size=self._receipts[name].size) for name in self._arrived} | self._entries
            return {name: entry for name, entry in found.items() if is_below(name, prefix)}

    def has(self, name: str) -> bool:
        """Is it believed to be there?"""
        return name in self._entries or name in self._arrived

    def receipt(self, local: Receipt) -> Receipt | None:
        """What is known of an object whose local receipt this is; None where it is not believed to be there."""
        with self._guard:
            known, entry = self._receipts.get(local.name), self._entries.get(local.name)
            if known is None and entry is not None and entry.size == local.size and local.name not in self._stuck:
                return Receipt(name=local.name, size=local.size, sha256=local.sha256, level="sent")
            return known

    def arrived(self, receipt: Receipt) -> None:
        """It was brought there."""
        name = receipt.name
        with self._guard:
            if name in self._doomed:
                return  # it was deleted just before it was there
            self._receipts[name], self._arrived[name] = receipt, self._monotonic()
            for told in (self._deleted, self._stuck, self._refused):
                told.pop(name, None)

    def learn(self, receipt: Receipt) -> None:
        """What the store says of it by now, if it is believed to be there still."""
        with self._guard:
            if self.has(receipt.name):
                self._receipts[receipt.name] = receipt

    def doom(self, name: str) -> None:
        """It is to be deleted."""
        with self._guard:
            self._doomed.add(name)
            self._entries.pop(name, None)
            self._stuck.pop(name, None)
            self._forget(name)

    def deleted(self, name: str) -> None:
        """It was deleted."""
        with self._guard:
            self._doomed.discard(name)
            self._deleted[name] = self._monotonic()

    def spare(self, name: str) -> None:
        """It is not to be deleted after all."""
        with self._guard:
            self._doomed.discard(name)

    def refuse(self, name: str, why: str) -> None:
        """It will not be deleted, and nobody asks for that again."""
        with self._guard:
            self._doomed.discard(name)
            self._refused[name] = why

    @property
    def refused(self) -> Mapping[str, str]:
        """What will not be deleted, and why."""
        with self._guard:
            return dict(self._refused)

    def give_up(self, name: str, why: str, *, vanished: bool) -> None:
        """It can never be sent. `vanished`: it went with the whole local folder."""
        with self._guard:
            self._stuck[name] = why, vanished

    def give_up_whole(self, name: str, needs: Iterable[str]) -> bool:
        """Can one of the objects that it needs never be sent? Then it stays away, too."""
        with self._guard:
            lost = min(self._stuck.keys() & set(needs), default=None)
        if lost is None:
            return False
        why, vanished = self._stuck[lost]
        self.give_up(name, f"needs {lost}, which {why}", vanished=vanished)
        return True

    @property
    def stuck(self) -> Mapping[str, str]:
        """What can never be sent, and why, without what went with the local folder."""
        with self._guard:
            return {name: why for name, (why, vanished) in self._stuck.items() if not vanished}

    def look_first(self, prefix: str) -> None:
        """List what was never listed, in half a minute at most.

        Raises:
            StoreError: it does not answer.
        """
        sign_in(self._remote)
        try:
            within(_FIRST, lambda: self._look([prefix]))
        except TimeoutError:
            problem = f"{self._remote.url} has not answered for {_FIRST:.0f} seconds."
            raise StoreUnavailable(problem=problem, remedy="See that it can be reached, and run again.") from None

    def look(self) -> dict[str, dict[str, str]]:
        """List all that was ever listed again. Returns what is gone: prefix → name → SHA-256, where that is known.

        Raises:
            StoreError: it does not answer; what was known is kept.
        """
        with self._guard:
            listed = set(self._prefixes)
        return self._look(sorted(one for one in listed if not any(is_below(one, other) for other in listed - {one})))

    def _look(self, prefixes: Sequence[str]) -> dict[str, dict[str, str]]:
        gone: dict[str, dict[str, str]] = {}
        with self._listing:
            began = self._monotonic()
            try:
                for prefix in prefixes:
                    gone[prefix] = self._learn(prefix, tuple(self._remote.list(prefix)), began)
            except StoreError as error:
                self.trouble = error.problem
                raise
            finally:
                self._looked_at = self._monotonic()  # a failure too: the next attempt is a minute away
            self.trouble = None
        return gone

    def _learn(self, prefix: str, found: Sequence[Entry], began: float) -> dict[str, str]:
        with self._guard:
            seen = {entry.name: entry for entry in found}
            believed = {name: self._shown.get(name, -math.inf) for name in self._entries if is_below(name, prefix)}
            for name, at in self._arrived.items():
                if is_below(name, prefix):
                    believed[name] = max(at, believed.get(name, -math.inf))
            missing = believed.keys() - seen.keys()
            gone = {name for name in missing if began - believed[name] > _LAG}
            late = {name: self._entries[name] for name in (missing - gone) & self._entries.keys()}
            self._deleted = {name: at for name, at in self._deleted.items() if began - at <= _LAG}
            hidden = self._doomed | self._deleted.keys() | self._refused.keys()
            shown = {name: entry for name, entry in seen.items() if name not in hidden}
            self._entries = {n: e for n, e in self._entries.items() if not is_below(n, prefix)} | late | shown
            self._shown = {n: at for n, at in self._shown.items() if n in self._entries} | dict.fromkeys(shown, began)
            self._prefixes.add(prefix)
            return {name: self._forget(name) for name in sorted(gone)}

    def _forget(self, name: str) -> str:
        self._arrived.pop(name, None)
        known = self._receipts.pop(name, None)
        return "" if known is None else known.sha256
