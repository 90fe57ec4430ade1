"""What a store holds: runs and their checkpoints, for people and programs to read. Changes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from colabkeep._engine.codec import references
from colabkeep._engine.lease import fences
from colabkeep._engine.repository import CHECKPOINT_ID, Repository
from colabkeep._engine.restore import newest_first
from colabkeep.stores.base import Store
from colabkeep.vocabulary.errors import CheckpointDamaged, CheckpointError, CheckpointNotFound, CheckpointUnsupported
from colabkeep.vocabulary.manifest import Manifest
from colabkeep.vocabulary.names import is_folder, meant_run, run_name_of

__all__ = [
    "CheckpointInfo",
    "PartInfo",
    "checkpoints",
    "find_run",
    "part_sizes",
    "run_names",
    "run_record",
    "sessions",
]

_OF_A_RUN = re.compile(
    rf"(.+)/(?:run\.json|checkpoints/{CHECKPOINT_ID.pattern}\.json|blobs/[0-9a-f]{{64}}(?:-[0-9a-f]{{8}})?\.safetensors)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo:
    """One checkpoint. `state`: "committed"; "apart", not on the line of the newest one, for its session went on after
    another had taken over, or the run went back and on from before it; "aside", found damaged and walked past; "newer",
    written so by a newer colabkeep that this one cannot read it; or "unreadable".

    `bytes`: its blobs; shared ones count in each. `created`: seconds since 1970 (UTC). Both are None, as are
    `epoch` and `manifest`, where the manifest cannot be read.
    """

    id: str
    step: int
    epoch: int | None
    bytes: int | None
    created: float | None
    state: str
    manifest: Manifest | None


def run_names(store: Store) -> list[str]:
    """The runs in a store, by their names as they were written."""
    found = (_OF_A_RUN.fullmatch(entry.name) for entry in store.list(""))
    folders = {match[1] for match in found if match is not None}
    return sorted(run_name_of(folder) for folder in folders if is_folder(folder))


def find_run(store: Store, run: str) -> Repository:
    """The repository of a run that exists; `run` may also be what its folder is called.

    Raises:
        CheckpointNotFound: the store has no such run.
    """
    known = run_names(store)
    run = meant_run(run)
    if run not in known:
        raise CheckpointNotFound(
            problem=f"There is no run {run!r} in {store.url}.",
            remedy=f"It has: {', '.join(known)}." if known else "It has no runs; check storage=… (--storage).",
        )
    return Repository(store, run)


def checkpoints(repository: Repository) -> list[CheckpointInfo]:
    """The checkpoints of a run, newest first."""
    aside, ids = repository.aside(), newest_first(repository)
    repository.read_ahead(ids)
    found = [_info(repository, id, aside=id in aside) for id in ids]
    newest = next((info.manifest for info in found if info.state == "committed"), None)
    return [_placed(info, newest) for info in found]


def run_record(repository: Repository) -> dict[str, Any]:
    """What `run.json` says; empty where it is missing or damaged."""
    try:
        return repository.sealed_record("run.json")
    except CheckpointDamaged:
        return {}


def sessions(repository: Repository) -> Iterator[dict[str, Any]]:
    """The lease of each session of a run that was not folded, the latest first, each read when it is asked for: at
    least its "session" and "fence"."""
    for session, fence in sorted(fences(repository).items(), key=lambda item: item[1], reverse=True):
        yield _lease(repository, session, fence)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartInfo:
    """One part of a checkpoint; `bytes` are those of its tensors, each counted once."""

    name: str
    tensors: int
    bytes: int


def part_sizes(repository: Repository, manifest: Manifest) -> list[PartInfo]:
    """The parts of a checkpoint. Reads the headers of its blobs only; what it says is not verified.

    Raises:
        CheckpointDamaged: a blob is missing, or its header is not that of one.
    """
    layouts = [repository.blobs.layout(blob, manifest.id) for blob in manifest.blobs]
    sizes = [{key: extent.end - extent.start for key, extent in layout.items()} for layout in layouts]
    try:
        return [_part(name, node, sizes) for name, node in manifest.parts.items()]
    except (LookupError, TypeError) as error:
        raise CheckpointDamaged(
            problem=f"Checkpoint {manifest.id} names a tensor that its blobs do not hold.",
            remedy="`colabkeep verify` shows the whole run.",
        ) from error


def _part(name: str, node: Any, sizes: list[dict[str, int]]) -> PartInfo:
    tensors = {(number, key) for number, key in references(node)}
    return PartInfo(name=name, tensors=len(tensors), bytes=sum(sizes[number][key] for number, key in tensors))


def _lease(repository: Repository, session: str, fence: int) -> dict[str, Any]:
    try:
        record = repository.sealed_record(f"lease/{fence:06d}-{session}.json")
    except CheckpointDamaged:
        record = {}
    return {**record, "session": session, "fence": fence}


def _placed(info: CheckpointInfo, newest: Manifest | None) -> CheckpointInfo:
    """The same, seen from the newest checkpoint."""
    if info.state != "committed" or info.manifest is None or newest is None or newest.continues(info.manifest):
        return info
    return replace(info, state="apart")


def _info(repository: Repository, id: str, *, aside: bool) -> CheckpointInfo:
    match = CHECKPOINT_ID.fullmatch(id)
    step = int(match[1]) if match else 0
    try:
        manifest = repository.manifest(id)
    except CheckpointError as error:
        state = "newer" if isinstance(error, CheckpointUnsupported) else "aside" if aside else "unreadable"
        return CheckpointInfo(id=id, step=step, epoch=None, bytes=None, created=None, state=state, manifest=None)
    return CheckpointInfo(
        id=id,
        step=step,
        epoch=manifest.progress.epoch,
        bytes=manifest.total_bytes,
        created=manifest.created,
        state="aside" if aside else "committed",
        manifest=manifest,
    )
