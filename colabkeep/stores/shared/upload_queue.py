"""What is still to be done in the store behind, and what of it comes next. No threads, no stores: decisions only.

* Deletions first: they make room, and whoever asked for one has seen that nothing behind needs the object. But as long
  as a checkpoint waits to arrive, none that is behind goes, nor any of its blobs, unless another stays there; and no
  part of a diary goes before the parts that were written until then are there, for one of them holds its lines.
  A checkpoint goes when the diary that tells of it is there, or cannot be brought: if the machine were lost in between,
  nobody could tell that it was let go, and not destroyed. That part of the diary goes when the checkpoint that was
  begun is complete, for it tells of that one too.
* Then leases: a session's number must be there before anything it writes.
* Then the checkpoint that was begun, blobs before the manifest; and when that is complete, the *newest* one that
  waits. So a link that is slower than the saves still brings whole checkpoints over, each as new as it can be, and
  those that were overtaken and deleted meanwhile are never sent.
* Then everything else, in the order in which it was asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from colabkeep.core.errors import CheckpointError
from colabkeep.core.manifest import Manifest
from colabkeep.stores.base import Receipt, run_of

__all__ = ["MANIFEST", "Kind", "Queue", "Task", "blobs_of"]

MANIFEST = re.compile(r"(.+)/checkpoints/([^/]+)")
_LEASE = re.compile(r".+/lease/[^/]+")
_BLOB = re.compile(r".+/blobs/[^/]+")
_DIARY = re.compile(r".+/journal/[^/]+")

Kind: TypeAlias = Literal["copy", "delete"]


@dataclass(slots=True, eq=False)
class Task:
    """Something to be done behind. What changes: `cancelled`, and how often it was refused for good."""

    kind: Kind
    receipt: Receipt
    cancelled: bool = False
    refused: int = 0

    @property
    def name(self) -> str:
        """Of the object."""
        return self.receipt.name

    @property
    def is_manifest(self) -> bool:
        """Does its arrival make a checkpoint exist behind?"""
        return self.kind == "copy" and MANIFEST.fullmatch(self.name) is not None


class Queue:
    """The tasks. `needs` tells, for a manifest's name, the names of its blobs; None if that cannot be read."""

    def __init__(self, needs: Callable[[str], frozenset[str] | None]) -> None:
        self._needs = needs
        self._tasks: list[Task] = []
        self._begun: Task | None = None  # the manifest of the checkpoint on its way
        self._first: frozenset[str] | None = None  # what has to be there before it; None: all that was asked before
        self._now: Task | None = None  # what is being done
        self._behind: set[str] = set()  # manifests that are there

    def __iter__(self) -> Iterator[Task]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def sending(self) -> str | None:
        """The manifest of the checkpoint on its way."""
        return None if self._begun is None else self._begun.name

    @property
    def waiting_bytes(self) -> int:
        """Bytes still to be copied."""
        return sum(task.receipt.size for task in self._tasks if task.kind == "copy" and not task.cancelled)

    def found(self, names: Iterable[str], gone: Iterable[str] = ()) -> None:
        """These are behind, and what is `gone` is not any more."""
        self._behind = (self._behind | {name for name in names if MANIFEST.fullmatch(name)}).difference(gone)

    def add(self, task: Task) -> None:
        """Something more to be done. A deletion cancels the copies of its object that have not arrived; a blob that is
        wanted again, whose name says what it holds, is not deleted."""
        if task.kind == "delete" or _BLOB.fullmatch(task.name):
            for other in self._tasks:
                other.cancelled |= other.name == task.name and (task.kind == "delete" or other is not self._now)
            if self._begun is not None and self._begun.cancelled:
                self._begun = None
        self._tasks.append(task)
        if task.is_manifest and self._begun is None and self._now is not None:
            needs = self._needs(task.name)
            if needs is not None and self._now.name in needs:  # blobs are sent as they come, before their manifest does
                self._begun, self._first = task, needs

    def done(self, task: Task) -> None:
        """It is done, or not wanted any more."""
        self._tasks.remove(task)
        self._now = None
        if task.is_manifest and not task.cancelled:
            self._behind.add(task.name)
        elif task.kind == "delete":
            self._behind.discard(task.name)
        if task is self._begun:
            self._begun = None

    def refuse(self, task: Task) -> None:
        """It did not work and may never: others go first, and the newest checkpoint is chosen anew."""
        task.refused += 1
        if self._begun is not None:
            self._begun.refused = max(self._begun.refused, task.refused)
        self.choose_again()

    def choose_again(self) -> None:
        """Nothing gets through: when something does, it shall be the newest checkpoint of that time."""
        self._begun = None

    def next(self) -> Task | None:
        """What to do now; it stays in the queue until it is `done`."""
        self._tasks = [task for task in self._tasks if not task.cancelled]
        self._now = self._choose()
        return self._now

    def _choose(self) -> Task | None:
        leases = [task for task in self._tasks if _LEASE.fullmatch(task.name)]
        for task in self._tasks:
            if task.kind == "delete" and not self._is_held(task):
                told_by = self._told_by(task)
                if told_by is None:
                    return task
                if not leases and (self._begun is None or self._begun.refused):
                    return told_by
                break  # what comes after it in the queue, its blobs, must not go before it
        if leases:
            return leases[0]
        if self._begun is None:
            self._begin()
        copies = (task for task in self._tasks if task.kind == "copy")
        least = min(copies, key=lambda task: task.refused, default=None)
        if self._begun is not None and (least is None or self._begun.refused <= least.refused):
            return self._of(self._begun)
        return least  # what was refused for good does not keep back what was not

    def _is_held(self, deletion: Task) -> bool:
        """Must it wait for a checkpoint to arrive, because it may be the only one behind that it would destroy? Or for
        another part of the diary?"""
        run, name = run_of(deletion.name), deletion.name
        if _DIARY.fullmatch(name):
            before = self._tasks[: self._tasks.index(deletion)]
            return any(task.kind == "copy" and _DIARY.fullmatch(task.name) for task in before)
        if not (MANIFEST.fullmatch(name) or _BLOB.fullmatch(name)):
            return False
        waiting = {task.name for task in self._tasks if task.is_manifest and run_of(task.name) == run}
        if not waiting or name in waiting:
            return False
        doomed = {task.name for task in self._tasks if task.kind == "delete"}
        return not any(run_of(other) == run for other in self._behind - doomed)

    def _told_by(self, deletion: Task) -> Task | None:
        """The part of the diary that says why this checkpoint goes, if that has still to be brought, and can be."""
        if not MANIFEST.fullmatch(deletion.name):
            return None
        before = self._tasks[: self._tasks.index(deletion)]
        run = run_of(deletion.name)
        parts = [task for task in before if task.kind == "copy" and _DIARY.fullmatch(task.name)]
        return next((part for part in parts if run_of(part.name) == run and not part.refused), None)

    def _begin(self) -> None:
        waiting = [task for task in self._tasks if task.is_manifest]
        if waiting:
            self._begun = min(reversed(waiting), key=lambda task: task.refused)
            self._first = self._needs(self._begun.name)

    def _of(self, manifest: Task) -> Task:
        """The first that is missing of the checkpoint: the manifest itself comes last."""
        for task in self._tasks:
            if task is manifest or task.kind == "delete" or (task.is_manifest and self._first is not None):
                continue
            if task.name in self._first if self._first is not None else self._is_before(task, manifest):
                return task
        return manifest

    def _is_before(self, task: Task, manifest: Task) -> bool:
        return self._tasks.index(task) < self._tasks.index(manifest)


def blobs_of(name: str, data: bytes) -> frozenset[str] | None:
    """The names of the blobs that a manifest names; None if it is none that can be read."""
    match = MANIFEST.fullmatch(name)
    if match is None:
        return None
    try:
        manifest = Manifest.from_bytes(data, id=match[2].removesuffix(".json"))
    except CheckpointError:
        return None
    return frozenset(f"{match[1]}/blobs/{blob.file}" for blob in manifest.blobs)
