"""What a storage holds, as the browser shows it: frozen records, read once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from colabkeep._engine.ledger import objects_of
from colabkeep._engine.repository import Repository
from colabkeep.session.catalogue import CheckpointInfo, checkpoints, run_names
from colabkeep.session.durability import durability_of
from colabkeep.stores.base import Store, StoreProperties
from colabkeep.vocabulary.durability import RungName, lowest
from colabkeep.vocabulary.errors import ColabKeepError

__all__ = ["CheckpointShown", "Listing", "RunShown", "StorageShown", "look"]

_ASKED = 8  # checkpoints of a run that the store is asked about: each of their objects may be a request

Watch = Callable[[str, float | None], None]
"""Called as work goes on: a sentence, and the share that is done (None where its length is not known)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageShown:
    """The place: as a user would name it, what it can do, and what is out of order there, in a sentence."""

    url: str
    properties: StoreProperties
    degraded: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointShown:
    """One checkpoint and its rung; None where it has none (it cannot be used), or where it was not asked for: it is too
    old."""

    info: CheckpointInfo
    rung: RungName | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunShown:
    """One run: its checkpoints, newest first; `promise`: what would be lost of it; `metrics`: those it was measured by.
    `trouble`: why it could not be read; then the rest is empty."""

    name: str
    checkpoints: tuple[CheckpointShown, ...] = ()
    promise: str = ""
    metrics: tuple[str, ...] = ()
    trouble: ColabKeepError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Storage and runs, or the `trouble` that kept it from being looked at."""

    storage: StorageShown | None = None
    runs: tuple[RunShown, ...] = ()
    trouble: ColabKeepError | None = None

    def run(self, name: str | None) -> RunShown | None:
        """The run of that name, if it was found."""
        return next((run for run in self.runs if run.name == name), None)


def look(store: Store, watch: Watch = lambda *_: None) -> Listing:
    """Read what there is; a run that cannot be read is listed with its trouble. Changes nothing.

    Raises:
        StoreError: the store cannot be listed.
    """
    watch("Listing the runs …", None)
    names = run_names(store)
    runs = []
    for number, name in enumerate(names):
        watch(f"Reading {name} …", number / len(names))
        runs.append(_run(store, name))
    storage = StorageShown(url=store.url, properties=store.properties, degraded=store.degraded)
    return Listing(storage=storage, runs=tuple(runs))


def _rungs(repository: Repository, found: Iterable[CheckpointInfo]) -> Iterator[tuple[str, RungName]]:
    """Those that can be used, as far as a listing can tell, with their rungs."""
    store, properties = repository.store, repository.store.properties
    present = repository.blobs.present()
    for info in found:
        manifest = info.manifest
        if manifest is None or info.state == "aside":
            continue
        if properties.lists_lag or all(present.get(blob.file) == blob.size for blob in manifest.blobs):
            objects = objects_of(manifest, repository.folder, properties)
            yield info.id, lowest(store.confirm(each).rung for each in objects)


def _run(store: Store, name: str) -> RunShown:
    try:
        repository = Repository(store, name)
        found = checkpoints(repository)
        durability = durability_of(repository)
        rungs = dict(_rungs(repository, found[:_ASKED]))
    except ColabKeepError as error:
        return RunShown(name=name, trouble=error)
    manifests = [info.manifest for info in found if info.manifest is not None]
    return RunShown(
        name=name,
        checkpoints=tuple(CheckpointShown(info=info, rung=rungs.get(info.id)) for info in found),
        promise=durability.sentence,
        metrics=tuple(sorted({metric for manifest in manifests for metric in manifest.metrics})),
    )
