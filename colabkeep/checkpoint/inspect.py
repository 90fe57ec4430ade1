"""What a store holds, read from outside and changed by nothing: runs, their checkpoints and parts, and what would
be lost of each.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from colabkeep.checkpoint.codec import references
from colabkeep.checkpoint.compaction import unfolded
from colabkeep.checkpoint.durability import objects_of, place_of
from colabkeep.checkpoint.journal import read_backwards
from colabkeep.checkpoint.repository import Repository, fences
from colabkeep.checkpoint.restore import newest_first
from colabkeep.checkpoint.retention import line_of
from colabkeep.core.arguments import is_folder, meant_run, run_name_of
from colabkeep.core.errors import (
    CheckpointDamaged,
    CheckpointError,
    CheckpointNotFound,
    CheckpointUnsupported,
)
from colabkeep.core.events import STOPPED, CheckpointDurability, Durability, assess, lowest
from colabkeep.core.layout import BLOB_FILE, CHECKPOINT_ID, SEGMENT_FILE, id_parts, is_amount, lease_name
from colabkeep.core.manifest import FOLDER, Manifest
from colabkeep.stores.base import Store

_OF_A_RUN = re.compile(rf"(.+)/(?:run\.json|checkpoints/{CHECKPOINT_ID.pattern}\.json|blobs/{BLOB_FILE.pattern})")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo:
    """One checkpoint. `state`: "committed"; "apart", not on the line of the newest one, for its session went on after
    another had taken over, or the run went back and on from before it; "quarantined", found damaged; "newer",
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
    manifest: Manifest | None = field(repr=False)

    def __repr__(self) -> str:
        of = "" if self.epoch is None else f", epoch {self.epoch}"
        size = "" if self.bytes is None else f", {self.bytes:,} bytes"
        saved = "" if self.created is None else time.strftime(", saved %Y-%m-%d %H:%M UTC", time.gmtime(self.created))
        return f"<Checkpoint {self.id}: step {self.step}{of}{size}{saved}, {self.state}>"


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
        raise no_run(store, run, known)
    return Repository(store, run)


def no_run(store: Store, run: str, known: Sequence[str]) -> CheckpointNotFound:
    """The error for a run that the store has not; it has those that are `known`."""
    return CheckpointNotFound(
        problem=f"There is no run {run!r} in {store.url}.",
        remedy=f"It has: {', '.join(known)}." if known else "It has no runs; check storage=… (--storage).",
    )


def checkpoints(repository: Repository) -> list[CheckpointInfo]:
    """The checkpoints of a run, newest first."""
    quarantined, ids = repository.quarantined(), newest_first(repository)
    repository.read_ahead(ids)
    found = [_info(repository, id, quarantined=id in quarantined) for id in ids]
    committed = [info.manifest for info in found if info.state == "committed" and info.manifest is not None]
    apart = {each.id for each in committed if not committed[0].continues(each)}
    return [replace(info, state="apart") if info.id in apart else info for info in found]


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
        record = repository.sealed_record(lease_name(fence, session))
    except CheckpointDamaged:
        record = {}
    return {**record, "session": session, "fence": fence}


def _info(repository: Repository, id: str, *, quarantined: bool) -> CheckpointInfo:
    try:
        manifest = repository.manifest(id)
    except CheckpointError as error:
        state = "newer" if isinstance(error, CheckpointUnsupported) else "quarantined" if quarantined else "unreadable"
        step = id_parts(id)[0]
        return CheckpointInfo(id=id, step=step, epoch=None, bytes=None, created=None, state=state, manifest=None)
    return CheckpointInfo(
        id=id,
        step=id_parts(id)[0],
        epoch=manifest.progress.epoch,
        bytes=manifest.total_bytes,
        created=manifest.created,
        state="quarantined" if quarantined else "committed",
        manifest=manifest,
    )


_ASKED = 8  # checkpoints that the store is asked about at most: each of their objects may be a request


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRecord:
    """The end of a run's journal. `at`: seconds since 1970 (UTC); `seconds`: how long the run had been trained then;
    `stopped`: did the session end by itself, and `reason`: why; "" where it did not."""

    session: str
    at: float
    seconds: float
    stopped: bool
    reason: str = ""


def durability_of(repository: Repository) -> Durability:
    """The figure as of the run's last word: what a session has trained since then, nobody but itself knows."""
    store = repository.store
    properties = store.properties
    place = place_of(store, properties)
    newest, standings = tip(repository), []
    line = [] if newest is None else line_of(repository, newest)
    present = repository.blobs.present()
    for manifest in line[: -_ASKED - 1 : -1]:
        if not properties.lists_lag and any(present.get(blob.file) != blob.size for blob in manifest.blobs):
            continue  # `colabkeep verify` tells of it; nobody could go on from it
        level = lowest(store.confirm(receipt).level for receipt in objects_of(manifest, repository.folder, properties))
        progress = manifest.progress
        standings.append(
            CheckpointDurability(checkpoint=manifest.id, step=progress.step, seconds=progress.seconds, level=level)
        )
        if level == place.top:
            break
    word = last_record(repository)
    trained = max((manifest.progress.seconds for manifest in line), default=0.0)
    durability = assess(standings, place, trained if word is None else max(trained, word.seconds))
    return replace(durability, versions=newest is not None and newest.framework == FOLDER)


def tip(repository: Repository) -> Manifest | None:
    """The newest checkpoint that can be read and is not quarantined: its line is the run's."""
    quarantined = repository.quarantined()
    for id in newest_first(repository):
        if id not in quarantined:
            try:
                return repository.manifest(id)
            except CheckpointError:
                continue  # as on resume, which walks past it
    return None


def last_record(repository: Repository) -> LastRecord | None:
    """The newest line of the journal that says how far the training was; None if there is none."""
    return _last_record(repository) or _last_record(unfolded(repository))


def _last_record(repository: Repository) -> LastRecord | None:
    fence_of = fences(repository)
    files = [match for match in map(SEGMENT_FILE.fullmatch, repository.files("journal")) if match is not None]
    for session in sorted({match[1] for match in files}, key=lambda s: (fence_of.get(s, 0), s), reverse=True):
        parts = read_backwards(repository, [match[0] for match in files if match[1] == session])
        stopped, reason, at = False, "", None
        # `colabkeep verify` tells of parts that cannot be read.
        for record in (record for part in parts for record in reversed(part.records)):
            if record.get("event") == STOPPED:
                stopped, reason = True, reason or str(record.get("reason") or "")
            at = record.get("at") if at is None else at
            progress = record.get("progress")
            seconds = progress.get("seconds") if isinstance(progress, dict) else None
            if is_amount(seconds) and is_amount(at):
                return LastRecord(session=session, at=at, seconds=seconds, stopped=stopped, reason=reason)
    return None
