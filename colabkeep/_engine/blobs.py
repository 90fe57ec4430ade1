"""The packs of a run in its store: named by their content, written once, trusted once they were hashed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat

from colabkeep._engine.hashing import hashing_ahead
from colabkeep._engine.listing import Listing
from colabkeep._engine.packs import Extent, Pack, read_layout, unpack
from colabkeep._engine.reading import UnknownKind, read_exactly, sha256_of_stream
from colabkeep._version import __version__
from colabkeep.stores.base import Receipt, Store
from colabkeep.vocabulary.errors import (
    CheckpointDamaged,
    CheckpointUnsupported,
    NameTaken,
    ObjectNotFound,
    StoreUnavailable,
)
from colabkeep.vocabulary.manifest import BlobRef
from colabkeep.vocabulary.state import HostTensor

__all__ = ["BLOB_FILE", "Blobs", "damaged", "newer"]

BLOB_FILE = re.compile(r"([0-9a-f]{64})(?:-[0-9a-f]{8})?\.safetensors")
_READERS = 2  # files at once: reading and hashing let other threads run, and free notebooks have two cores


class Blobs:
    """The files below `<run>/blobs`. `id` is the checkpoint on whose behalf one is read, for the error's text."""

    def __init__(self, store: Store, run: str, listing: Listing) -> None:
        self._store = store
        self._listing = listing
        self._folder = f"{run}/blobs"
        self._trusted: set[str] = set()  # files whose bytes this session wrote or hashed
        self._looked = False
        self.known: set[str] = set()  # files that were there when it was first looked, and those written since
        self.own: set[str] = set()  # those that this session wrote, or tried to
        self._receipts: dict[str, Receipt] = {}  # object name → receipt, of what was written since it was asked last

    def present(self) -> dict[str, int]:
        """File → size in bytes. What somebody else has put there is none of ours: it is not even seen."""
        found = {file: size for file, size in self._listing.files("blobs").items() if BLOB_FILE.fullmatch(file)}
        if not self._looked:
            self._looked = True
            self.known |= found.keys()
        return found

    def read(self, blob: BlobRef, id: str) -> dict[str, HostTensor]:
        """The tensors of one blob, its size and digest checked; views of one fresh buffer.

        Where the store has another copy of a damaged one, that is read.

        Raises:
            CheckpointDamaged: its bytes are not those that were written.
            CheckpointUnsupported: it does not fit into this machine's memory, or holds tensors of an unknown dtype.
            StoreError: the store failed.
        """
        try:
            return self._read(blob, id)
        except CheckpointDamaged:
            if not self._store.doubt(self._name(blob.file)):
                raise
        return self._read(blob, id)

    def _read(self, blob: BlobRef, id: str) -> dict[str, HostTensor]:
        try:
            with self._store.get(self._name(blob.file)) as reader:
                data, sha256 = read_exactly(reader, blob.size)
            if sha256 != blob.sha256:
                raise ValueError("it is not what was written (its digest differs)")
            self._trusted.add(blob.file)
            return unpack(data)
        except ObjectNotFound as error:
            raise damaged(id, f"its file blobs/{blob.file} is missing") from error
        except UnknownKind as error:
            raise newer(id, f"its file blobs/{blob.file}: {error}") from error
        except ValueError as error:
            raise damaged(id, f"its file blobs/{blob.file}: {error}") from error
        except MemoryError as error:
            raise CheckpointUnsupported(
                problem=f"Checkpoint {id} cannot be used here: blobs/{blob.file} needs {blob.size} bytes of memory.",
                remedy="Use a machine with more memory. Nothing was changed.",
            ) from error

    def read_all(self, blobs: Sequence[BlobRef], id: str) -> list[dict[str, HostTensor]]:
        """The same for several.

        Raises:
            CheckpointDamaged, CheckpointUnsupported, StoreError: as `read`, of the first that fails.
        """
        with ThreadPoolExecutor(_READERS, thread_name_prefix="colabkeep-reader") as pool:
            return list(pool.map(self.read, blobs, repeat(id)))

    def layout(self, blob: BlobRef, id: str) -> dict[str, Extent]:
        """Where the tensors of one blob lie, as its header says; its bytes are not read.

        Raises:
            CheckpointDamaged: it is missing, or no file of tensors.
            CheckpointUnsupported: it holds tensors of an unknown dtype.
        """
        try:
            with self._store.get(self._name(blob.file)) as reader:
                return read_layout(reader, blob.size)
        except ObjectNotFound as error:
            raise damaged(id, f"its file blobs/{blob.file} is missing") from error
        except UnknownKind as error:
            raise newer(id, f"its file blobs/{blob.file}: {error}") from error
        except ValueError as error:
            raise damaged(id, f"its file blobs/{blob.file}: {error}") from error

    def check_sizes(self, blobs: Sequence[BlobRef], id: str) -> None:
        """See, before any memory is asked for, that the files are as large as they should be.

        Raises:
            CheckpointDamaged: one is not, or is missing.
        """
        present = self.present()
        for blob in blobs:
            size = present.get(blob.file)
            if size is None and not self._store.properties.lists_lag:
                raise damaged(id, f"its file blobs/{blob.file} is missing")
            if size is not None and size != blob.size and not self._store.doubt(self._name(blob.file)):
                raise damaged(id, f"its file blobs/{blob.file} has {size} bytes, written were {blob.size}")

    def put_all(self, packs: Sequence[Pack], session: str) -> tuple[tuple[BlobRef, ...], int]:
        """Make sure that the bytes of all packs are in the store; returns their references, and the bytes written.

        Raises:
            CheckpointDamaged, Stale, StoreError: as `put`, of the first that fails.
        """
        present, found, written = self.present(), dict[Pack, BlobRef](), 0
        for pack in packs:
            if not pack.hashed:
                pack.look()
        with hashing_ahead(packs) as order:
            for pack in order:
                found[pack], size = self.put(pack, session, present)
                written += size
        return tuple(found[pack] for pack in packs), written

    def put(self, pack: Pack, session: str, present: Mapping[str, int]) -> tuple[BlobRef, int]:
        """Make sure the pack's bytes are in the store; returns its reference and the bytes written.

        A blob that is there already is referenced, once its bytes are known to be good. One that is damaged, or cannot
        be read for now, is not touched: a good copy is written beside it under the session's name.

        Raises:
            CheckpointDamaged: the copy is damaged too.
            Stale: its bytes are needed, and were let go of.
            StoreError: the store failed.
        """
        for name in (pack.sha256, f"{pack.sha256}-{session}"):
            blob = BlobRef(sha256=pack.sha256, size=pack.size, file=f"{name}.safetensors")
            if blob.file not in present:
                pack.look()
                self.known.add(blob.file)  # first: what fails may have been stored all the same
                tried = blob.file in self.own
                self.own.add(blob.file)
                try:
                    self._receipts[self._name(blob.file)] = self._store.put(self._name(blob.file), pack)
                except NameTaken:  # the listing is older, or lags
                    if not tried:  # else an answer may have been lost
                        self.own.discard(blob.file)
                else:
                    self._trusted.add(blob.file)
                    return blob, pack.size
            try:
                if self._good(blob):
                    return blob, 0
            except StoreUnavailable:
                if name != pack.sha256 or self._store.properties.behind is None:
                    raise  # else it is away behind this machine's disk, which takes a copy
        raise CheckpointDamaged(
            problem=f"blobs/{pack.sha256}.safetensors and the copy beside it are both not what was written.",
            remedy="This storage changes what it is given: choose another with storage=….",
        )

    def new_receipts(self) -> dict[str, Receipt]:
        """Of what this session wrote since it was asked last, by object name."""
        receipts, self._receipts = self._receipts, {}
        return receipts

    def distrust(self, blob: BlobRef) -> None:
        """Its bytes are not what they were: hash them before they are referenced again."""
        self._trusted.discard(blob.file)
        self._receipts.pop(self._name(blob.file), None)

    def forget(self) -> None:
        """The same of all."""
        self._trusted.clear()
        self._receipts.clear()

    def delete(self, file: str) -> None:
        """Remove one file."""
        self._store.delete(self._name(file))
        self._trusted.discard(file)
        self._receipts.pop(self._name(file), None)

    def _good(self, blob: BlobRef) -> bool:
        if blob.file not in self._trusted:
            try:
                with self._store.get(self._name(blob.file)) as reader:
                    if sha256_of_stream(reader) != (blob.size, blob.sha256):
                        return False
            except ObjectNotFound:
                return False
            self._trusted.add(blob.file)
        return True

    def _name(self, file: str) -> str:
        return f"{self._folder}/{file}"


def damaged(id: str, why: str) -> CheckpointDamaged:
    """The error for a checkpoint that cannot be used."""
    return CheckpointDamaged(
        problem=f"Checkpoint {id} cannot be used: {why}.",
        remedy="An older one is used if there is one. Nothing was deleted; `colabkeep verify` shows the whole run.",
    )


def newer(id: str, why: str) -> CheckpointUnsupported:
    """The error for a checkpoint whose bytes are as they were written, and whose meaning this version does not know."""
    return CheckpointUnsupported(
        problem=f"Checkpoint {id} is of a newer colabkeep than this one ({__version__}): {why}.",
        remedy="Update colabkeep (pip install -U colabkeep) and run again. Nothing was changed.",
    )
