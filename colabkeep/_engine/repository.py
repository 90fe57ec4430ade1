"""One run's checkpoints inside a store: where things lie, and the order in which they come and go.

Nothing is overwritten. Blobs come before the manifest that names them; the manifest's presence is
the commit. Manifests go before the blobs that only they named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from colabkeep._engine.blobs import Blobs, damaged, newer
from colabkeep._engine.codec import decode_part, references
from colabkeep._engine.listing import Listing
from colabkeep._engine.reading import SMALL, UnknownKind, read_up_to
from colabkeep.stores.base import BytesSource, Receipt, Store, check_name
from colabkeep.vocabulary.errors import (
    CheckpointDamaged,
    CheckpointError,
    CheckpointUnsupported,
    NameTaken,
    NotStorable,
    ObjectNotFound,
    StoreError,
)
from colabkeep.vocabulary.manifest import FORMAT, BlobRef, Manifest
from colabkeep.vocabulary.names import run_folder
from colabkeep.vocabulary.sealed import costly, seal, unseal
from colabkeep.vocabulary.state import HostTensor, Tree

__all__ = ["CHECKPOINT_ID", "Repository", "id_parts"]

CHECKPOINT_ID = re.compile(r"(\d{12})-([0-9a-f]{8})(?:-(\d{1,6}))?")

_MANY = 16  # manifests; for fewer no threads are started
_READERS = 8  # at 0.1 s a request this is a third of what Drive lets a user ask in a minute (12,000: "Usage limits")


def id_parts(id: str) -> tuple[int, str, int]:
    """Step, session and number of the checkpoint of that id. An id that is none has step 0 and no session."""
    match = CHECKPOINT_ID.fullmatch(id)
    step, session, number = match.groups() if match else ("0", "", "0")
    return int(step), session, int(number or 0)


class Repository:
    """The checkpoints of one run. Used by one thread at a time (the writer's while it works)."""

    def __init__(self, store: Store, run: str) -> None:
        self.store, self.run = store, run  # its name as it is written
        self.folder = check_name(run_folder(run))  # and where its objects lie
        self.listing = Listing(store, self.folder)
        self.blobs = Blobs(store, self.folder, self.listing)
        self._manifests: dict[str, Manifest] = {}
        self._ids: set[str] | None = None
        self.existed = False  # when it was opened, was it there already?

    def ids(self) -> set[str]:
        """The ids of all checkpoints, usable or not."""
        self._ids = _ids_of(self.files("checkpoints"))
        return set(self._ids)

    def seen_ids(self) -> set[str]:
        """The same as of the last time that anybody asked."""
        return self.ids() if self._ids is None else set(self._ids)

    def known_ids(self) -> set[str]:
        """The same, with what this session wrote or read: a listing may lag behind that."""
        return self.ids() | self._manifests.keys()

    def aside(self) -> set[str]:
        """The ids of checkpoints that were found damaged and set aside."""
        return _ids_of(self.files("aside"))

    def files(self, folder: str) -> dict[str, int]:
        """Everything in a folder of the run: name inside the folder → size in bytes."""
        return self.listing.files(folder)

    def manifest(self, id: str) -> Manifest:
        """Read one manifest (kept in memory: manifests never change); another copy if the first is damaged.

        Raises:
            CheckpointDamaged, CheckpointUnsupported: as `Manifest.from_bytes`.
            CheckpointDamaged: it is missing, or belongs to another run.
            StoreError: the store failed.
        """
        if id not in self._manifests:
            try:
                self._manifests[id] = self._read_manifest(id)
            except CheckpointDamaged:
                if not self.store.doubt(f"{self.folder}/checkpoints/{id}.json"):
                    raise
                self._manifests[id] = self._read_manifest(id)
        return self._manifests[id]

    def _read_manifest(self, id: str) -> Manifest:
        manifest = Manifest.from_bytes(self._read_small(f"checkpoints/{id}.json", id), id=id)
        if manifest.run != self.run:
            raise damaged(id, f"it belongs to the run {manifest.run!r}")
        return manifest

    def manifests(self, ids: Iterable[str]) -> list[Manifest]:
        """The readable ones among `ids`, oldest first.

        Raises:
            StoreError: the store failed.
        """
        found, ids = [], list(ids)
        self.read_ahead(ids)
        for id in ids:
            try:
                found.append(self.manifest(id))
            except CheckpointError:
                continue  # found and reported where it matters: on resume and by `verify`
        return sorted(found, key=lambda manifest: manifest.order)

    def read_ahead(self, ids: Iterable[str]) -> None:
        """Have the manifests of these at hand, as far as they can be read; where there are many, several at a time.

        Raises:
            StoreError: the store failed.
        """

        def read(id: str) -> None:
            with suppress(CheckpointError):  # found and reported where it is needed
                self._manifests[id] = self._read_manifest(id)

        unread = [id for id in ids if id not in self._manifests]
        if len(unread) >= _MANY:
            _at_once(read, unread)

    def lost(self, manifest: Manifest) -> list[BlobRef]:
        """The blobs of a checkpoint that are not there, as far as a listing can tell; none if it cannot."""
        if self.store.properties.lists_lag:
            return []
        try:
            present = self.blobs.present()
        except StoreError:
            return []  # whoever asks has other reasons to rely on them
        return [blob for blob in manifest.blobs if present.get(blob.file) != blob.size]

    def load(self, manifest: Manifest, parts: Iterable[str] | None = None) -> dict[str, Tree]:
        """Read and verify the blobs of a checkpoint (those that `parts` need; all by default).

        The tensors are views of freshly read memory, one buffer per blob.

        Raises:
            CheckpointDamaged, CheckpointUnsupported, StoreError: as `Blobs.read`.
        """
        wanted = dict(manifest.parts) if parts is None else {name: manifest.parts[name] for name in parts}
        needed = {number for number, _ in references(wanted)}
        self.blobs.check_sizes(manifest.blobs, manifest.id)
        chosen = [number for number in range(len(manifest.blobs)) if number in needed]
        packs: list[Mapping[str, HostTensor]] = [{} for _ in manifest.blobs]
        read = self.blobs.read_all([manifest.blobs[number] for number in chosen], manifest.id)
        for number, tensors in zip(chosen, read, strict=True):
            packs[number] = tensors
        try:
            return {name: decode_part(node, packs) for name, node in wanted.items()}
        except ValueError as error:
            raise (newer if isinstance(error, UnknownKind) else damaged)(manifest.id, str(error)) from error

    def commit(self, manifest: Manifest) -> Receipt:
        """Write the manifest; the checkpoint exists from now on. Then see that nothing it names is missing.

        Raises:
            CheckpointDamaged: a blob it names has vanished meanwhile. The manifest is taken back.
            NotStorable: the manifest would be too large to be read again.
        """
        text, name = manifest.to_bytes(), f"{self.folder}/checkpoints/{manifest.id}.json"
        if len(text) > SMALL or costly(text):
            raise NotStorable(
                problem=f"The state has {len(text) >> 20} MiB of plain values beside its tensors, which is too much.",
                remedy="Keep long lists, texts and bytes as arrays or tensors, or leave them out of the state.",
            )
        Manifest.check(text, id=manifest.id)  # what cannot be read back must not become the newest checkpoint
        receipt = self.store.put(name, BytesSource(text))
        lost = self.lost(manifest)
        if lost:
            self.store.delete(name)
            for blob in lost:
                self.blobs.distrust(blob)
            raise damaged(manifest.id, f"its file blobs/{lost[0].file} vanished while it was being written")
        self._manifests[manifest.id] = manifest
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
        record = {"id": id, "reason": reason, "protects": sorted(set(self.blobs.present()) - claimed)}
        try:
            self.store.put(f"{self.folder}/aside/{id}.json", BytesSource(seal(record)))
        except NameTaken:
            return  # set aside by an earlier session

    def clear_mark(self, id: str) -> None:
        """The checkpoint was found whole: if it was set aside, it is one of the others again."""
        if id in self.aside():
            self.store.delete(f"{self.folder}/aside/{id}.json")

    def delete_manifest(self, id: str) -> None:
        """The checkpoint does not exist any more; its blobs stay.

        Raises:
            StoreError: the store failed.
        """
        self._manifests.pop(id, None)
        self.store.delete(f"{self.folder}/checkpoints/{id}.json")

    def open_run(self, created: float, run_id: str) -> None:
        """Write `run.json` if this run is new; else see that this version may work on it.

        Raises:
            CheckpointDamaged: `run.json` is not what was written.
            CheckpointUnsupported: the run is in a newer format.
        """
        record: dict[str, Any] = {"format": FORMAT, "run": self.run, "id": run_id, "created": created}
        try:
            self.store.put(f"{self.folder}/run.json", BytesSource(seal(record)))
        except NameTaken:
            self.existed = True
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
            raise CheckpointDamaged(
                problem=f"The file {name} of the run {self.run!r} is damaged: {error}.",
                remedy="Nothing was deleted; `colabkeep verify` shows the whole run.",
            ) from error

    def _read_small(self, name: str, id: str) -> bytes:
        try:
            with self.store.get(f"{self.folder}/{name}") as reader:
                return read_up_to(reader, SMALL + 1)
        except ObjectNotFound as error:
            raise damaged(id, f"{name} is missing") from error


def _ids_of(files: Iterable[str]) -> set[str]:
    names = (file.removesuffix(".json") for file in files if file.endswith(".json"))
    return {name for name in names if CHECKPOINT_ID.fullmatch(name)}


def _at_once(read: Callable[[str], None], ids: Sequence[str]) -> None:
    """Where one fails, those that have not begun do not begin."""
    with ThreadPoolExecutor(_READERS, thread_name_prefix="colabkeep-reader") as pool:
        list(pool.map(read, ids))
