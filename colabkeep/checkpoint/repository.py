"""One run's share of a store: where things lie, in which order they come and go, packs that are written and trusted
once, and the lease by which a session may write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any, BinaryIO

from colabkeep._version import __version__
from colabkeep.checkpoint.codec import (
    Extent,
    Moving,
    Pack,
    UnknownKind,
    decode_part,
    hashing_ahead,
    read_exactly,
    read_layout,
    read_up_to,
    references,
    sha256_of_stream,
    unpack,
)
from colabkeep.core.arguments import run_folder
from colabkeep.core.errors import (
    CheckpointDamaged,
    CheckpointError,
    CheckpointUnsupported,
    NameTaken,
    NotStorable,
    ObjectNotFound,
    RunTakenOver,
    StoreError,
    StoreUnavailable,
)
from colabkeep.core.layout import BLOB_FILE, CHECKPOINT_ID, LEASE_FILE, SMALL, costly, lease_name, seal, unseal
from colabkeep.core.manifest import FORMAT, BlobRef, Manifest
from colabkeep.core.state import HostTensor, Tree
from colabkeep.stores.base import BytesSource, Receipt, Store, check_name, replicating

_READERS = 2  # files at once: reading and hashing let other threads run, and free notebooks have two cores


class Blobs:
    """The files below `<run>/blobs`. `id` is the checkpoint on whose behalf one is read, for the error's text."""

    def __init__(self, store: Store, run: str, files: Callable[[str], Mapping[str, int]]) -> None:
        self._store = store
        self._files = files  # as `Repository.files`
        self._folder = f"{run}/blobs"
        self._trusted: set[str] = set()  # files whose bytes this session wrote or hashed
        self._looked = False
        self.known: set[str] = set()  # files that were there when it was first looked, and those written since
        self.own: set[str] = set()  # those that this session wrote, or tried to
        self._receipts: dict[str, Receipt] = {}  # object name → receipt, of what was written since it was asked last

    def present(self) -> dict[str, int]:
        """File → size in bytes. What somebody else has put there is none of ours: it is not even seen."""
        found = {file: size for file, size in self._files("blobs").items() if BLOB_FILE.fullmatch(file)}
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
        """
        try:
            return self._read(blob, id)
        except CheckpointDamaged:
            if not self._store.doubt(self._name(blob.file)):
                raise
        return self._read(blob, id)

    def _read(self, blob: BlobRef, id: str) -> dict[str, HostTensor]:
        try:
            with self._reading(blob, id) as reader:
                data, sha256 = read_exactly(reader, blob.size)
                if sha256 != blob.sha256:
                    raise ValueError("it is not what was written (its digest differs)")
                self._trusted.add(blob.file)
                return unpack(data)
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
        with self._reading(blob, id) as reader:
            return read_layout(reader, blob.size)

    @contextmanager
    def _reading(self, blob: BlobRef, id: str) -> Iterator[BinaryIO]:
        """Its bytes; what they turn out to be is told of the checkpoint."""
        try:
            with self._store.get(self._name(blob.file)) as reader:
                yield reader
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

    def put_all(
        self, packs: Sequence[Pack], session: str, moved: Callable[[], None]
    ) -> tuple[tuple[BlobRef, ...], int]:
        """Make sure that the bytes of all packs are in the store; returns their references, and the bytes written.
        `moved` is called as long as that gets on.

        Raises:
            CheckpointDamaged, Stale, StoreError: as `put`, of the first that fails.
        """
        present, found, written = self.present(), dict[Pack, BlobRef](), 0
        for pack in packs:
            if not pack.hashed:
                pack.look()
        with hashing_ahead(packs) as order:
            for pack in order:
                found[pack], size = self.put(pack, session, present, moved)
                written += size
        return tuple(found[pack] for pack in packs), written

    def put(
        self, pack: Pack, session: str, present: Mapping[str, int], moved: Callable[[], None] = lambda: None
    ) -> tuple[BlobRef, int]:
        """Make sure the pack's bytes are in the store; returns its reference and the bytes written.

        A blob that is there already is referenced, once its bytes are known to be good. One that is damaged, or cannot
        be read for now, is not touched: a good copy is written beside it under the session's name.

        Raises:
            CheckpointDamaged: the copy is damaged too.
            Stale: its bytes are needed, and were let go of.
        """
        for name in (pack.sha256, f"{pack.sha256}-{session}"):
            blob = BlobRef(sha256=pack.sha256, size=pack.size, file=f"{name}.safetensors")
            if blob.file not in present:
                pack.look()
                self.known.add(blob.file)  # first: what fails may have been stored all the same
                tried = blob.file in self.own
                self.own.add(blob.file)
                try:
                    receipt = self._store.put(self._name(blob.file), Moving(pack, moved))
                except NameTaken:  # the listing is older, or lags
                    if not tried:  # else an answer may have been lost
                        self.own.discard(blob.file)
                else:
                    self._receipts[receipt.name] = receipt
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


# Nothing is overwritten. Blobs come before the manifest that names them; the manifest's presence is the commit.
# Manifests go before the blobs that only they named.


_MANY = 16  # manifests; for fewer no threads are started
_REQUESTS_AT_ONCE = (
    8  # at 0.1 s a request this is a third of what Drive lets a user ask in a minute (12,000: "Usage limits")
)


class Repository:
    """The checkpoints of one run. Used by one thread at a time (the writer's while it works)."""

    def __init__(self, store: Store, run: str) -> None:
        self.store, self.run = store, run  # its name as it is written
        self.folder = check_name(run_folder(run))  # and where its objects lie
        self.blobs = Blobs(store, self.folder, self.files)
        # folder ("": all) → name inside the run → size in bytes, while one look is to do
        self._seen: dict[str, Mapping[str, int]] | None = None
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

    def quarantined(self) -> set[str]:
        """The ids of checkpoints that were found damaged and quarantined."""
        return _ids_of(self.files("aside"))

    def files(self, folder: str) -> dict[str, int]:
        """Everything in a folder of the run ("": in all): name inside the folder → size in bytes."""
        found = None if self._seen is None else self._seen.get("", self._seen.get(folder))
        if found is None:
            found = self._below(folder)
            if self._seen is not None:
                self._seen[folder] = found
        inside = f"{folder}/" if folder else ""
        return {name[len(inside) :]: size for name, size in found.items() if name.startswith(inside)}

    @contextmanager
    def one_look(self) -> Iterator[None]:
        """Until this ends, `files` answers from one listing of all folders, made now; see `look_again`."""
        with self.each_once():
            self.files("")
            yield

    @contextmanager
    def each_once(self) -> Iterator[None]:
        """Until this ends, a folder is listed when it is first asked for, and not again."""
        self._seen = {}
        try:
            yield
        finally:
            self._seen = None

    def look_again(self) -> None:
        """What that look showed is not relied on any more: the store is asked each time."""
        self._seen = None

    def _below(self, folder: str) -> dict[str, int]:
        prefix = f"{self.folder}/{folder}".rstrip("/")
        return {entry.name[len(self.folder) + 1 :]: entry.size for entry in self.store.list(prefix)}

    def has(self, name: str) -> bool:
        """Is this file of the run there? It is asked for by its name: a listing may lack what is new."""
        try:
            self.store.get(f"{self.folder}/{name}").close()
        except ObjectNotFound:
            return False
        return True

    def manifest(self, id: str) -> Manifest:
        """Read one manifest (kept in memory: manifests never change); another copy if the first is damaged.

        Raises:
            CheckpointDamaged, CheckpointUnsupported: as `Manifest.from_bytes`.
            CheckpointDamaged: it is missing, or belongs to another run.
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
        """The readable ones among `ids`, oldest first."""
        found, ids = [], list(ids)
        self.read_ahead(ids)
        for id in ids:
            try:
                found.append(self.manifest(id))
            except CheckpointError:
                continue  # found and reported where it matters: on resume and by `verify`
        return sorted(found, key=lambda manifest: manifest.order)

    def read_ahead(self, ids: Iterable[str]) -> None:
        """Have the manifests of these at hand, as far as they can be read; where there are many, several at a time."""

        def read(id: str) -> None:
            with suppress(CheckpointError):  # found and reported where it is needed
                self._manifests[id] = self._read_manifest(id)

        unread = [id for id in ids if id not in self._manifests]
        if len(unread) >= _MANY:
            with ThreadPoolExecutor(_REQUESTS_AT_ONCE, thread_name_prefix="colabkeep-reader") as pool:
                list(pool.map(read, unread))  # where one fails, those that have not begun do not begin

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
        # What cannot be read back must not become the newest checkpoint.
        Manifest.from_bytes(text, id=manifest.id, whole=False)
        receipt = self.store.put(name, BytesSource(text, needs=manifest.needs(self.folder)))
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

    def quarantine(self, id: str, reason: str) -> None:
        """Mark a checkpoint as damaged, for all sessions to come. It is not touched.

        The mark also names the blobs that no readable checkpoint claims: they may be this one's,
        and are kept for whoever wants to rescue it.
        """
        claimed = {blob.file for manifest in self.manifests(self.ids() - {id}) for blob in manifest.blobs}
        record = {"id": id, "reason": reason, "protects": sorted(set(self.blobs.present()) - claimed)}
        try:
            self.store.put(f"{self.folder}/aside/{id}.json", BytesSource(seal(record)))
        except NameTaken:
            return  # quarantined by an earlier session

    def clear_mark(self, id: str) -> None:
        """The checkpoint was found whole: if it is in quarantine, it is one of the others again."""
        if id in self.quarantined():
            self.store.delete(f"{self.folder}/aside/{id}.json")

    def delete_manifest(self, id: str) -> None:
        """The checkpoint does not exist any more; its blobs stay."""
        self._manifests.pop(id, None)
        self.store.delete(f"{self.folder}/checkpoints/{id}.json")

    def open_run(self, created: float, run_id: str) -> str:
        """Write `run.json` if this run is new; else see that this version may work on it. Returns the run's id.

        Raises:
            CheckpointDamaged: `run.json` is not what was written.
            CheckpointUnsupported: the run is in a newer format.
        """
        record: dict[str, Any] = {"format": FORMAT, "run": self.run, "id": run_id, "created": created}
        try:
            self.store.put(f"{self.folder}/run.json", BytesSource(seal(record), needs={}))
        except NameTaken:
            self.existed = True
            record = self.sealed_record("run.json")
        if type(record.get("format")) is int and record["format"] > FORMAT:
            raise CheckpointUnsupported(
                problem=f"The run {self.run!r} is kept in format {record['format']}; this colabkeep knows {FORMAT}.",
                remedy="Update colabkeep (pip install -U colabkeep) and run again. Nothing was changed.",
            )
        return str(record.get("id", ""))

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


KEEPS = "keeps"
"""What a lease's record calls the rule by which its session kept checkpoints, in any words that say the same for the
same rule."""

_MOST = 10**12  # no run has as many sessions: a higher number is not ours, and could not be outranked


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """This session's right to write the run, as long as no higher one exists: the highest (fence, session) wins.

    It is one sealed record, written once. A killed session's lease stops nobody. A zombie, that is an old machine that
    still runs after the user moved on, finds a higher number before its next commit and stops.
    """

    repository: Repository
    session: str
    fence: int
    about: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """See that no newer session has come.

        Raises:
            RunTakenOver: one has; this session's work since then is not part of the run.
        """
        session = self.overtaken_by()
        if session is not None:
            raise RunTakenOver(
                problem=(
                    f"The run {self.repository.run!r} was taken over by session {session}"
                    f"{_who(self.repository, session)}; this one is session {self.session}. "
                    "What it trains from now on would not be part of the run, so it stops."
                ),
                remedy="Go on in the notebook that took over; or stop that one and run this cell again.",
            )

    def overtaken_by(self) -> str | None:
        """The newer session that has the run; None where this one has it."""
        highest = max(((fence, session) for session, fence in _leases(self.repository).items()), default=(0, ""))
        return highest[1] if highest > (self.fence, self.session) else None

    def guard(self) -> None:
        """From now on nothing of the run is deleted on the remote side of its store once a newer session has it: that
        may be hours after this machine lost its connection, and the other one may need what this one does not."""
        store = replicating(self.repository.store)
        if store is not None:
            # A repository of its own: what it remembers of listings is not for two threads.
            own = replace(self, repository=Repository(self.repository.store, self.repository.run))
            store.guard(self.repository.folder, own._why_not)

    def _why_not(self) -> str | None:
        session = self.overtaken_by()
        return None if session is None else f"Session {session} has taken over {self.repository.run!r}"

    def stands(self) -> bool:
        """Is this session's own record there still?"""
        return self.session in _leases(self.repository) or self.repository.has(self._file)

    def keeps_like(self, fence: int, session: str) -> bool:
        """Was that session told to keep the same checkpoints as this one? Not known of those of the first versions."""
        try:
            return self._says_the_same(fence, session, KEEPS)
        except CheckpointDamaged:
            return False

    def is_of_same_process(self) -> bool:
        """Was the session before this one of this process, too? Not known of those of earlier versions, nor where the
        lease cannot be read now: it chooses a sentence, and must not end a training."""
        try:
            before = [(fence, session) for session, fence in _leases(self.repository).items() if fence < self.fence]
            return bool(before) and self._says_the_same(*max(before), "pid", "process")
        except (CheckpointDamaged, StoreError):
            return False

    def _says_the_same(self, fence: int, session: str, *names: str) -> bool:
        """Does the lease of that session hold the same under each of these names?"""
        record = self.repository.sealed_record(lease_name(fence, session))
        return all(name in record and record[name] == self.about.get(name) for name in names)

    def renew(self) -> None:
        """Write the record; one that is there already stays."""
        record = {"session": self.session, "fence": self.fence, **self.about}
        with suppress(NameTaken):
            self.repository.store.put(f"{self.repository.folder}/{self._file}", BytesSource(seal(record), needs={}))

    @property
    def _file(self) -> str:
        return lease_name(self.fence, self.session)


def fences(repository: Repository) -> dict[str, int]:
    """Session → fencing number, of all sessions that ever wrote this run.

    Where a lease was lost, a manifest of that session says the same, if it was there when anybody looked last.
    """
    found = _leases(repository)
    for id in repository.seen_ids():
        session = id.split("-")[1]
        if session not in found:
            found.update((manifest.session, manifest.fence) for manifest in repository.manifests([id]))
    return found


def _leases(repository: Repository) -> dict[str, int]:
    found = map(LEASE_FILE.fullmatch, repository.files("lease"))
    return {match[2]: int(match[1]) for match in found if match is not None}


def take_lease(repository: Repository, session: str, about: Mapping[str, Any]) -> Lease:
    """Take the next fencing number. `about` says who this is (machine, process, start), for people to read.

    Raises:
        RunTakenOver: another session took it at this very moment.
        CheckpointDamaged: the highest number is one that no session can have taken.
    """
    fence = max(fences(repository).values(), default=0) + 1
    if fence >= _MOST:
        raise CheckpointDamaged(
            problem=f"A file of the run {repository.run!r} claims to be of session number {fence - 1}; none had that.",
            remedy="It is not one of colabkeep's: remove it from lease/ or checkpoints/. `colabkeep verify` names it.",
        )
    lease = Lease(repository=repository, session=session, fence=fence, about=about)
    lease.guard()  # in place of that of an earlier session of this process, which is not to take this one for a newer
    lease.renew()
    lease.check()  # another session may have taken the same number at this very moment
    return lease


def _who(repository: Repository, session: str) -> str:
    fence = _leases(repository).get(session, 0)
    try:
        record = repository.sealed_record(lease_name(fence, session))
    except CheckpointDamaged:
        return ""  # the number in the name is what counts
    return f" (on {record.get('host', 'an unnamed machine')}, process {record.get('pid', '?')})"
