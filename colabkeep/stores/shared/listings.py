"""What lies below a prefix as the last listings showed it, and what a place has stated about its objects: asked
once, believed until it is gone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from colabkeep.stores.base import Entry, Receipt, Store, check_prefix, is_below, is_name

# A commit looks into several folders of its run within a moment, and each listing is a request: so all of a run is
# listed at once, and that is taken for the present for some seconds. What another session does is seen that much later
# at most; what this process does is seen at once, also where listings lag.


FRESH_SECONDS = 5.0
"""A listing younger than this is taken for the present."""

_T = TypeVar("_T", bound=Entry)


@dataclass(frozen=True, slots=True)
class _Listing(Generic[_T]):
    """What was below a prefix when it was asked for."""

    at: float
    found: dict[str, _T]


class Listings(Generic[_T]):
    """`find` lists what is below a prefix, by name. `whole_runs`: a run costs no more than one of its folders.

    `_turn` is held while `find` works: who comes meanwhile gets the same answer. `_guard` is held for moments.
    """

    def __init__(
        self, find: Callable[[str], Mapping[str, _T]], monotonic: Callable[[], float], *, whole_runs: bool = True
    ) -> None:
        self._find = find
        self._monotonic = monotonic
        self._whole_runs = whole_runs
        self._turn = threading.Lock()
        self._guard = threading.Lock()
        self._listed: dict[str, _Listing[_T]] = {}
        self._own: dict[str, tuple[float, _T | None]] = {}  # changed by this process lately; None: deleted

    def below(self, prefix: str) -> dict[str, _T]:
        with self._turn:
            listing = self._fresh(prefix)
            if listing is None:
                listing = self._ask(prefix.partition("/")[0] if self._whole_runs else prefix)
        with self._guard:
            return {name: what for name, what in listing.found.items() if is_below(name, prefix)}

    def known(self, name: str) -> _T | None:
        """What is known of the name without asking, however old that is."""
        with self._guard:
            found = [one.found[name] for one in self._listed.values() if name in one.found]
            own = self._own.get(name, (0.0, None))[1]
        return found[-1] if found else own

    def lacks(self, name: str) -> bool:
        """Did a listing that is young enough not show the name?"""
        listing = self._fresh(name)
        return listing is not None and name not in listing.found

    def wrote(self, name: str, what: _T) -> None:
        self._changed(name, what)

    def deleted(self, name: str) -> None:
        """This process deleted the name, or found that it is gone."""
        self._changed(name, None)

    def forget(self, *names: str) -> None:
        """Something went wrong with these names, and nobody knows whether they are there: ask again."""
        with self._guard:
            self._own = {name: own for name, own in self._own.items() if name not in names}
            self._listed = {}

    def _changed(self, name: str, what: _T | None) -> None:
        with self._guard:
            self._own[name] = (self._monotonic(), what)
            for prefix, listing in self._listed.items():
                if _covers(prefix, name):
                    _apply(listing.found, name, what)

    def _fresh(self, prefix: str) -> _Listing[_T] | None:
        oldest = self._monotonic() - FRESH_SECONDS
        with self._guard:
            young = (one for path, one in self._listed.items() if one.at > oldest and _covers(path, prefix))
            return next(young, None)

    def _ask(self, prefix: str) -> _Listing[_T]:
        now = self._monotonic()
        listing = _Listing(now, dict(self._find(prefix)))
        with self._guard:
            # One that was begun this soon after a change, or before it, may not show it.
            self._own = {name: own for name, own in self._own.items() if own[0] >= now - FRESH_SECONDS}
            for name, (_, what) in self._own.items():
                if _covers(prefix, name):
                    _apply(listing.found, name, what)
            self._listed = {path: one for path, one in self._listed.items() if not _covers(prefix, path)}
            self._listed[prefix] = listing
        return listing


def _apply(found: dict[str, _T], name: str, what: _T | None) -> None:
    if what is None:
        found.pop(name, None)
    else:
        found[name] = what


def _covers(prefix: str, name: str) -> bool:
    """Is the name, or the prefix, below the prefix, or the same prefix?"""
    return name == prefix or is_below(name, prefix)


class Confirmed:
    """Which objects are there with which SHA-256, and which are known not to be confirmed by asking."""

    def __init__(self) -> None:
        self._right: dict[str, str] = {}
        self._wrong: set[tuple[str, str]] = set()

    def learn(self, name: str, sha256: str) -> None:
        self._right[name] = sha256

    def forget(self, name: str) -> None:
        self._right.pop(name, None)
        self._wrong = {one for one in self._wrong if one[0] != name}

    def listed(self, prefix: str, names: Container[str]) -> None:
        """These are there below the prefix: what another session deleted is not called confirmed any more."""
        for name in {*self._right, *(name for name, _ in self._wrong)}:
            if is_below(name, prefix) and name not in names:
                self.forget(name)

    def answer(self, receipt: Receipt, ask: Callable[[Receipt], bool | None]) -> Receipt:
        """The receipt, "confirmed" if these very bytes are known to be there. `ask` finds out; None: not now."""
        name, sha256 = receipt.name, receipt.sha256
        if receipt.level == "confirmed" or not sha256:
            return receipt
        if name not in self._right and (name, sha256) not in self._wrong:
            there = ask(receipt)
            if there:
                self.learn(name, sha256)
            elif there is False:
                self._wrong.add((name, sha256))
        return replace(receipt, level="confirmed") if self._right.get(name) == sha256 else receipt


class RemoteStore(Store, Generic[_T]):
    """What stores have in common that ask a service by requests: it has one copy of each object, cannot lock, and shows
    no object before it is whole, so there is nothing to sweep. A subclass asks the service (`_find`, `_states`), puts,
    gets and deletes. What it lists are entries, with more on them where it wants to know that again."""

    def __init__(self, url: str, monotonic: Callable[[], float], *, whole_runs: bool = True) -> None:
        self._url = url
        self._listings: Listings[_T] = Listings(self._list_legal, monotonic, whole_runs=whole_runs)
        self._confirmed = Confirmed()

    @property
    def url(self) -> str:
        return self._url

    def list(self, prefix: str) -> Sequence[Entry]:
        found = self._listings.below(check_prefix(prefix))
        return [Entry(name=name, size=what.size) for name, what in found.items()]

    def confirm(self, receipt: Receipt) -> Receipt:
        return self._confirmed.answer(receipt, self._states)

    def _find(self, prefix: str) -> Iterable[_T]:
        """All that lies below the prefix, foreign files too."""
        raise NotImplementedError

    def _states(self, receipt: Receipt) -> bool | None:
        """Does the service state the bytes of the receipt? None: that cannot be told within a second."""
        raise NotImplementedError

    def _list_legal(self, prefix: str) -> Mapping[str, _T]:
        found = {what.name: what for what in self._find(prefix) if is_name(what.name)}
        self._confirmed.listed(prefix, found)
        return found
