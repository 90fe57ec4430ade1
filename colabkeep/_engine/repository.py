"""One run's checkpoints inside a store: where things lie, and the order in which they come and go.

Nothing is overwritten. Blobs come before the manifest that names them; the manifest's presence is
the commit. Manifests go before the blobs that only they named.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from colabkeep._engine.codec import decode_part
from colabkeep._engine.packs import CHUNK, Pack, unpack
from colabkeep.stores.base import BytesSource, Receipt, Store, check_name
from colabkeep.vocabulary.errors import (
    CheckpointDamaged,
    CheckpointError,
    CheckpointUnsupported,
    NameTaken,
    ObjectNotFound,
)
from colabkeep.vocabulary.manifest import FORMAT, BlobRef, Manifest
from colabkeep.vocabulary.sealed import seal, unseal
from colabkeep.vocabulary.state import HostTensor, Tree

__all__ = ["CHECKPOINT_ID", "Repository"]

CHECKPOINT_ID = re.compile(r"(\d{12})-([0-9a-f]{8})(?:-(\d{1,6}))?")
_SMALL = 64 * 2**20  # bytes; manifests, leases and marks are never larger


class Repository:
    """The checkpoints of one run. Used by one thread at a time (the writer's while it works)."""

    def __init__(self, store: Store, run: str) -> None:
        self.store = store
        self.run = check_name(run)
        self._manifests: dict[str, Manifest] = {}
        self._trusted: set[str] = set()  # blob files whose bytes this session wrote or hashed

    # -- reading -----------------------------------------------------------------------------------

    def ids(self) -> set[str]:
        """The ids of all checkpoints, usable or not."""
        names = (name.removesuffix(".json") for name in self._names("checkpoints") if name.endswith(".json"))
        return {name for name in names if CHECKPOINT_ID.fullmatch(name)}

    def aside(self) -> set[str]:
        """The ids of checkpoints that were found damaged and set aside."""
        return {name.removesuffix(".json") for name in self._names("aside")}

    def blobs(self) -> dict[str, int]:
        """Blob file → size in bytes."""
        prefix = f"{self.run}/blobs/"
        return {entry.name[len(prefix) :]: entry.size for entry in self.store.list(prefix[:-1])}

    def manifest(self, id: str) -> Manifest:
        """Read one manifest (kept in memory: manifests never change).

        Raises:
            CheckpointDamaged, CheckpointUnsupported: as `Manifest.from_bytes`.
            CheckpointDamaged: it is missing, or belongs to another run.
            StoreError: the store failed.
        """
        if id not in self._manifests:
            manifest = Manifest.from_bytes(self._read_small(f"checkpoints/{id}.json", id), id=id)
            if manifest.run != self.run:
                raise _damaged(id, f"it belongs to the run {manifest.run!r}")
            self._manifests[id] = manifest
        return self._manifests[id]

    def manifests(self, ids: Iterable[str]) -> list[Manifest]:
        """The readable ones among `ids`, oldest first."""
        found = []
        for id in ids:
            try:
                found.append(self.manifest(id))
            except CheckpointError:
                continue  # found and reported where it matters: on resume and by `verify`
        return sorted(found, key=lambda manifest: manifest.order)

    def load(self, manifest: Manifest, parts: Iterable[str] | None = None) -> dict[str, Tree]:
        """Read and verify the blobs of a checkpoint (those that `parts` need; all by default).

        The tensors are views of freshly read memory, one buffer per blob.

        Raises:
            CheckpointDamaged: a blob is missing, or its bytes are not those that were written.
            StoreError: the store failed.
        """
        wanted = dict(manifest.parts) if parts is None else {name: manifest.parts[name] for name in parts}
        needed = _blob_numbers(wanted)
        self._check_sizes(manifest)
        packs: list[Mapping[str, HostTensor]] = [
            self.read_blob(blob, manifest.id) if number in needed else {} for number, blob in enumerate(manifest.blobs)
        ]
        try:
            return {name: decode_part(node, packs) for name, node in wanted.items()}
        except ValueError as error:
            raise _damaged(manifest.id, str(error)) from error

    def read_blob(self, blob: BlobRef, id: str) -> dict[str, HostTensor]:
        """The tensors of one blob, its size and digest checked."""
        data = bytearray()
        try:
            with self.store.get(f"{self.run}/blobs/{blob.file}") as reader:
                data = _read_exactly(reader, blob.size)
        except ObjectNotFound as error:
            raise _damaged(id, f"its file blobs/{blob.file} is missing") from error
        except ValueError as error:
            raise _damaged(id, f"its file blobs/{blob.file} {error}") from error
        if _sha256(data) != blob.sha256:
            raise _damaged(id, f"its file blobs/{blob.file} is not what was written (digest differs)")
        self._trusted.add(blob.file)
        try:
            return unpack(data)
        except ValueError as error:
            raise _damaged(id, f"its file blobs/{blob.file} is not a file of tensors: {error}") from error

    # -- writing -----------------------------------------------------------------------------------

    def store_pack(self, pack: Pack, session: str, present: Mapping[str, int]) -> tuple[BlobRef, int]:
        """Make sure the pack's bytes are in the store; returns its reference and the bytes written.

        A blob that is there already is referenced, once its bytes are known to be good. One that is
        damaged is not touched: a good copy is written beside it under the session's name.
        """
        blob = BlobRef(sha256=pack.sha256, size=pack.size, file=f"{pack.sha256}.safetensors")
        if blob.file in present and not self._good(blob):
            blob = BlobRef(sha256=pack.sha256, size=pack.size, file=f"{pack.sha256}-{session}.safetensors")
        if blob.file in present and self._good(blob):
            return blob, 0
        self.store.put(f"{self.run}/blobs/{blob.file}", pack)
        self._trusted.add(blob.file)
        return blob, pack.size

    def commit(self, manifest: Manifest) -> Receipt:
        """Write the manifest; the checkpoint exists from now on. Then see that nothing it names is missing.

        Raises:
            CheckpointDamaged: a blob it names has vanished meanwhile.
        """
        receipt = self.store.put(f"{self.run}/checkpoints/{manifest.id}.json", BytesSource(manifest.to_bytes()))
        self._manifests[manifest.id] = manifest
        present = self.blobs() if not self.store.properties.lists_lag else None
        for blob in manifest.blobs:
            if present is not None and present.get(blob.file) != blob.size:
                self._trusted.discard(blob.file)
                raise _damaged(manifest.id, f"its file blobs/{blob.file} vanished while it was being written")
        return receipt

    def free_id(self, step: int, session: str) -> str:
        """An id for a checkpoint of this session at this step that no checkpoint has."""
        id, n = f"{step:012d}-{session}", 1
        taken = self.ids()
        while id in taken:
            id, n = f"{step:012d}-{session}-{n}", n + 1
        return id

    def set_aside(self, id: str, reason: str) -> None:
        """Mark a checkpoint as damaged, for all sessions to come. It is not touched.

        The mark also names the blobs that no readable checkpoint claims: they may be this one's,
        and are kept for whoever wants to rescue it.

        Raises:
            StoreError: the mark could not be written.
        """
        claimed = {blob.file for manifest in self.manifests(self.ids() - {id}) for blob in manifest.blobs}
        record = {"id": id, "reason": reason, "protects": sorted(set(self.blobs()) - claimed)}
        try:
            self.store.put(f"{self.run}/aside/{id}.json", BytesSource(seal(record)))
        except NameTaken:
            return  # set aside by an earlier session

    def remove(self, doomed: Sequence[Manifest]) -> None:
        """Delete checkpoints: their manifests first, then the blobs that nothing else may need.

        Raises:
            CheckpointDamaged: a mark in `aside/` cannot be read, so that it is not known what it protects.
            StoreError: the store failed; what was not deleted stays for the next time.
        """
        protected = self._protected_by_marks()  # first: a damaged mark stops everything
        for manifest in doomed:
            self.store.delete(f"{self.run}/checkpoints/{manifest.id}.json")
            self._manifests.pop(manifest.id, None)
        ids = self.ids()
        kept = self.manifests(ids)
        protected |= {blob.file for manifest in kept for blob in manifest.blobs}
        candidates: set[str] = {blob.file for manifest in doomed for blob in manifest.blobs}
        if len(kept) == len(ids):  # else a manifest that cannot be read may name any of the others
            candidates |= set(self.blobs())
        for file in sorted(candidates - protected):
            self.store.delete(f"{self.run}/blobs/{file}")
            self._trusted.discard(file)

    def open_run(self, created: float, run_id: str) -> None:
        """Write `run.json` if this run is new; else see that this version may work on it.

        Raises:
            CheckpointDamaged: `run.json` is not what was written.
            CheckpointUnsupported: the run is in a newer format.
        """
        record: dict[str, Any] = {"format": FORMAT, "run": self.run, "id": run_id, "created": created}
        try:
            self.store.put(f"{self.run}/run.json", BytesSource(seal(record)))
        except NameTaken:
            record = self.sealed_record("run.json")
        if type(record.get("format")) is int and record["format"] > FORMAT:
            raise CheckpointUnsupported(
                problem=f"The run {self.run!r} is kept in format {record['format']}; this colabkeep knows {FORMAT}.",
                remedy="Update colabkeep (pip install -U colabkeep) and run again. Nothing was changed.",
            )

    def sealed_record(self, name: str) -> dict[str, Any]:
        """A sealed record of this run, by its name inside the run.

        Raises:
            CheckpointDamaged: it is not what was written.
        """
        try:
            return unseal(self._read_small(name, name))
        except ValueError as error:
            raise _damaged(name, str(error)) from error

    def _check_sizes(self, manifest: Manifest) -> None:
        # Before any memory is asked for: a file may be a thousand times what it should be.
        present = self.blobs()
        for blob in manifest.blobs:
            size = present.get(blob.file)
            if size is None and not self.store.properties.lists_lag:
                raise _damaged(manifest.id, f"its file blobs/{blob.file} is missing")
            if size is not None and size != blob.size:
                raise _damaged(manifest.id, f"its file blobs/{blob.file} has {size} bytes, written were {blob.size}")

    def _protected_by_marks(self) -> set[str]:
        return {file for id in self.aside() for file in self.sealed_record(f"aside/{id}.json")["protects"]}

    def _good(self, blob: BlobRef) -> bool:
        if blob.file not in self._trusted:
            try:
                self.read_blob(blob, blob.file)
            except CheckpointDamaged:
                return False
        return True

    def _names(self, folder: str) -> list[str]:
        prefix = f"{self.run}/{folder}/"
        return [entry.name[len(prefix) :] for entry in self.store.list(prefix[:-1])]

    def _read_small(self, name: str, id: str) -> bytes:
        try:
            with self.store.get(f"{self.run}/{name}") as reader:
                return reader.read(_SMALL)
        except ObjectNotFound as error:
            raise _damaged(id, f"{name} is missing") from error


def _read_exactly(reader: Any, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    filled = 0
    while filled < size:
        n = reader.readinto(view[filled : filled + CHUNK])
        if not n:
            raise ValueError(f"is cut short ({filled} of {size} bytes)")
        filled += n
    if reader.read(1):
        raise ValueError(f"is longer than it was written ({size} bytes)")
    return data


def _sha256(data: bytearray) -> str:
    digest = hashlib.sha256()
    view = memoryview(data)
    for start in range(0, len(view), CHUNK):
        digest.update(view[start : start + CHUNK])
    return digest.hexdigest()


def _blob_numbers(node: Any) -> set[int]:
    found: set[int] = set()
    todo = [node]
    while todo:
        node = todo.pop()
        if isinstance(node, dict):
            reference = node.get("$tensor")
            if isinstance(reference, list) and reference and isinstance(reference[0], int):
                found.add(reference[0])
            todo.extend(node.values())
        elif isinstance(node, list):
            todo.extend(node)
    return found


def _damaged(id: str, why: str) -> CheckpointDamaged:
    return CheckpointDamaged(
        problem=f"Checkpoint {id} cannot be used: {why}.",
        remedy="An older one is used if there is one. Nothing was deleted; `colabkeep verify` shows the whole run.",
    )
