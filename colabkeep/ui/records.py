"""What the command line tells, as records for machines. Reads only."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, TypeAlias

from colabkeep.checkpoint.compaction import unfolded
from colabkeep.checkpoint.inspect import (
    CheckpointInfo,
    checkpoints,
    durability_of,
    find_run,
    last_record,
    part_sizes,
    run_names,
    run_record,
    sessions,
)
from colabkeep.checkpoint.repository import Repository
from colabkeep.checkpoint.verify import Finding, audit
from colabkeep.core.arguments import checked_run_name
from colabkeep.core.errors import CheckpointDamaged, CheckpointNotFound, CheckpointUnsupported, UsageError
from colabkeep.core.events import Durability
from colabkeep.core.manifest import FOLDER, Manifest, stored_proof
from colabkeep.core.system import SystemClock
from colabkeep.keep.session import KeptFolder
from colabkeep.keep.tree import Entry
from colabkeep.keep.version import table_of
from colabkeep.session.copy import Copied, copy_run, plan_copy
from colabkeep.session.open import find_store
from colabkeep.session.prune import PrunePlan
from colabkeep.stores.base import Store
from colabkeep.ui.panel.state import end_of
from colabkeep.ui.text import Record

BAD = frozenset({"damaged", "missing", "unreadable"})
"""States of a file that speak of damage."""


def list_record(store: Store) -> Record:
    """All runs with their checkpoints, newest first; how each one's last session ended ("open": that is not noted),
    when it was heard of last, and what was measured by its newest checkpoint."""
    return {"runs": [{"name": name, **_run(Repository(store, name))} for name in run_names(store)]}


def _run(repository: Repository) -> dict[str, Any]:
    with repository.one_look():
        found, word = checkpoints(repository), last_record(repository)
        newest = next((info for info in found if info.state == "committed" and info.manifest is not None), None)
        manifest = None if newest is None else newest.manifest
        seen = [info.created for info in found if info.created is not None] + ([] if word is None else [word.at])
        proof = None if manifest is None else stored_proof(manifest)
        broken = None if proof is None else proof.broken
        return {
            "state": end_of(word.reason, broken) if word is not None and word.stopped else "open",
            "last_seen": max(seen, default=None),
            "metrics": {} if manifest is None else finite_or_text(manifest.metrics),
            "checkpoints": [_brief(info) for info in found],
        }


def overview(repository: Repository) -> dict[str, Any]:
    """The checkpoints of a run, newest first, each with its durability level, and what would be lost.

    Raises:
        CheckpointDamaged, StoreError: that cannot be told.
    """
    with repository.one_look():
        found, durability = checkpoints(repository), durability_of(repository)
        return {
            "name": repository.run,
            "checkpoints": _on_levels([_brief(info) for info in found], durability),
            "sentence": durability.sentence,
        }


def show_record(repository: Repository, id: str | None) -> Record:
    """One run, and the checkpoint `id` (the newest that can be read, if None) from inside.

    Raises:
        CheckpointNotFound: the run has no checkpoint of that id.
        CheckpointDamaged, CheckpointUnsupported: its manifest cannot be read.
    """
    with repository.one_look():
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
        return {
            "name": repository.run,
            "storage": repository.store.url,
            "folder": repository.folder,
            "created": run_record(repository).get("created"),
            "sessions": [{name: lease.get(name) for name in _SESSION} for lease in sessions(unfolded(repository))],
            "checkpoints": _on_levels([_full(info) for info in found], durability),
            "durability": durability_record(durability),
            "checkpoint": None if chosen is None else _inside(repository, chosen),
        }


def kept_record(kept: KeptFolder, status: int) -> Record:
    """How `colabkeep keep` ended."""
    began = kept.restored
    return {
        "folder": kept.folder,
        "restored": None if began is None else asdict(began),
        "version": kept.version,
        "exit_status": status,
        "durability": durability_record(kept.durability),
    }


def prune_record(repository: Repository, plan: PrunePlan, *, dry_run: bool, caught_up: bool) -> Record:
    """What was deleted, or would be. `caught_up`: has every side of the store done it?"""
    return {
        "name": repository.run,
        "storage": repository.store.url,
        "dry_run": dry_run,
        "checkpoints": [
            {"id": manifest.id, "step": manifest.progress.step, "framework": manifest.framework}
            for manifest in plan.doomed
        ],
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


CopyWatch: TypeAlias = Callable[[str], Callable[[str, int], None]]
"""By the name of a run, what is called with the name and the bytes of each of its files."""


def copy_record(words: argparse.Namespace, watch: CopyWatch) -> Record:
    """Copy, and say what was copied. `watch` is told how far it is.

    Raises:
        UsageError: a new name for more than one run, or a target that is not a copy.
        CheckpointNotFound: there is no such run, or none at all.
        ColabKeepError: as `copy_run`.
    """
    source = find_store(words.source)
    try:
        names = run_names(source) if words.run is None else [find_run(source, words.run).run]
        if not names:
            raise CheckpointNotFound(
                problem=f"There is nothing to copy: {source.url} has no runs.", remedy="Is that the right place?"
            )
        if words.new_name is not None and len(names) > 1:
            raise UsageError(
                problem=f"{source.url} has {len(names)} runs, and they cannot all be called {words.new_name!r}.",
                remedy="Say which one: --run NAME --as NAME.",
            )
        target = find_store(words.target)
        try:
            return {
                "dry_run": words.dry_run,
                "runs": [_copied_run(words, source, target, name, watch) for name in names],
            }
        finally:
            target.close()
    finally:
        source.close()


def _copied_run(words: argparse.Namespace, source: Store, target: Store, name: str, watch: CopyWatch) -> dict[str, Any]:
    new_name = name if words.new_name is None else checked_run_name(words.new_name)
    old, new = Repository(source, name), Repository(target, new_name)
    if words.dry_run:
        return _copied(old, new, plan_copy(old, new))
    return _copied(old, new, copy_run(old, new, SystemClock(), watch(name)))


def _copied(old: Repository, new: Repository, found: Copied) -> dict[str, Any]:
    return {
        "name": old.run,
        "new_name": new.run,
        "source": old.store.url,
        "target": new.store.url,
        "checkpoints": list(found.checkpoints),
        "left_out": dict(found.left_out),
        "newer": sorted(found.newer),
        "files": found.written,
        "there": found.there,
        "bytes": found.bytes,
        "verified": found.arrived,
        "trouble": found.trouble,
    }


def copy_status(record: Record) -> int:
    """0: all is there. 1: damaged checkpoints were left out. 4: not verified. 5: newer ones were left out."""
    runs = record["runs"]
    if not record["dry_run"] and not all(run["verified"] for run in runs):
        return 4
    if any(set(run["left_out"]) - set(run["newer"]) for run in runs):
        return 1
    return 5 if any(run["newer"] for run in runs) else 0


def _on_levels(records: list[dict[str, Any]], durability: Durability) -> list[dict[str, Any]]:
    levels = {standing.checkpoint: standing.level for standing in durability.standings}
    return [record | {"level": levels.get(record["id"])} for record in records]


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


def _brief(info: CheckpointInfo) -> dict[str, Any]:
    brief = {name: getattr(info, name) for name in ("id", "step", "epoch", "bytes", "created", "state")}
    return brief | {"framework": None if info.manifest is None else info.manifest.framework}


def _full(info: CheckpointInfo) -> dict[str, Any]:
    manifest = info.manifest
    if manifest is None:
        return {**_brief(info), "reason": "", "metrics": {}}
    return {**_brief(info), "reason": manifest.reason, "metrics": finite_or_text(manifest.metrics)}


def finite_or_text(values: Mapping[str, Any]) -> dict[str, Any]:
    """As strict JSON has them: a number that is not finite is a text, and so is what JSON does not know."""
    return {name: value if _is_plain(value) else repr(value) for name, value in values.items()}


def _is_plain(value: object) -> bool:
    return math.isfinite(value) if isinstance(value, float) else isinstance(value, (type(None), int, str))


def durability_record(durability: Durability) -> dict[str, Any]:
    """What would be lost, and the sentence that says so."""
    return {
        "sentence": durability.sentence,
        "lost_seconds": durability.lost_seconds,
        "step": durability.step,
        "checkpoint": durability.checkpoint,
        "level": durability.level,
        "place": durability.place.url,
        "persists": durability.place.persists,
    }


def _inside(repository: Repository, manifest: Manifest) -> dict[str, Any]:
    problem, parts, files = None, [], None
    try:
        if manifest.framework == FOLDER:
            files = [_file(entry) for entry in table_of(repository, manifest).entries.values()]
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
        "files": files,
    }


def _file(entry: Entry) -> dict[str, Any]:
    """One row of a folder's table. Paths that are not UTF-8 have question marks: strict JSON has no place for them."""
    text = {"path": entry.path, "kind": entry.kind, "target": entry.target, "same_as": entry.same_as}
    named = {name: os.fsencode(value).decode(errors="replace") for name, value in text.items()}
    return named | {"bytes": entry.size, "mtime": entry.mtime / 1e9}
