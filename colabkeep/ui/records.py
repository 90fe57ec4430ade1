"""What the command line tells, as records for machines. Reads only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from colabkeep.checkpoint.compaction import unfolded
from colabkeep.checkpoint.inspect import (
    CheckpointInfo,
    checkpoints,
    durability_of,
    part_sizes,
    run_names,
    run_record,
    sessions,
)
from colabkeep.checkpoint.repository import Repository
from colabkeep.checkpoint.verify import Finding, audit
from colabkeep.core.durability import Durability
from colabkeep.core.errors import CheckpointDamaged, CheckpointNotFound, CheckpointUnsupported
from colabkeep.core.manifest import Manifest
from colabkeep.session.prune import PrunePlan
from colabkeep.stores.base import Store
from colabkeep.ui.text import Record

__all__ = ["BAD", "durability_record", "list_record", "prune_record", "show_record", "verify_record"]

BAD = frozenset({"damaged", "missing", "unreadable"})
"""States of a file that speak of damage."""


def list_record(store: Store) -> Record:
    """All runs with their checkpoints, newest first."""
    return {"runs": [{"name": name, "checkpoints": _briefs(Repository(store, name))} for name in run_names(store)]}


def show_record(repository: Repository, id: str | None) -> Record:
    """One run, and the checkpoint `id` (the newest that can be read, if None) from inside.

    Raises:
        CheckpointNotFound: the run has no checkpoint of that id.
        CheckpointDamaged, CheckpointUnsupported: its manifest cannot be read.
    """
    with repository.listing.one_look():
        return _shown(repository, id)


def _shown(repository: Repository, id: str | None) -> Record:
    found = checkpoints(repository)
    if id is None:
        chosen = next((info.manifest for info in found if info.manifest is not None), None)
    elif id in {info.id for info in found}:
        chosen = repository.manifest(id)
    else:
        raise CheckpointNotFound(
            problem=f"The run {repository.run!r} has no checkpoint {id!r}.",
            remedy=f"`colabkeep show {repository.run}` lists those it has.",
        )
    durability = durability_of(repository)
    rungs = {standing.checkpoint: standing.rung for standing in durability.standings}
    return {
        "name": repository.run,
        "storage": repository.store.url,
        "folder": repository.folder,
        "created": run_record(repository).get("created"),
        "sessions": [{name: lease.get(name) for name in _SESSION} for lease in sessions(unfolded(repository))],
        "checkpoints": [_full(info) | {"rung": rungs.get(info.id)} for info in found],
        "durability": durability_record(durability),
        "checkpoint": None if chosen is None else _inside(repository, chosen),
    }


def prune_record(repository: Repository, plan: PrunePlan, *, dry_run: bool, caught_up: bool) -> Record:
    """What went, or would go. `caught_up`: has every side of the store done it?"""
    return {
        "name": repository.run,
        "storage": repository.store.url,
        "dry_run": dry_run,
        "checkpoints": [{"id": manifest.id, "step": manifest.progress.step} for manifest in plan.doomed],
        "kept": list(plan.kept),
        "kept_from_before_nan": plan.good,
        "missing": list(plan.missing),
        "files": len(plan.files),
        "bytes": plan.bytes,
        "caught_up": caught_up,
    }


def verify_record(store: Store, names: list[str], watch: Callable[[str, int, int], None]) -> Record:
    """Every file of the runs read again. `watch` is called with run, files and bytes done so far, as it goes on."""
    return {"runs": [_verified(Repository(store, name), watch) for name in names]}


_SESSION = ("session", "fence", "host", "pid", "started")


def _verified(repository: Repository, watch: Callable[[str, int, int], None]) -> Record:
    findings: list[Finding] = []
    files = size = 0
    watch(repository.run, files, size)
    for finding in audit(repository):
        files += finding.state not in ("missing", "unsent") and not finding.place
        size += finding.size if not finding.place else 0
        if finding.state != "ok":
            findings.append(finding)
        watch(repository.run, files, size)
    return {
        "name": repository.run,
        "files": files,
        "bytes": size,
        "ok": not any(finding.state in BAD for finding in findings),
        "findings": [{"file": f.file, "state": f.state, "text": f.text, "place": f.place} for f in findings],
    }


def _briefs(repository: Repository) -> list[dict[str, Any]]:
    with repository.listing.one_look():
        return [_brief(info) for info in checkpoints(repository)]


def _brief(info: CheckpointInfo) -> dict[str, Any]:
    return {name: getattr(info, name) for name in ("id", "step", "epoch", "bytes", "created", "state")}


def _full(info: CheckpointInfo) -> dict[str, Any]:
    manifest = info.manifest
    if manifest is None:
        return {**_brief(info), "reason": "", "metrics": {}}
    metrics = {name: value if value - value == 0 else repr(value) for name, value in manifest.metrics.items()}
    return {**_brief(info), "reason": manifest.reason, "metrics": metrics}


def durability_record(durability: Durability) -> dict[str, Any]:
    """What would be lost, and the sentence that says so."""
    return {
        "sentence": durability.sentence,
        "lost_seconds": durability.lost_seconds,
        "step": durability.step,
        "checkpoint": durability.checkpoint,
        "rung": durability.rung,
        "place": durability.place.url,
        "persists": durability.place.persists,
    }


def _inside(repository: Repository, manifest: Manifest) -> dict[str, Any]:
    problem, parts = None, []
    try:
        parts = [{"name": p.name, "tensors": p.tensors, "bytes": p.bytes} for p in part_sizes(repository, manifest)]
    except (CheckpointDamaged, CheckpointUnsupported) as error:
        problem = error.problem
    return {
        "id": manifest.id,
        "session": manifest.session,
        "parent": manifest.parent,
        "framework": manifest.framework,
        "version": manifest.version,
        "fingerprint": dict(manifest.fingerprint),
        "parts": parts,
        "problem": problem,
    }
