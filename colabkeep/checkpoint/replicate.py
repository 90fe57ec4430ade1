"""A run in more than one place: what earlier sessions left in one of them only is brought over, or sent.

Stores keep bytes under names. Which of them make a checkpoint, and which one is the newest, is known here. The rest of
what a store of several places has to know is told it as it comes: which blobs a manifest needs (`Manifest.needs`), so
that whole checkpoints are sent; and whose the run is (`Lease.guard`), before anything is deleted on the remote side.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from colabkeep.checkpoint.codec import read_up_to
from colabkeep.checkpoint.repository import Repository
from colabkeep.core.errors import CheckpointError, StoreError, StoreFull
from colabkeep.core.layout import CHECKPOINT_ID, HISTORY_FILE, LEASE_FILE, NOTE, SEGMENT_FILE, SMALL
from colabkeep.core.manifest import Manifest
from colabkeep.stores.base import Entry, Inheriting, Needs, Replicating, inheriting, replicating, sides


def take_up(repository: Repository) -> int:
    """What a writer does first, once it holds the run's lock: remove what a killed one left half-way (as `Store.sweep`,
    whose answer this is), bring over what is in read-only places, and have sent what is on this machine only.
    """
    store = repository.store
    swept = store.sweep(repository.folder)
    if (inherits := inheriting(store)) is not None:
        _bring(repository, inherits)
    if (replicates := replicating(store)) is not None:
        _send(repository, replicates)
    return swept


def _send(repository: Repository, store: Replicating) -> None:
    """The newest checkpoint first, each after its blobs."""
    folder = repository.folder
    entries = {entry.name[len(folder) + 1 :]: entry for entry in store.unsent(folder)}
    blobs = {entry.name: (entry.size, "") for name, entry in entries.items() if name.startswith("blobs/")}
    found: list[tuple[tuple[int, str, int, int], Entry, Needs]] = []
    for name, entry in sorted(entries.items()):
        id = _checkpoint(name)
        if id is None:
            store.send(entry, None)
            continue
        manifest = _local_manifest(store, entry, id)
        # One that cannot be read may name any of them; it is found and told where it matters.
        needs: Needs = blobs if manifest is None else manifest.needs(folder)
        order = (0, "", 0, 0) if manifest is None else manifest.order
        found.append((order, entry, needs))
    for _, entry, needs in sorted(found, key=lambda each: each[0]):
        store.send(entry, needs)


def _local_manifest(store: Replicating, entry: Entry, id: str) -> Manifest | None:
    try:
        with sides(store)[0].get(entry.name) as reader:
            return Manifest.from_bytes(read_up_to(reader, SMALL + 1), id=id)
    except (CheckpointError, StoreError):
        return None


def _bring(repository: Repository, store: Inheriting) -> None:
    """Copy to the front what the run has behind only: the newest checkpoint first, an older one only where room for
    another of its size is left. What cannot be brought hinders nothing else. Orphaned blobs, and what is not the run's
    own, are left where they are.

    The front goes through states that a session could have left: blobs come before the manifest that names them.
    """
    folder = repository.folder
    entries = {entry.name[len(folder) + 1 :]: entry for entry in store.inherited(folder)}
    if not entries:
        store.settle(folder, None)
        return
    names = sorted(name for name, entry in entries.items() if _is_record(name) and entry.size <= SMALL)
    left: list[str] = []
    try:
        _bring_records(store, folder, [name for name in names if not name.startswith("journal/")], left)
        _bring_checkpoints(repository, store, entries.keys(), left)
        _bring_records(store, folder, [name for name in names if name.startswith("journal/")], left)
    except StoreFull as error:
        left.append(error.problem)
    told = (
        f"Some files of {folder!r} from earlier sessions could not be copied to {store.url}, so this session's output "
        f"alone is not complete: attach the earlier outputs again next time. {left[0]}"
        if left
        else None
    )
    store.settle(folder, told)


def _bring_records(store: Inheriting, folder: str, names: Iterable[str], left: list[str]) -> None:
    for name in names:
        try:
            store.bring(f"{folder}/{name}")
        except StoreFull:
            raise
        except (CheckpointError, StoreError) as error:
            left.append(error.problem)


def _bring_checkpoints(repository: Repository, store: Inheriting, behind: Set[str], left: list[str]) -> None:
    here = {f"blobs/{file}" for file in repository.files("blobs")} - behind
    manifests: list[Manifest] = []
    for id in filter(None, map(_checkpoint, sorted(behind))):
        try:
            manifests.append(repository.manifest(id))
        except (CheckpointError, StoreError) as error:
            left.append(error.problem)
    for number, manifest in enumerate(sorted(manifests, key=lambda manifest: manifest.order, reverse=True)):
        missing = [blob for blob in manifest.blobs if f"blobs/{blob.file}" not in here]
        free = store.properties.free_bytes
        if number and free is not None and free < sum(blob.size for blob in missing) + manifest.total_bytes:
            left.append(f"Only {free >> 20} MiB are free, and the next checkpoint needs room too.")
            continue
        try:
            for blob in missing:
                store.bring(f"{repository.folder}/blobs/{blob.file}", (blob.size, blob.sha256))
                here.add(f"blobs/{blob.file}")
            store.bring(f"{repository.folder}/checkpoints/{manifest.id}.json", manifest.origin)
        except StoreFull:
            raise
        except (CheckpointError, StoreError) as error:
            left.append(error.problem)


def _checkpoint(name: str) -> str | None:
    """The id of the checkpoint whose manifest is called so, inside the run."""
    folder, _, file = name.partition("/")
    id = file.removesuffix(".json")
    return id if folder == "checkpoints" and f"{id}.json" == file and CHECKPOINT_ID.fullmatch(id) else None


def _is_record(name: str) -> bool:
    """Is it one of the run's small files, but for manifests?"""
    folder, _, file = name.partition("/")
    if folder == "journal":
        return (SEGMENT_FILE.fullmatch(file) or HISTORY_FILE.fullmatch(file)) is not None
    return (
        name in ("run.json", NOTE)
        or folder == "aside"
        or (folder == "lease" and LEASE_FILE.fullmatch(file) is not None)
    )
