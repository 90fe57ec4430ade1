"""Bringing what earlier sessions left from read-only stores to the one that is written, verified on the way.

The store in front goes through states that a session could have left: blobs come before the manifest that names
them, and an object is there whole or not at all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

from colabkeep.stores.base import BytesSource, Source, Store
from colabkeep.vocabulary.errors import (
    CheckpointDamaged,
    CheckpointError,
    ColabKeepError,
    NameTaken,
    ObjectNotFound,
    StoreError,
    StoreFull,
)
from colabkeep.vocabulary.manifest import BlobRef, Manifest

__all__ = ["bring", "bring_run", "named_blobs"]

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
