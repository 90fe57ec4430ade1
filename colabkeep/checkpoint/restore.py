"""Finding the checkpoint to go on from: newest first, verified whole, skipping what is damaged, and refusing what
is whole and yet makes no sense.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb
from types import TracebackType
from typing import TypeVar

from colabkeep.checkpoint.durability import noted, vanished_there
from colabkeep.checkpoint.repository import Repository, fences
from colabkeep.checkpoint.retention import KeepBest
from colabkeep.core.errors import (
    CheckpointDamaged,
    CheckpointError,
    CheckpointNotFound,
    CheckpointUnsupported,
    ColabKeepError,
    NoUsableCheckpoint,
    StoreError,
)
from colabkeep.core.layout import id_parts
from colabkeep.core.manifest import Manifest
from colabkeep.core.state import Tree

T = TypeVar("T")

_OURS = f"{Path(__file__).resolve().parents[1]}/"
_PYTHON = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib"))
_PACKAGES = tuple(f"{sysconfig.get_path(name)}/" for name in ("purelib", "platlib"))  # may lie below the former
_NO_SENSE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def understood(checkpoint: Manifest | None, work: Callable[[], T]) -> T:
    """What `work` gives, which compares or takes over what this checkpoint holds; None: there is none.

    Raises:
        CheckpointDamaged: `work` met a value there that no session writes. What the user's code raises meanwhile (a
            data set, a callback) is raised as it is.
    """
    try:
        return work()
    except ColabKeepError:
        raise
    except _NO_SENSE as error:
        if checkpoint is None or not _is_ours(sys.exc_info()[2]):
            raise
        raise CheckpointDamaged(
            problem=f"Checkpoint {checkpoint.id} is undamaged, but its state is not one that colabkeep writes "
            f"({type(error).__name__}: {error!s:.200}).",
            remedy="Nothing was trained. Restart the kernel (the model may have been loaded already), and choose "
            "another checkpoint with resume=…, or another run_name. If it is from a training of your own, please "
            "report this text: it is a defect.",
        ) from error


def _is_ours(trace: TracebackType | None) -> bool:
    """Was it raised in colabkeep, or by what Python itself did for it, and in nobody else's code?"""
    files = [frame.f_code.co_filename for frame, _ in walk_tb(trace)]
    others = [file for file in files if not _is_python(file)]
    return bool(others) and others[-1].startswith(_OURS)


def _is_python(file: str) -> bool:
    return file.startswith("<frozen") or (file.startswith(_PYTHON) and not file.startswith(_PACKAGES))


LISTED_AGAIN = 11.0
"""Seconds after which a store that has listings from elsewhere asks for them again: it remembers them for 5 or 10."""

_PAUSES = (0.5, 2.0, 8.0)  # seconds between attempts to read a checkpoint from a store that fails for a moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A checkpoint whose every byte was checked. The trees' tensors are views of file buffers."""

    manifest: Manifest
    parts: Mapping[str, Tree]


def newest_first(repository: Repository) -> list[str]:
    """All checkpoint ids, the newest first; needs listings only, whatever their number.

    A later session's checkpoints come before an earlier session's, whatever their steps: after a walk
    back, or beside a zombie, the line that the last session continued is the run's. The order is that of
    `Manifest.order`.
    """
    ids, fence_of = repository.ids(), fences(repository)

    def age(id: str) -> tuple[int, str, int, int]:
        step, session, number = id_parts(id)
        return fence_of.get(session, 0), session, step, number

    return sorted(ids, key=age, reverse=True)


def load_newest(
    repository: Repository,
    said: Callable[[str, str], None],
    *,
    marking: bool = True,
    sleep: Callable[[float], None] = lambda _: None,
    load: Callable[[Manifest], Mapping[str, Tree]] | None = None,
) -> Loaded | None:
    """The newest checkpoint that is whole, or None if the run has none at all; on a good day after one listing.

    `said` is called with (id, why) for each one skipped. Damaged ones are quarantined until they are found
    whole again (a mount may have been half there), unless `marking` is False (a reader that does not hold the run's
    lock: a training may be pruning under its hands). One that the store only failed to read is tried a few times, with
    a `sleep` of so many seconds between: going on from an older one would give up what was trained since. `load`:
    what reads and checks one, in place of `Repository.load`; what it returns are the parts.

    Raises:
        NoUsableCheckpoint: there are some, and none can be used; or there were some, as the journal or the note of the
            first one says, and none is shown, also when asked again.
    """
    loaded, errors = _newest(repository, said, marking, sleep, load)
    if loaded is None and not errors and _has_begun(repository):
        # A listing is no proof of absence: it is made again, when what the store remembers of it is out of date.
        sleep(LISTED_AGAIN if repository.store.properties.lists_lag else 0.0)
        loaded, errors = _newest(repository, said, marking, sleep, load)
        if loaded is None and not errors:
            _refuse_vanished(repository, said)
    if loaded is not None or not errors:
        return loaded
    listed = "".join(f"\n  - {id}: {error.problem}" for id, error in errors.items())
    raise NoUsableCheckpoint(
        problem=f"The run {repository.run!r} has {len(errors)} checkpoint(s), and none can be used:{listed}",
        remedy=_way_out(list(errors.values())),
    )


def _way_out(errors: Sequence[ColabKeepError]) -> str:
    """What is left to do where no checkpoint can be used: for one that is newer, the update."""
    needed = dict.fromkeys(error.remedy for error in errors if isinstance(error, CheckpointUnsupported))
    there = (
        "If the storage was not fully there (a mount, a half-finished download), bring it back and run again."
        if any(not isinstance(error, CheckpointUnsupported) for error in errors)
        else ""
    )
    zero = 'To start from zero anyway: resume="never" or another run_name.'
    return " ".join(filter(None, ["Nothing was deleted or trained.", *needed, there, zero]))


def _newest(
    repository: Repository,
    said: Callable[[str, str], None],
    marking: bool,
    sleep: Callable[[float], None],
    load: Callable[[Manifest], Mapping[str, Tree]] | None,
) -> tuple[Loaded | None, dict[str, ColabKeepError]]:
    """The newest that is whole, and else why each one is not; neither where none is shown."""
    errors: dict[str, ColabKeepError] = {}
    with repository.one_look():
        for id in newest_first(repository):
            try:
                loaded = _load_patiently(repository, id, sleep, load)
                if marking:
                    repository.clear_mark(id)
                return loaded, {}
            except (CheckpointDamaged, CheckpointUnsupported, StoreError) as error:
                errors[id] = error
                newer = isinstance(error, CheckpointUnsupported)
                said(id, f"{error.problem} {error.remedy}" if newer else error.problem)
                if marking and isinstance(error, CheckpointDamaged):
                    _quarantine(repository, id, error.problem, said)
    return None, errors


def _has_begun(repository: Repository) -> bool:
    """Has another session been here, as far as can be seen?"""
    return repository.existed or any(map(repository.files, ("lease", "journal", "blobs", "aside")))


def _refuse_vanished(repository: Repository, said: Callable[[str, str], None]) -> None:
    """See that it is a run that never had a checkpoint here, and not one that does not show them. One that had not
    left the disk of its machine is told.

    Raises:
        NoUsableCheckpoint: it had some, as the note or the journal says.
    """
    (gone, local), first = vanished_there(repository), noted(repository)
    if not gone and first is None:
        if local:
            said(local[-1], f"it had not left the disk of its machine, and is not in {repository.store.url}.")
        return
    latest = gone[-1] if gone else first
    witness = "journal" if gone else "note committed.json"
    raise NoUsableCheckpoint(
        problem=f"The run {repository.run!r} in {repository.store.url} shows no checkpoint any more, also at a second "
        f"try, but its {witness} says that there was {latest}: the checkpoints were deleted, or the storage does not "
        "list them. Training would have begun at step zero, beside the existing files.",
        remedy="Nothing was trained or deleted. If the storage is not fully there (a mount, a sync, Drive's trash), "
        f"bring the folder {repository.folder}/checkpoints back and run again. To begin anew on purpose: "
        'resume="never", until its first checkpoint is saved, or another run_name.',
    )


def load_id(repository: Repository, id: str) -> Loaded:
    """That very checkpoint.

    Raises:
        CheckpointNotFound: the run has none of that id.
        CheckpointDamaged, CheckpointUnsupported: it cannot be used.
    """
    if id not in repository.ids():
        known = newest_first(repository)[:5]
        raise CheckpointNotFound(
            problem=f"The run {repository.run!r} has no checkpoint {id!r}.",
            remedy=f"Choose one of {', '.join(known)}, …" if known else "The run has no checkpoint yet.",
        )
    return _load(repository, id)


def load_best(repository: Repository, best: KeepBest) -> Loaded:
    """The best whole checkpoint by `best.monitor`.

    Raises:
        CheckpointNotFound: no usable checkpoint has that metric.
    """
    for manifest in best.ranked(repository.manifests(repository.ids() - repository.quarantined())):
        try:
            return _load(repository, manifest.id)
        except CheckpointError:
            continue  # the next best; `colabkeep verify` tells of this one
    raise CheckpointNotFound(
        problem=f"No usable checkpoint of the run {repository.run!r} was saved with the metric {best.monitor!r}.",
        remedy="Log the metric at the end of each epoch, save there (save_every='auto' or 1), and keep the best: "
        "keep_best=1, monitor='val_loss'.",
    )


def good_before(repository: Repository, newest: Manifest, finite: int) -> str | None:
    """The newest checkpoint of the line that led to `newest` whose weights gave a finite loss, by the names alone."""
    known = ((id_parts(id), id) for id in repository.ids() - repository.quarantined())
    good = [
        (step, number, id) for (step, session, number), id in known if newest.came_by(session, step) and step < finite
    ]
    return max(good)[2] if good else None


def _quarantine(repository: Repository, id: str, reason: str, said: Callable[[str, str], None]) -> None:
    try:
        repository.quarantine(id, reason)
    except StoreError as error:  # a full or read-only store must not keep training from going on
        said(id, f"it could not be marked as damaged, so a later session may prune it: {error.problem}")


def _load_patiently(
    repository: Repository,
    id: str,
    sleep: Callable[[float], None],
    load: Callable[[Manifest], Mapping[str, Tree]] | None,
) -> Loaded:
    for pause in _PAUSES:
        try:
            return _load(repository, id, load)
        except StoreError as error:
            if not error.retryable:
                raise
            repository.look_again()  # a mount that fails may have shown too little
            sleep(pause)
    return _load(repository, id, load)


def _load(repository: Repository, id: str, load: Callable[[Manifest], Mapping[str, Tree]] | None = None) -> Loaded:
    manifest = repository.manifest(id)
    return Loaded(manifest=manifest, parts=(load or repository.load)(manifest))
