"""A store that is written, in front of read-only ones: what earlier sessions left is seen as if it lay here, and can be
brought over, verified on the way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import BinaryIO

from colabkeep.core.errors import CheckpointDamaged, ColabKeepError, NameTaken, ObjectNotFound, StoreError
from colabkeep.stores.base import (
    BytesSource,
    Entry,
    Lock,
    Receipt,
    Source,
    Store,
    StoreProperties,
    needs_of,
    run_of,
    taken,
)

# Some services hand the output of one session to the next as a folder that cannot be written, and keep of the next one
# only what it wrote itself. So whoever is about to write a run brings all of it to the front first (`inherited`,
# `bring`, `settle`). From then on the front alone is enough to go on from, also when this session saves nothing; and
# the stores behind are not asked any more.


_CHUNK = 2**20


class OverlayStore(Store):
    """`front` and, in the order in which they are asked, the stores `behind`; all are closed with this one.

    Nothing behind is ever changed. What is deleted here and lies behind is hidden as long as this object lives: a
    later session that is given the same folders sees it again, and its retention removes it again.

    Where not all of a run can be brought (no room, damage), the rest is still read from behind, and `degraded`
    says so; what completes a whole (`needs_of`) then gets all that it needs brought to the front before it is written.
    """

    def __init__(self, front: Store, behind: Sequence[Store]) -> None:
        self.front = front
        self.behind = tuple(behind)
        self._settled: set[str] = set()  # runs that lie in front as a whole
        self._has_below: set[str] = set()  # runs below which there are others, of which something is behind only
        self._gone: set[str] = set()  # names deleted here
        self._believed: dict[str, int] = {}  # name → the first store to be believed, where one before was doubted
        self._left: dict[str, str] = {}  # run → why a part of it is still behind only

    @property
    def url(self) -> str:
        return self.front.url

    @property
    def properties(self) -> StoreProperties:
        return self.front.properties

    @property
    def degraded(self) -> str | None:
        return self.front.degraded or next(iter(self._left.values()), None)

    def put(self, name: str, source: Source) -> Receipt:
        if self._lies_behind(name):
            raise taken(name, "the output of an earlier session")
        if run_of(name) not in self._settled:
            for needed, expected in (needs_of(source) or {}).items():
                if self._believed.get(needed, 0):
                    self.front.delete(needed)  # it was found damaged, and is replaced by the good one
                if not _has(self.front, needed):
                    self.bring(needed, expected)
        return self.front.put(name, source)

    def get(self, name: str) -> BinaryIO:
        first, *others = self._stores(name)
        try:
            return first.get(name)
        except ObjectNotFound:
            for store in others:
                if _has(store, name):
                    return store.get(name)
            raise

    def doubt(self, name: str) -> bool:
        believed = self._believed.get(name, 0)
        if believed == 0 and self.front.doubt(name):
            return True
        self._settled.discard(run_of(name))
        stores = self._stores(name)
        holders = [believed + index for index, store in enumerate(stores) if _has(store, name)]
        if len(holders) < 2:
            return False
        self._believed[name] = holders[1]
        return True

    def list(self, prefix: str) -> Sequence[Entry]:
        found: dict[str, Entry] = {}
        whole = run_of(f"{prefix}/_") in self._settled and prefix not in self._has_below
        behind = () if prefix and whole else self.behind
        for index, store in enumerate((self.front, *behind)):
            for entry in store.list(prefix):
                hidden = index > 0 and self._is_hidden(entry.name)
                if not hidden and index >= self._believed.get(entry.name, 0):
                    found.setdefault(entry.name, entry)
        return list(found.values())

    def delete(self, name: str) -> None:
        self.front.delete(name)
        self._gone.add(name)
        self._believed.pop(name, None)

    def confirm(self, receipt: Receipt) -> Receipt:
        return self.front.confirm(receipt)

    def lock(self, name: str, holder: str) -> Lock:
        return self.front.lock(name, holder)

    def sweep(self, prefix: str) -> int:
        return self.front.sweep(prefix)

    def flush(self, timeout: float) -> bool:
        return self.front.flush(timeout)

    def close(self) -> None:
        """Close all of them."""
        for store in (self.front, *self.behind):
            store.close()

    def inherited(self, run: str) -> Sequence[Entry]:
        if run in self._settled:
            return []
        here = {entry.name for entry in self.front.list(run)}
        found = [entry for entry in self.list(run) if entry.name not in here]
        own = [entry for entry in found if run_of(entry.name) == run]
        if len(own) < len(found):
            self._has_below.add(run)
        return own

    def bring(self, name: str, expected: tuple[int, str] | None = None) -> None:
        problem: ColabKeepError | None = None
        for store in self.behind:
            try:
                source = _whole(store, name) if expected is None else _Checked(store, name, *expected)
                with suppress(NameTaken):  # written meanwhile, and names are written once
                    self.front.put(name, source)
            except ObjectNotFound as error:
                problem = problem or error  # why one copy could not be brought says more than that another is missing
            except (CheckpointDamaged, StoreError) as error:
                problem = error
            else:
                self._believed.pop(name, None)
                return
        if problem is not None:
            raise problem

    def settle(self, run: str, left: str | None) -> None:
        if left is None:
            self._settled.add(run)
            self._left.pop(run, None)
        else:
            self._left[run] = left

    def _lies_behind(self, name: str) -> bool:
        return not _has(self.front, name) and any(_has(store, name) for store in self._stores(name)[1:])

    def _stores(self, name: str) -> tuple[Store, ...]:
        """Where an object may lie, the store to be asked first in front."""
        if self._is_hidden(name):
            return (self.front,)
        return (self.front, *self.behind)[self._believed.get(name, 0) :]

    def _is_hidden(self, name: str) -> bool:
        return name in self._gone or run_of(name) in self._settled


class _Checked:
    """An object behind as a source whose bytes are hashed on the way: what is damaged does not become an object."""

    def __init__(self, store: Store, name: str, size: int, sha256: str) -> None:
        self._store = store
        self._name = name
        self.size = size
        self.sha256 = sha256

    def chunks(self) -> Iterator[memoryview]:
        digest, buffer = hashlib.sha256(), memoryview(bytearray(_CHUNK))
        with self._store.get(self._name) as reader:
            while count := reader.readinto(buffer):  # type: ignore[attr-defined]
                digest.update(buffer[:count])
                yield buffer[:count]
        if digest.hexdigest() != self.sha256:
            raise CheckpointDamaged(
                problem=f"{self._name!r} in {self._store.url} is not what was written (its digest differs).",
                remedy="Nothing needs to be done: an older checkpoint is used if there is one.",
            )


def _whole(store: Store, name: str) -> BytesSource:
    """A small object, which carries a digest of its own."""
    with store.get(name) as reader:
        return BytesSource(reader.read())


def _has(store: Store, name: str) -> bool:
    """Can the object be opened there? A store behind that fails is as good as one that does not have it."""
    try:
        store.get(name).close()
    except StoreError:
        return False
    return True
