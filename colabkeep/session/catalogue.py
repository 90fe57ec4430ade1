"""What a store holds: runs and their checkpoints, for people and programs to read. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from colabkeep._engine.repository import CHECKPOINT_ID, Repository
from colabkeep._engine.restore import newest_first
from colabkeep.stores.base import Store
from colabkeep.vocabulary.errors import CheckpointError, CheckpointNotFound
from colabkeep.vocabulary.manifest import Manifest

__all__ = ["CheckpointInfo", "checkpoints", "find_run", "run_names"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo:
    """One checkpoint. `state`: "committed"; "aside", found damaged and walked past; or "unreadable".

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
    """The runs in a store, by name."""
    parts = (entry.name.split("/") for entry in store.list(""))
    return sorted({name[0] for name in parts if len(name) > 1 and name[1] in ("run.json", "checkpoints", "blobs")})


def find_run(store: Store, run: str) -> Repository:
    """The repository of a run that exists.

    Raises:
        CheckpointNotFound: the store has no such run.
    """
    known = run_names(store)
    if run not in known:
        raise CheckpointNotFound(
            problem=f"There is no run {run!r} in {store.url}.",
            remedy=f"It has: {', '.join(known)}." if known else "It has no runs; check storage=… (--storage).",
        )
    return Repository(store, run)


def checkpoints(repository: Repository) -> list[CheckpointInfo]:
    """The checkpoints of a run, newest first."""
    aside = repository.aside()
    return [_info(repository, id, aside=id in aside) for id in newest_first(repository)]


def _info(repository: Repository, id: str, *, aside: bool) -> CheckpointInfo:
    match = CHECKPOINT_ID.fullmatch(id)
    step = int(match[1]) if match else 0
    try:
        manifest = repository.manifest(id)
    except CheckpointError:
        state = "aside" if aside else "unreadable"
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
