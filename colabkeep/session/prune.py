"""Deleting by hand what a run no longer needs, or the whole of it: said first, done under the run's lock, taken up
again where it ended.
"""

from __future__ import annotations

import re
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from colabkeep.checkpoint.durability import objects_of, vanished
from colabkeep.checkpoint.inspect import durability_of, last_record, sessions, tip
from colabkeep.checkpoint.journal import Journal
from colabkeep.checkpoint.replicate import take_up
from colabkeep.checkpoint.repository import Repository, take_lease
from colabkeep.checkpoint.restore import LISTED_AGAIN
from colabkeep.checkpoint.retention import RetentionPolicy, line_of, remove, unneeded
from colabkeep.core.arguments import duration_text
from colabkeep.core.errors import CheckpointError, RunBusy, StoreUnavailable
from colabkeep.core.events import LEVELS, PRUNED, PRUNING, lowest
from colabkeep.core.layout import BLOB_FILE, CHECKPOINT_ID, HISTORY_FILE, LEASE_FILE, NOTE, SEGMENT_FILE, lease_name
from colabkeep.core.manifest import Manifest, stored_proof
from colabkeep.core.system import Clock
from colabkeep.session.open import take_lock, this_process
from colabkeep.stores.base import Store

_SILENCE = 3600.0  # seconds after which a session on another machine that says nothing counts as gone
_PATIENCE = 600.0  # seconds for the slower side of a pair to delete the same


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunePlan:
    """What would go. `files` are blobs with their bytes, left-overs of killed saves among them. `good`: a checkpoint
    that the policy would not keep, and that is kept because the loss is not finite since. `missing`: checkpoints that
    the journal knows and the storage does not show, whose blobs may be among `files`."""

    doomed: tuple[Manifest, ...]
    kept: tuple[str, ...]
    files: Mapping[str, int]
    good: str | None = None
    missing: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """That come free."""
        return sum(self.files.values())


def plan_prune(repository: Repository, policy: RetentionPolicy, *, apart: bool = False) -> PrunePlan:
    """What `policy` does not keep of the newest checkpoint's line; with `apart`, also all that is not on that line.

    Neither the newest checkpoint goes, nor the newest that is as durable as it can become; nor what is in quarantine;
    nor, where the loss is not a finite number by now, the newest from before.

    Raises:
        CheckpointDamaged: a mark of what is in quarantine cannot be read, so that it is not known what it protects.
        StoreError: the store cannot be asked.
    """
    repository.blobs.present()  # what is a left-over is told by what is there now
    newest = tip(repository)
    line = [] if newest is None else line_of(repository, newest)
    spared = {_left_by_a_lost_machine(repository), None if newest is None else newest.id}
    proof = None if newest is None else stored_proof(newest)
    good = proof.newest_good(line) if proof is not None and proof.broken is not None else None
    doomed = [manifest for manifest in policy.doomed(line) if manifest.id not in spared]
    held = good is not None and good in doomed
    doomed = [manifest for manifest in doomed if manifest is not good]
    others = repository.manifests(repository.ids() - repository.quarantined() - {manifest.id for manifest in line})
    if apart:
        doomed += others
    going = {manifest.id for manifest in doomed}
    kept = tuple(manifest.id for manifest in (*others, *line) if manifest.id not in going)
    files = unneeded(repository, doomed)
    leftovers = files.keys() - {blob.file for manifest in doomed for blob in manifest.blobs}
    return PrunePlan(
        doomed=tuple(doomed),
        kept=kept,
        files=files,
        good=good.id if held and good is not None else None,
        missing=tuple(vanished(repository)) if leftovers else (),
    )


def prune(
    store: Store,
    run: str,
    policy: RetentionPolicy,
    clock: Clock,
    *,
    apart: bool = False,
    watch: Callable[[str, int], None] = lambda *_: None,
) -> tuple[PrunePlan, bool]:
    """Do what `plan_prune` says; returns that, and whether every side of the store has done it.

    Whoever prunes is the run's writer for that time, with a number of its own, so that no session of another machine
    writes beside it. Killed in the middle, it leaves nothing that the next one, or the next training, does not remove.
    `watch` is called with the name inside the run and the bytes of each object that is gone.

    Raises:
        RunBusy: the run is being trained.
        StoreUnavailable: the newest checkpoint is on this machine only, and cannot be sent; nothing was deleted.
        CheckpointDamaged, StoreError: as `plan_prune`.
    """
    session, about = secrets.token_hex(4), this_process(clock, purpose="prune")
    with take_lock(store, run, about):
        repository = Repository(store, run)
        refuse_live(repository, clock)
        plan = plan_prune(repository, policy, apart=apart)
        if not plan.doomed and not plan.files:
            return plan, True
        lease = take_lease(repository, session, about)
        _send_first(repository, tip(repository))
        _look_again(repository, plan, policy, clock, apart=apart)
        # What is missing was told to whoever asked for this: from now on nobody is to wait for it.
        journal, ids = Journal(repository, session), [*(manifest.id for manifest in plan.doomed), *plan.missing]
        _note(journal, clock, PRUNING, ids)
        lease.check()
        remove(repository, plan.doomed, watch)
        _note(journal, clock, PRUNED, ids)
        return plan, store.flush(_PATIENCE)


def _left_by_a_lost_machine(repository: Repository) -> str | None:
    """The checkpoint to go on from if this machine were lost; where none is known to be safe, the best that left it."""
    durability = durability_of(repository)
    beyond = [each for each in durability.standings if LEVELS.index(each.level) > LEVELS.index("local")]
    best = max(beyond, key=lambda each: (LEVELS.index(each.level), each.step), default=None)
    return durability.checkpoint or (None if best is None else best.checkpoint)


def _send_first(repository: Repository, newest: Manifest | None) -> None:
    """In the place that lasts, the newest checkpoint arrives before any other goes."""
    store = repository.store
    behind = store.properties.behind
    if behind is None or newest is None:
        return
    take_up(repository)  # what an earlier session left here is sent, too
    store.flush(_PATIENCE)
    objects = objects_of(newest, repository.folder, store.properties)
    if lowest(store.confirm(receipt).level for receipt in objects) == "local":
        raise StoreUnavailable(
            problem=f"The newest checkpoint of {repository.run!r}, {newest.id}, is on this machine only, and "
            f"{behind.url} does not accept it now. Nothing was deleted: if this machine is lost, only the checkpoints "
            "there remain.",
            remedy="Run this command again when that place can be reached and has room.",
        )


def _look_again(repository: Repository, plan: PrunePlan, policy: RetentionPolicy, clock: Clock, *, apart: bool) -> None:
    """A listing from elsewhere may leave out what is there: what goes is decided by two."""
    if not repository.store.properties.lists_lag:
        return
    clock.sleep(LISTED_AGAIN)
    again = plan_prune(Repository(repository.store, repository.run), policy, apart=apart)
    if ([each.id for each in again.doomed], again.files) != ([each.id for each in plan.doomed], plan.files):
        raise StoreUnavailable(
            problem=f"{repository.store.url} showed two different lists of the files of {repository.run!r} within "
            f"{LISTED_AGAIN:.0f} seconds. Nothing was deleted.",
            remedy="Somebody may be writing there, or the storage is catching up: run this again in some minutes.",
        )


def _note(journal: Journal, clock: Clock, event: str, ids: list[str]) -> None:
    """Write it at once: what vanishes without a word in the journal is taken for lost."""
    journal.add({"at": clock.time(), "event": event, "checkpoints": ids})
    journal.write()


def refuse_live(repository: Repository, clock: Clock) -> None:
    """A lock holds on one machine, or on none: ask the journal whether another machine trains this run."""
    latest: Mapping[str, Any] = next(sessions(repository), {})
    if repository.store.properties.locks and latest.get("host") == socket.gethostname():
        return  # it would hold the lock
    word = last_record(repository)
    if latest.get("purpose") == "prune" or (
        word is not None and word.stopped and word.session == latest.get("session")
    ):
        return
    newest = tip(repository)
    signs = [latest.get("started"), word and word.at, newest and newest.created]
    silent = clock.time() - max((sign for sign in signs if isinstance(sign, (int, float))), default=0.0)
    if silent < _SILENCE:
        raise RunBusy(
            problem=f"The run {repository.run!r} seems to be training on {latest.get('host', 'another machine')}: it "
            f"last wrote something {duration_text(max(0.0, silent))} ago, and did not write that it stopped. Nothing "
            "was deleted.",
            remedy=f"Stop it there; or, if that machine is gone, prune in {duration_text(_SILENCE - silent)}.",
        )


# The checkpoints go first, the oldest before the newest, then what only they needed, and `run.json` at the very end: a
# deletion that is killed leaves a run that is still listed, so it can be asked for again.

_OURS = tuple(
    re.compile(pattern)
    for pattern in (  # in the order in which they go
        rf"checkpoints/{CHECKPOINT_ID.pattern}\.json",
        rf"aside/{CHECKPOINT_ID.pattern}\.json",
        rf"blobs/{BLOB_FILE.pattern}",
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
    about = this_process(clock, purpose="prune")
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
        own = lease_name(lease.fence, lease.session)
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
