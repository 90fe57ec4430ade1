"""A store that is written, in front of read-only ones: what earlier sessions left is seen as if it lay here, and
brought over, verified on the way.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

from colabkeep.core.errors import (
    CheckpointDamaged,
    CheckpointError,
    ColabKeepError,
    NameTaken,
    ObjectNotFound,
    StoreError,
    StoreFull,
)
from colabkeep.core.manifest import BlobRef, Manifest
from colabkeep.stores.base import BytesSource, Entry, Lock, Receipt, Source, Store, StoreProperties, run_of

__all__ = [
    "OverlayStore",
    "bring",
    "bring_run",
    "named_blobs",
]

# The store in front goes through states that a session could have left: blobs come before the manifest that names them,
# and an object is there whole or not at all.


_CHUNK = 2**20
_SMALL = 64 * 2**20  # bytes; manifests, leases, marks and journal segments are never larger


def named_blobs(text: bytes, id: str) -> tuple[BlobRef, ...]:
    """The blobs that a manifest names; none if this is no manifest that can be read."""
    try:
        return Manifest.from_bytes(text, id=id).blobs
    except CheckpointError:
        return ()


def bring(name: str, blob: BlobRef, front: Store, behind: Iterable[Store]) -> None:
    """Copy a blob to the front, from the first store behind whose bytes are the right ones.

    Raises:
        CheckpointDamaged: none has them.
        StoreError: the store in front, or all behind, failed.
    """
    problem: ColabKeepError | None = None
    for store in behind:
        try:
            _put(front, name, _Checked(store, name, blob))
        except ObjectNotFound as error:
            problem = problem or error  # why one copy could not be brought says more than that another is missing
        except (CheckpointDamaged, StoreError) as error:
            problem = error
        else:
            return
    if problem is not None:
        raise problem


def bring_run(run: str, names: Iterable[str], front: Store, behind: Sequence[Store]) -> str | None:
    """Copy what the run has behind only: `names`. Returns None when all is in front, else a sentence saying why not.

    The newest checkpoint comes first. An older one is brought only where room for another of its size is left. What
    cannot be brought hinders nothing else; orphaned blobs and what is not a run's own are left where they are.
    """
    return _Move(run, front, behind).all_of(set(names))


class _Move:
    """One run on its way."""

    def __init__(self, run: str, front: Store, behind: Sequence[Store]) -> None:
        self._run = run
        self._front = front
        self._behind = behind
        self._left: list[str] = []

    def all_of(self, names: set[str]) -> str | None:
        """As `bring_run`."""
        ids = sorted(name for name in names if self._folder(name) == "checkpoints")
        diary = sorted(name for name in names if self._folder(name) == "journal")
        marks = sorted(name for name in names if self._folder(name) in ("run.json", "committed.json", "lease", "aside"))
        try:
            for name in marks:
                self._small(name)
            self._checkpoints(ids)
            for name in diary:
                self._small(name)
        except StoreFull as error:
            self._left.append(error.problem)
        if not self._left:
            return None
        return (
            f"Not all that earlier sessions kept of {self._run!r} could be copied to {self._front.url}, so this "
            f"session's output alone will not have all of it: attach the earlier ones again next time. {self._left[0]}"
        )

    def _checkpoints(self, names: Sequence[str]) -> None:
        found: list[tuple[Manifest, str, bytes]] = []
        for name in names:
            try:
                found.append(self._manifest(name))
            except (CheckpointError, StoreError) as error:
                self._left.append(error.problem)
        found.sort(key=lambda entry: entry[0].order, reverse=True)
        for number, (manifest, name, text) in enumerate(found):
            try:
                self._checkpoint(manifest, name, text, newest=number == 0)
            except StoreFull:
                raise
            except (CheckpointError, StoreError) as error:
                self._left.append(error.problem)

    def _checkpoint(self, manifest: Manifest, name: str, text: bytes, *, newest: bool) -> None:
        here = {entry.name for entry in self._front.list(f"{self._run}/blobs")}
        missing = {f"{self._run}/blobs/{blob.file}": blob for blob in manifest.blobs}
        missing = {blob_name: blob for blob_name, blob in missing.items() if blob_name not in here}
        free = self._front.properties.free_bytes
        if not newest and free is not None and free < sum(b.size for b in missing.values()) + manifest.total_bytes:
            self._left.append(f"Only {free >> 20} MiB are free, and the next checkpoint needs room too.")
            return
        for blob_name, blob in missing.items():
            bring(blob_name, blob, self._front, self._behind)
        _put(self._front, name, BytesSource(text))

    def _manifest(self, name: str) -> tuple[Manifest, str, bytes]:
        """The first copy that can be read."""
        id = name.rpartition("/")[2].removesuffix(".json")
        problem: ColabKeepError = ObjectNotFound(problem=f"{name} vanished.", remedy="Attach that output again.")
        for store in self._behind:
            try:
                text = _read(store, name)
                return Manifest.from_bytes(text, id=id), name, text
            except ObjectNotFound:
                continue
            except (CheckpointError, StoreError) as error:
                problem = error
        raise problem

    def _small(self, name: str) -> None:
        for store in self._behind:
            try:
                text = _read(store, name)
            except ObjectNotFound:
                continue
            except (CheckpointError, StoreError) as error:
                self._left.append(error.problem)
                continue
            _put(self._front, name, BytesSource(text))
            return

    def _folder(self, name: str) -> str:
        return name[len(self._run) + 1 :].partition("/")[0]


class _Checked:
    """A blob behind as a source whose bytes are hashed on the way: what is damaged does not become an object."""

    def __init__(self, store: Store, name: str, blob: BlobRef) -> None:
        self._store = store
        self._name = name
        self.size = blob.size
        self.sha256 = blob.sha256

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


def _put(front: Store, name: str, source: Source) -> None:
    try:
        front.put(name, source)
    except NameTaken:
        return  # written meanwhile, and names are written once


def _read(store: Store, name: str) -> bytes:
    """A small object.

    Raises:
        CheckpointDamaged: it is larger than any of ours.
    """
    found = bytearray()
    with store.get(name) as reader:
        while len(found) <= _SMALL and (piece := reader.read(_CHUNK)):
            found += piece
    if len(found) > _SMALL:
        raise CheckpointDamaged(
            problem=f"{name!r} in {store.url} is too large to be what its name says.",
            remedy="It is not one of colabkeep's files: remove it from that output.",
        )
    return bytes(found)


# Some services hand the output of one session to the next as a folder that cannot be written, and keep of the next one
# only what it wrote itself. So a run that is about to be written is *adopted* first: `sweep`, which a writer calls once
# it holds the lock, brings all of it to the front. From then on the front alone is enough to go on from, also when this
# session saves nothing; and the stores behind are not asked any more.


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
