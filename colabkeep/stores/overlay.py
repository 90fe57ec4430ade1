"""A store that is written, in front of read-only ones: what earlier sessions left is seen as if it lay here.

Some services hand the output of one session to the next as a folder that cannot be written, and keep of the next one
only what it wrote itself. So a run that is about to be written is *adopted* first: `sweep`, which a writer calls once
it holds the lock, brings all of it to the front. From then on the front alone is enough to go on from, also when
this session saves nothing; and the stores behind are not asked any more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import BinaryIO

from colabkeep.stores._adoption import bring, bring_run, named_blobs
from colabkeep.stores.base import BytesSource, Entry, Lock, Receipt, Source, Store, StoreProperties, run_of
from colabkeep.vocabulary.errors import NameTaken, ObjectNotFound, StoreError

__all__ = ["OverlayStore"]

_MANIFEST = re.compile(r"(.+)/checkpoints/([^/]+)\.json")


class OverlayStore:
    """`front` and, in the order in which they are asked, the stores `behind`; all are closed with this one.

    Nothing behind is ever changed. What is deleted here and lies behind is hidden as long as this object lives: a
    later session that is given the same folders sees it again, and its retention removes it again.

    Where not all of a run can be adopted (no room, damage), the rest is still read from behind, and `degraded`
    says so; a checkpoint that is committed then gets the blobs it names brought to the front before it is written.
    """

    def __init__(self, front: Store, behind: Sequence[Store]) -> None:
        self.front = front
        self.behind = tuple(behind)
        self._adopted: set[str] = set()  # runs that lie in front as a whole
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
            raise NameTaken(
                problem=f"{name!r} exists already in the output of an earlier session; its bytes are untouched.",
                remedy="Names are written once: choose another name, or delete the old object first.",
            )
        manifest = _MANIFEST.fullmatch(name)
        if manifest is not None and manifest[1] not in self._adopted:
            source = self._with_its_blobs(manifest[1], manifest[2], source)
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
        self._adopted.discard(run_of(name))
        stores = self._stores(name)
        holders = [believed + index for index, store in enumerate(stores) if _has(store, name)]
        if len(holders) < 2:
            return False
        self._believed[name] = holders[1]
        return True

    def list(self, prefix: str) -> Sequence[Entry]:
        found: dict[str, Entry] = {}
        whole = run_of(f"{prefix}/_") in self._adopted and prefix not in self._has_below
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
        count = self.front.sweep(prefix)
        if prefix:
            self._adopt(prefix)
        return count

    def flush(self, timeout: float) -> bool:
        return self.front.flush(timeout)

    def close(self) -> None:
        """Close all of them."""
        for store in (self.front, *self.behind):
            store.close()

    def _adopt(self, run: str) -> None:
        if run in self._adopted:
            return
        names = {entry.name for entry in self.list(run)} - {entry.name for entry in self.front.list(run)}
        own = {name for name in names if run_of(name) == run}
        if names != own:
            self._has_below.add(run)
        left = bring_run(run, own, self.front, self.behind)
        if left is None:
            self._adopted.add(run)
            self._left.pop(run, None)
        else:
            self._left[run] = left

    def _with_its_blobs(self, run: str, id: str, manifest: Source) -> Source:
        """See that what a new manifest names lies in front; returns the manifest, which was read for it."""
        data = b"".join(bytes(chunk) for chunk in manifest.chunks())
        if len(data) != manifest.size:
            return manifest  # refused by the store in front
        for blob in named_blobs(data, id):
            name = f"{run}/blobs/{blob.file}"
            if self._believed.get(name, 0):
                self.front.delete(name)  # it was found damaged, and is replaced by the good one
            if not _has(self.front, name):
                bring(name, blob, self.front, self.behind)
                self._believed.pop(name, None)
        return BytesSource(data)

    def _lies_behind(self, name: str) -> bool:
        return not _has(self.front, name) and any(_has(store, name) for store in self._stores(name)[1:])

    def _stores(self, name: str) -> tuple[Store, ...]:
        """Where an object may lie, the store to be asked first in front."""
        if self._is_hidden(name):
            return (self.front,)
        return (self.front, *self.behind)[self._believed.get(name, 0) :]

    def _is_hidden(self, name: str) -> bool:
        return name in self._gone or run_of(name) in self._adopted


def _has(store: Store, name: str) -> bool:
    """Can the object be opened there? A store behind that fails is as good as one that does not have it."""
    try:
        store.get(name).close()
    except StoreError:
        return False
    return True
