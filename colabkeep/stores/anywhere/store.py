"""The store at any place that fsspec reaches."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import BinaryIO

from colabkeep.stores._blocks import Tally, blocks
from colabkeep.stores._confirmed import Confirmed
from colabkeep.stores._deadline import within
from colabkeep.stores._listings import Listings
from colabkeep.stores._locks import NoLock
from colabkeep.stores._ranges import ranged
from colabkeep.stores.anywhere.digests import restated, stated
from colabkeep.stores.anywhere.hands import BLOCK, Hands, block_size
from colabkeep.stores.anywhere.kinds import Kind
from colabkeep.stores.base import Entry, Receipt, Rung, Source, StoreProperties, check_name
from colabkeep.vocabulary.errors import NameTaken, StoreError, StoreUnavailable, UsageError

__all__ = ["AnywhereStore"]

_MOMENT = 1.0  # seconds that a question about durability may take
_SMALL = 2**20  # bytes that can be read in such a moment


class AnywhereStore:
    """Objects at `url`, by the hands that `reach` makes when the first one is asked for.

    How durable is told as follows. On this machine: "local". Where the service states a digest (S3's ETag, Google's
    MD5) it is compared with what was sent, and is "confirmed" when equal. An ETag need not be a digest (with keys of
    one's own it is not): then the object is read back once, and if it is whole, this place's word is not asked for
    any more, and its objects are "sent". Where nothing is stated they are "sent" too. With `reread`, whatever the
    service does not confirm is read back and hashed, which costs its download, and is "confirmed" as well.

    What another session put is "confirmed" when the service states a digest that belongs to the SHA-256 in question,
    by the notes of whoever wrote it (see `digests`); or, where there are none, when it is small and was read back.
    Of a large object without notes only the size can be seen: it stays "sent". Each is asked about once.

    Others' changes are seen some seconds late: see `Listings`.
    """

    def __init__(
        self,
        url: str,
        kind: Kind,
        reach: Callable[[], Hands],
        *,
        reread: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = url
        self._kind = kind
        self._reach = reach
        self._reread = reread
        self._monotonic = monotonic
        self._states_digest = kind.digest != "none"
        self._guard = threading.Lock()  # of `_hands`
        self._hands: Hands | None = None
        self._listings = Listings(self._find, monotonic, whole_runs=kind.flat)
        self._unsure: dict[str, Tally] = {}  # sent, and nobody could be asked about it yet
        self._confirmed = Confirmed()

    @property
    def url(self) -> str:
        return self._url

    @property
    def properties(self) -> StoreProperties:
        return StoreProperties(top_rung=self._top_rung(), persists=self._kind.persists, lists_lag=self._kind.lists_lag)

    @property
    def degraded(self) -> str | None:
        return None

    def put(self, name: str, source: Source) -> Receipt:
        check_name(name)
        hands, tally = self._at_work(), Tally()
        if not self._listings.lacks(name):
            self._refuse_taken(hands, name)
        try:
            rung = self._sent(hands, name, source, tally)
        except BaseException:
            self._listings.forget(name)
            raise
        self._listings.wrote(name, tally.size)
        self._confirmed.forget(name)
        if rung == "confirmed":
            self._confirmed.learn(name, tally.sha256)
        return Receipt(name=name, size=tally.size, sha256=tally.sha256, rung=rung)

    def get(self, name: str) -> BinaryIO:
        check_name(name)
        hands = self._at_work()
        return ranged(int(hands.stat(name)["size"]), lambda start, end: hands.read(name, start, end))

    def doubt(self, name: str) -> bool:
        return False  # there is one copy only

    def list(self, prefix: str) -> Sequence[Entry]:
        found = self._listings.below(check_name(prefix) if prefix else "")
        return [Entry(name=name, size=size) for name, size in found.items()]

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
        return receipt if self._top_rung() != "confirmed" else self._confirmed.answer(receipt, self._shows)

    def lock(self, name: str, holder: str) -> NoLock:
        check_name(name)
        return NoLock()

    def sweep(self, prefix: str) -> int:
        return self._at_work().sweep(check_name(prefix) if prefix else "")

    def flush(self, timeout: float) -> bool:
        end = self._monotonic() + timeout
        for name, tally in list(self._unsure.items()):
            if self._monotonic() >= end:
                break
            del self._unsure[name]
            if self._rung(self._at_work(), name, tally) == "confirmed":
                self._confirmed.learn(name, tally.sha256)
        return not self._unsure

    def close(self) -> None:
        with self._guard:
            self._hands = None

    def _at_work(self) -> Hands:
        with self._guard:
            if self._hands is None:
                self._hands = self._reach()
            return self._hands

    def _find(self, prefix: str) -> dict[str, int]:
        """All objects below the prefix; what another session deleted is not called confirmed any more."""
        found = {name: size for name, size in self._at_work().find(prefix) if _is_legal(name)}
        self._confirmed.listed(prefix, found)
        return found

    def _sent(self, hands: Hands, name: str, source: Source, tally: Tally) -> Rung:
        """Send the source, and tell how durable it is then."""
        try:
            hands.send(name, source, self._watched(hands, name, source, tally))
        except NameTaken:
            if not tally.ended or self._is_there(hands, name, tally) is not True:
                raise  # else an answer got lost, some libraries ask again unnoticed, and what has the name is our own
        return self._rung(hands, name, tally)

    def _shows(self, receipt: Receipt) -> bool | None:
        """Has the place the bytes of the receipt? None: that cannot be told within a second."""
        hands = self._at_work()

        def look() -> bool:
            info = hands.stat(receipt.name, again=False)
            if int(info["size"]) != receipt.size:
                return False
            if restated(info, self._kind.digest, receipt.sha256):
                return True
            return receipt.size <= _SMALL and _reads_back(hands, receipt.name, receipt)

        try:
            return within(_MOMENT, look)
        except (StoreError, TimeoutError):
            return None  # it is asked again

    def _watched(self, hands: Hands, name: str, source: Source, tally: Tally) -> Iterator[memoryview]:
        """The blocks, hashed; and after the last one a last look, when there is nothing left but to publish."""
        for block in blocks(name, source, block_size(source.size)):
            tally.add(block)
            yield block
        if tally.sha256 != source.sha256:
            raise StoreError(
                problem=f"The bytes of {name!r} are not those that were captured; it is not kept.",
                remedy="Its data changed while it was being saved: leave arrays and files alone until their save is "
                "done. The next save starts afresh.",
            )
        self._refuse_taken(hands, name)
        tally.ended = True

    def _refuse_taken(self, hands: Hands, name: str) -> None:
        if hands.taken(name):
            raise NameTaken(
                problem=f"{name!r} exists already in {self._url}; its bytes are untouched.",
                remedy="Names are written once: choose another name, or delete the old object first.",
            )

    def _top_rung(self) -> Rung:
        if not self._kind.remote:
            return "local"
        return "confirmed" if self._states_digest or self._reread else "sent"

    def _rung(self, hands: Hands, name: str, tally: Tally) -> Rung:
        """How durable what was just sent is.

        Raises:
            StoreUnavailable: it arrived changed, and was removed.
        """
        try:
            there = self._is_there(hands, name, tally)
            if there is None and self._reread:
                there = _reads_back(hands, name, tally)
        except StoreUnavailable:
            self._unsure[name] = tally
            return "sent" if self._kind.remote else "unknown"
        if there is False:
            hands.remove(name)
            self._listings.forget(name)
            raise StoreUnavailable(
                problem=f"{name!r} did not arrive in {self._url} as it was sent; it was removed there.",
                remedy="It is sent again by itself.",
            )
        if not self._kind.remote:
            return "local"
        return "confirmed" if there else "sent"

    def _is_there(self, hands: Hands, name: str, tally: Tally) -> bool | None:
        """Does the place have these very bytes? None: they are as many, and it does not say more."""
        info = hands.stat(name)
        if int(info["size"]) != tally.size:
            return False
        said = stated(info, self._kind.digest, tally) if self._states_digest else None
        if said is not False:
            return said
        whole = _reads_back(hands, name, tally)
        self._states_digest = self._states_digest and not whole
        return whole


def _reads_back(hands: Hands, name: str, sent: Tally | Receipt) -> bool:
    """Are these the bytes that the place gives?"""
    digest = hashlib.sha256()
    for start in range(0, sent.size, BLOCK):
        digest.update(hands.read(name, start, min(start + BLOCK, sent.size)))
    return digest.hexdigest() == sent.sha256


def _is_legal(name: str) -> bool:
    with suppress(UsageError):
        return bool(check_name(name))
    return False
