"""A run copied from one store to another, under its own name or another one: whole checkpoints, the newest first.

Nothing in the source changes. In the target nothing is overwritten, so that a copy that was broken off is taken up
again: what is there already is compared, not written. Moving a run is copying it, and then removing the source by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import TypeAlias

from colabkeep.checkpoint.codec import CHUNK, read_up_to, sha256_of_stream
from colabkeep.checkpoint.compaction import unfolded
from colabkeep.checkpoint.journal import LOOKS
from colabkeep.checkpoint.repository import Repository, damaged
from colabkeep.checkpoint.restore import newest_first
from colabkeep.core.errors import (
    CheckpointDamaged,
    CheckpointError,
    CheckpointUnsupported,
    NameTaken,
    ObjectNotFound,
    StoreError,
    UsageError,
)
from colabkeep.core.layout import HISTORY_FILE, LEASE_FILE, NOTE, SEGMENT_FILE, SMALL, seal, unseal
from colabkeep.core.manifest import BlobRef, Manifest
from colabkeep.core.system import Clock
from colabkeep.session.open import take_lock, this_process
from colabkeep.stores.base import BytesSource, DurabilityLevel, Receipt, Source, sides

_PATIENCE = 3600.0  # seconds for a place that takes what it was given by itself, as a mounted Drive does

Watch: TypeAlias = Callable[[str, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What was copied, or would be. `checkpoints`: ids, the newest first; `left_out`: id → why; `newer`: those of them
    that a newer version can copy. `written` and `there`: objects, and those that the target had already; `bytes`: of
    what was written. `arrived`: is all of it in the place that lasts, read there and found the same? `trouble`: what is
    wrong with the target, where it is not."""

    checkpoints: tuple[str, ...]
    left_out: Mapping[str, str]
    newer: frozenset[str]
    written: int
    there: int
    bytes: int
    arrived: bool
    trouble: str | None = None


def plan_copy(source: Repository, target: Repository) -> Copied:
    """What `copy_run` would do; nothing is written, and blobs are not read."""
    return _Copy(source, target, None).copy()


def copy_run(source: Repository, target: Repository, clock: Clock, watch: Watch = lambda *_: None) -> Copied:
    """Copy every checkpoint that is whole, the journal and the leases, and see that the target has what was read. Of a
    pair of stores that is the one that lasts: what is copied there needs no room on this machine.

    Whoever trains the source may go on; what it prunes meanwhile is left out. `watch` is called with the name inside
    the run and the bytes of each object that was written.

    Raises:
        UsageError: the target is another run, or was trained by itself.
        RunBusy: the target is being trained.
        CheckpointDamaged: the target does not hold the bytes that were written to it.
        StoreError: a store failed, or refuses what was copied. That stays; the next attempt goes on from there.
    """
    with take_lock(target.store, target.run, this_process(clock)):
        try:
            return _Copy(source, target, watch).copy()
        except StoreError as error:
            raise StoreError(
                problem=f"The copy of {source.run!r} is not complete: {error.problem}",
                remedy=f"{error.remedy} Then run the same command again: it continues from there. "
                "Keep the source; nothing in it was changed.",
            ) from error


class _Copy:
    """One copy; without a `watch` it is only planned. `_sums`: what the target must hold in the end, size and digest by
    the name inside the run."""

    def __init__(self, source: Repository, target: Repository, watch: Watch | None) -> None:
        stores = source.store, target.store
        same = stores[0] is stores[1] or (stores[0].url == stores[1].url and stores[0].properties.persists is not False)
        if same and source.folder == target.folder:
            raise UsageError(
                problem=f"The run {source.run!r} would be copied to where it is.",
                remedy="Name another storage, or another name for the copy: --as NAME.",
            )
        self._source, self._target, self._watch = source, target, watch
        self._lasting, folder = sides(target.store)[-1], target.folder
        if watch is not None:
            self._lasting.sweep(folder)
        self._present = {entry.name[len(folder) + 1 :]: entry.size for entry in self._lasting.list(folder)}
        self._sums: dict[str, tuple[int, str]] = {}
        self._written = self._bytes = 0
        self._refuse_another()

    def copy(self) -> Copied:
        ids, left_out, newer = [], dict[str, str](), set[str]()
        for name, text in self._small():
            self._put(name, BytesSource(text))
        for id in newest_first(self._source):
            try:
                text, manifest = self._manifest(id)
                for blob in manifest.blobs:
                    self._put(f"blobs/{blob.file}", _Blob(self._source, blob, id))
                self._put(f"checkpoints/{id}.json", BytesSource(text, needs=manifest.needs(self._target.folder)))
                ids.append(id)
            except CheckpointError as error:
                left_out[id] = error.problem
                if isinstance(error, CheckpointUnsupported):
                    newer.add(id)
        arrived = self._watch is not None and self._lasting.flush(_PATIENCE)
        if arrived:
            self._compare()
        return Copied(
            checkpoints=tuple(ids),
            left_out=left_out,
            newer=frozenset(newer),
            written=self._written,
            there=len(self._sums) - self._written,
            bytes=self._bytes,
            arrived=arrived,
            trouble=None if arrived or self._watch is None else self._lasting.degraded,
        )

    def _refuse_another(self) -> None:
        ours = set(self._source.files("lease"))
        own = {name for name in set(self._target.files("lease")) - ours if LEASE_FILE.fullmatch(name)}
        if own:  # or folded since an earlier copy
            own -= unfolded(self._source).files("lease").keys()
        if own or ("run.json" in self._present and self._id(self._target) != self._id(self._source)):
            raise UsageError(
                problem=f"{self._target.store.url} has a run {self._target.run!r} that is not a copy of this one, "
                "or was trained since. Nothing was copied.",
                remedy="Copy it under another name: --as NAME.",
            )

    @staticmethod
    def _id(repository: Repository) -> object:
        return repository.sealed_record("run.json").get("id")

    def _small(self) -> Iterator[tuple[str, bytes]]:
        """Everything but the checkpoints, which come behind it: a copy that was broken off is a run whose checkpoints
        are missing, and not a new one."""
        yield from self._sessions()
        try:
            yield "run.json", self._renamed(self._text("run.json"))
            yield NOTE, self._text(NOTE)
        except (ObjectNotFound, ValueError):
            return  # the checkpoints can be used without them; `colabkeep verify` tells of the first

    def _sessions(self) -> Iterator[tuple[str, bytes]]:
        """The leases and the journal. What is gone when it is read was folded meanwhile: the new file is listed."""
        read: set[str] = set()
        for _ in range(LOOKS):
            gone = False
            for folder, pattern in (("lease", LEASE_FILE), ("journal", SEGMENT_FILE), ("journal", HISTORY_FILE)):
                for file in sorted(filter(pattern.fullmatch, self._source.files(folder))):
                    name = f"{folder}/{file}"
                    if name in read:
                        continue
                    try:
                        yield name, self._text(name)
                        read.add(name)
                    except ObjectNotFound:
                        gone = True
            if not gone:
                return

    def _manifest(self, id: str) -> tuple[bytes, Manifest]:
        """Its text in the target, and what it says in the source."""
        if id in self._source.quarantined():
            raise damaged(id, "it was found damaged before, and marked")
        manifest = self._source.manifest(id)
        lost = self._source.lost(manifest)
        if lost:
            raise damaged(id, f"its file blobs/{lost[0].file} is missing")
        try:
            return self._renamed(self._text(f"checkpoints/{id}.json")), manifest
        except (ObjectNotFound, ValueError) as error:
            raise damaged(id, f"its manifest was not to be read again ({error})") from error

    def _renamed(self, text: bytes) -> bytes:
        """What an older or newer version wrote beside the name stays as it is."""
        record = unseal(text)
        return text if self._source.run == self._target.run else seal({**record, "run": self._target.run})

    def _text(self, name: str) -> bytes:
        with self._source.store.get(f"{self._source.folder}/{name}") as reader:
            return read_up_to(reader, SMALL + 1)

    def _put(self, name: str, source: Source) -> None:
        if name in self._sums:
            return  # a blob that two checkpoints share
        if name not in self._present and self._watch is not None:
            try:
                self._lasting.put(f"{self._target.folder}/{name}", source)
            except NameTaken:  # the listing lags, or the answer to an earlier attempt was lost: it is compared
                self._present[name] = source.size
        self._sums[name] = source.size, source.sha256
        if name not in self._present:
            self._written += 1
            self._bytes += source.size
            if self._watch is not None:
                self._watch(name, source.size)

    def _compare(self) -> None:
        """Each object in the place that lasts: the remote states its digest, or it is read."""
        lasting = self._lasting
        level: DurabilityLevel = "local" if lasting.properties.top_level == "local" else "sent"
        for name, (size, digest) in self._sums.items():
            whole = f"{self._target.folder}/{name}"
            if lasting.confirm(Receipt(name=whole, size=size, sha256=digest, level=level)).level == "confirmed":
                continue
            try:
                with lasting.get(whole) as reader:
                    same = sha256_of_stream(reader) == (size, digest)
            except ObjectNotFound:
                same = False
            if not same:
                raise CheckpointDamaged(
                    problem=f"{lasting.url} does not hold the bytes of {whole} that were copied there.",
                    remedy="Remove that file there, and run the same command again: it copies what is missing. "
                    "The source was not changed.",
                )


class _Blob:
    """The bytes of a blob where they lie; whoever reads them to the end has read those that were written, or an error:
    so nothing damaged ever stands in the target."""

    def __init__(self, repository: Repository, blob: BlobRef, id: str) -> None:
        self._repository, self._blob, self._id = repository, blob, id
        self.size, self.sha256 = blob.size, blob.sha256

    def chunks(self) -> Iterator[memoryview]:
        """In pieces of a MiB."""
        digest, size = sha256(), 0
        try:
            with self._repository.store.get(f"{self._repository.folder}/blobs/{self._blob.file}") as reader:
                while piece := reader.read(CHUNK):
                    digest.update(piece)
                    size += len(piece)
                    if size >= self.size and (size, digest.hexdigest()) != (self.size, self.sha256):
                        break
                    yield memoryview(piece)
        except ObjectNotFound as error:
            raise damaged(self._id, f"its file blobs/{self._blob.file} is missing") from error
        if (size, digest.hexdigest()) != (self.size, self.sha256):
            raise damaged(self._id, f"its file blobs/{self._blob.file} is not what was written (its digest differs)")
