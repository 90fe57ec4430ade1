"""What is still to be done in the remote store, and what of it comes next. No threads, no stores: decisions only.

An object that was put with `needs` completes a whole: a checkpoint's manifest needs its blobs, a lease needs nothing.

* First what completes a whole of which all else is there: a session's lease is there before anything that it writes.
* Then deletions, in their order: they make room. But what was put before one, in the same run and for no whole, is sent
  before it: the journal, which tells why something goes and may hold the lines of what goes. It waits for the whole
  that was begun, of which it tells too, and what the store refuses keeps no room occupied.
* Then the whole that was begun; and when that is complete, the *newest* one that waits. So a link that is slower than
  the saves still brings whole checkpoints over, each as new as it can be, and those that were overtaken and deleted
  meanwhile are never sent.
* Then everything else, in the order in which it was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from colabkeep.stores.base import Needs, Receipt, run_of

Kind: TypeAlias = Literal["copy", "delete"]


@dataclass(slots=True, eq=False)
class Task:
    """Something to be done in the remote store. `needs`: as `needs_of` the object's source. What changes: `cancelled`,
    and how often it was refused for good."""

    kind: Kind
    receipt: Receipt
    needs: Needs | None = None
    cancelled: bool = False
    refused: int = 0

    @property
    def name(self) -> str:
        """Of the object."""
        return self.receipt.name


class Queue:
    """The tasks."""

    def __init__(self) -> None:
        self._tasks: list[Task] = []
        self._begun: Task | None = None  # completes the whole on its way
        self._now: Task | None = None  # what is being done

    def __iter__(self) -> Iterator[Task]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def sending(self) -> str | None:
        """What completes the whole on its way."""
        if self._now is not None and self._now.needs:
            return self._now.name  # all that it needs was there before it came
        return None if self._begun is None else self._begun.name

    @property
    def waiting_bytes(self) -> int:
        """Bytes still to be copied."""
        return sum(task.receipt.size for task in self._tasks if task.kind == "copy" and not task.cancelled)

    def add(self, task: Task) -> None:
        """Something more to be done. A deletion cancels the copies of its object that have not arrived."""
        replaced = False
        for other in self._tasks:
            if other.name == task.name and (task.kind == "delete" or (other is not self._now and other.kind == "copy")):
                other.cancelled = True
                replaced |= task.kind == "delete" and other.kind == "copy" and other.needs is None
        if replaced:
            self._postpone_deletions(run_of(task.name))
        if self._begun is not None and self._begun.cancelled:
            self._begun = None
        self._tasks.append(task)
        if self._begun is None and task.needs and self._now is not None and self._now.name in task.needs:
            self._begun = task  # blobs are sent as they come, before their manifest does

    def _postpone_deletions(self, run: str) -> None:
        """The journal's last lines are in another of its files by now: what waited for the one waits for the other."""
        late = [each for each in self._tasks if each.kind == "delete" and run_of(each.name) == run]
        self._tasks = [each for each in self._tasks if each not in late] + late

    def done(self, task: Task) -> None:
        """It is done, or not wanted any more."""
        self._tasks.remove(task)
        self._now = None
        if task is self._begun:
            self._begun = None

    def refuse(self, task: Task) -> None:
        """It did not work and may never: others go first, and the newest whole is chosen anew."""
        task.refused += 1
        if self._begun is not None:
            self._begun.refused = max(self._begun.refused, task.refused)
        self.choose_again()

    def choose_again(self) -> None:
        """Nothing gets through: when something does, it shall be the newest whole of that time."""
        self._begun = None

    def next(self) -> Task | None:
        """What to do now; it stays in the queue until it is `done`."""
        self._tasks = [task for task in self._tasks if not task.cancelled]
        task = self._choose()
        if task is not None:  # a name that is used again: what stands there goes first
            task = next((each for each in self._tasks if each.kind == "delete" and each.name == task.name), task)
        self._now = task
        return task

    def _choose(self) -> Task | None:
        copies = {task.name: task for task in self._tasks if task.kind == "copy"}
        wholes = [task for task in copies.values() if task.needs is not None]
        for whole in wholes:
            if not whole.refused and copies.keys().isdisjoint(whole.needs or ()):
                return whole
        deletion = next((task for task in self._tasks if task.kind == "delete"), None)
        if deletion is not None:
            before = self._before(deletion, wholes)
            if before is None:
                return deletion
            if self._begun is None or self._begun.refused:
                return before
        if self._begun is None:
            self._begun = min(reversed(wholes), key=lambda task: task.refused, default=None)
        least = min(copies.values(), key=lambda task: task.refused, default=None)
        begun = self._begun
        if begun is None or (least is not None and least.refused < begun.refused):
            return least  # what was refused for good does not keep back what was not
        return next((task for name, task in copies.items() if name in (begun.needs or ())), begun)

    def _before(self, deletion: Task, wholes: Sequence[Task]) -> Task | None:
        """What has to be sent before this goes."""
        parts = {name for whole in wholes for name in whole.needs or ()}
        for task in self._tasks[: self._tasks.index(deletion)]:
            loose = task.kind == "copy" and task.needs is None and task.name not in parts and not task.refused
            if loose and run_of(task.name) == run_of(deletion.name):
                return task
        return None
