"""Deleting a whole run by hand: said first, done under the run's lock, taken up again where it ended.

The checkpoints go first, the oldest before the newest, then what only they needed, and `run.json` at the very end:
a deletion that is killed leaves a run that is still listed, so it can be asked for again.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from colabkeep._engine.commits import NOTE
from colabkeep._engine.history import HISTORY_FILE
from colabkeep._engine.journal import SEGMENT_FILE
from colabkeep._engine.lease import LEASE_FILE, take_lease
from colabkeep._engine.repository import CHECKPOINT_ID, Repository
from colabkeep.session.opening import take_lock
from colabkeep.session.pruning import refuse_live
from colabkeep.stores.base import Store
from colabkeep.vocabulary.clock import Clock
from colabkeep.vocabulary.errors import CheckpointError

__all__ = ["DeletionPlan", "delete_run", "plan_deletion"]

_PATIENCE = 600.0  # seconds for the slower side of a pair to delete the same
_OURS = tuple(
    re.compile(pattern)
    for pattern in (  # in the order in which they go
        rf"checkpoints/{CHECKPOINT_ID.pattern}\.json",
        rf"aside/{CHECKPOINT_ID.pattern}\.json",
        r"blobs/[0-9a-f]{64}(-[0-9a-f]{8})?\.safetensors",
        rf"journal/{HISTORY_FILE.pattern}",
        rf"journal/{SEGMENT_FILE.pattern}",
        rf"lease/{LEASE_FILE.pattern}",
        re.escape(NOTE),
        r"run\.json",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionPlan:
    """What would go: `files`, by their names inside the run, with their bytes, in the order in which they go, and
    before them the `notes` beside the run's folder, which say how it stood last. `others` are files below the run's
    folder that are not the run's: another run's, or the user's own; they stay."""

    run: str
    files: Mapping[str, int]
    others: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """That come free."""
        return sum(self.files.values())

    @property
    def checkpoints(self) -> tuple[str, ...]:
        """The ids of those that go, the oldest first."""
        manifests = (name for name in self.files if name.startswith("checkpoints/"))
        return tuple(name.removeprefix("checkpoints/").removesuffix(".json") for name in manifests)


def plan_deletion(repository: Repository) -> DeletionPlan:
    """All that colabkeep keeps of a run. What lies in a folder further down belongs to another run, or to nobody.

    Raises:
        StoreError: the store cannot be asked.
    """
    start = len(repository.folder) + 1
    listed = {entry.name[start:]: entry.size for entry in repository.store.list(repository.folder)}
    ranks = {name: _rank(name) for name in listed}
    ours = sorted((rank, name) for name, rank in ranks.items() if rank is not None)
    others = tuple(sorted(name for name, rank in ranks.items() if rank is None))
    names = {f"{repository.folder}.status.{kind}" for kind in ("html", "json")}
    return DeletionPlan(
        run=repository.run,
        files={name: listed[name] for _, name in ours},
        others=others,
        notes=tuple(sorted(entry.name for entry in repository.store.list("") if entry.name in names)),
    )


def delete_run(
    store: Store, plan: DeletionPlan, clock: Clock, watch: Callable[[str, int], None] = lambda *_: None
) -> bool:
    """Do what `plan` says; returns whether every side of the store has done it.

    `watch` is called with the name inside the run and the bytes of each object that is gone.

    Raises:
        RunBusy: the run is being trained.
        CheckpointError: it has got files that the plan does not name; nothing was deleted.
        StoreError: the store failed; what was not deleted stays for the next time.
    """
    about = {"host": socket.gethostname(), "pid": os.getpid(), "started": clock.time(), "purpose": "prune"}
    with take_lock(store, plan.run, about):
        repository = Repository(store, plan.run)
        refuse_live(repository, clock)
        now = plan_deletion(repository)
        new = now.files.keys() - plan.files.keys()
        if new:
            raise CheckpointError(
                problem=f"The run {plan.run!r} has got {len(new)} file(s) since you looked. Nothing was deleted.",
                remedy="Look again at what would go, and then decide.",
            )
        lease = take_lease(repository, secrets.token_hex(4), about)
        own = f"lease/{lease.fence:06d}-{lease.session}.json"
        for note in now.notes:
            store.delete(note)
        for name, size in now.files.items():
            if name == "run.json":
                store.delete(f"{repository.folder}/{own}")
            store.delete(f"{repository.folder}/{name}")
            watch(name, size)
        store.delete(f"{repository.folder}/{own}")
        return store.flush(_PATIENCE)


def _rank(name: str) -> int | None:
    """When a file of a run goes; None if it is none of colabkeep's."""
    return next((rank for rank, pattern in enumerate(_OURS) if pattern.fullmatch(name)), None)
