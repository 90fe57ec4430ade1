"""The browser without its looks: what is kept, and what can be done with it. Every action is a method."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

from colabkeep._engine.repository import Repository
from colabkeep.faces import export, reports, tables
from colabkeep.faces.browser.listing import Listing, Watch, look
from colabkeep.faces.browser.outcome import DryRun, Outcome
from colabkeep.faces.browser.walk import Walk, find_walk
from colabkeep.session.catalogue import find_run, run_names
from colabkeep.session.clock import SystemClock
from colabkeep.session.deleting import DeletionPlan, delete_run, plan_deletion
from colabkeep.session.pruning import PrunePlan, plan_prune, prune
from colabkeep.session.weights import choose
from colabkeep.session.wiring import find_store, prune_policy
from colabkeep.stores.base import Store, check_name
from colabkeep.vocabulary.environment import Environment
from colabkeep.vocabulary.errors import CheckpointError, ColabKeepError, UsageError
from colabkeep.vocabulary.policies import KeepBest, Mode, RetentionPolicy

__all__ = ["Browser"]


def _nobody(text: str, share: float | None) -> None:
    """Watches nothing."""


class Browser:
    """What a storage holds, and what can be done with it.

    As the last line of a cell it is shown with buttons, elsewhere as text with the lines to type. `listing` is what was
    found when it was looked at last; an error of the storage is shown there, and raised by nothing but the actions.
    """

    def __init__(self, storage: Any, *, mount: Callable[[], Store]) -> None:
        self.storage = storage
        self.listing = Listing()
        self._ask_mount = mount
        self._clock = SystemClock()
        self._store: Store | None = None
        self.refresh()

    # -- looking -----------------------------------------------------------------------------------

    def refresh(self, watch: Watch = _nobody) -> Listing:
        """Look again."""
        try:
            self.listing = look(self._opened(), watch)
        except ColabKeepError as error:
            self.listing = Listing(trouble=error)
        return self.listing

    def open(self, storage: Any, watch: Watch = _nobody) -> Listing:
        """Look at another storage, named as in `storage=`."""
        self.close()
        self.storage = storage
        return self.refresh(watch)

    def close(self) -> None:
        """Let go of a storage that was opened by its name. It is opened again when it is needed."""
        store, self._store = self._store, None
        if store is not None and store is not self.storage:
            store.close()

    def walk(self) -> Walk:
        """The way to a storage that outlives this machine, step by step, as things stand now."""
        return find_walk(Environment.here(), self._clock)

    def mount(self, watch: Watch = _nobody) -> Outcome:
        """Make this platform's persistent storage ready, as `colabkeep.mount()` does, and look at it.

        Raises:
            MountError, NotPersistent: as `colabkeep.mount()`.
        """
        watch("Asking for the storage: look for a question on this page, and answer it …", None)
        store = self._ask_mount()
        self.close()
        self.storage, self._store = "auto", store
        self.refresh(watch)
        return Outcome(lines=(f"Ready: checkpoints are kept in {store.url}.",))

    # -- one run -----------------------------------------------------------------------------------

    def report(self, run: str) -> Any:
        """The story of a run, as `colabkeep.report` tells it.

        Raises:
            CheckpointNotFound: there is no such run.
        """
        return import_module("colabkeep.faces.report").report(run, storage=self._opened())

    def verify(self, run: str, watch: Watch = _nobody) -> Outcome:
        """Read every file of a run again and compare it with what was written. Changes nothing.

        Raises:
            CheckpointNotFound: there is no such run.
            StoreError: the run cannot be listed.
        """
        repository = find_run(self._opened(), run)
        total = sum(entry.size for entry in repository.store.list(repository.folder))

        def seen(name: str, files: int, size: int) -> None:
            watch(f"Reading {name}: {files} files, {tables.size_text(size)}", min(1.0, size / max(1, total)))

        record = reports.verify_record(repository.store, [repository.run], seen)
        return Outcome(lines=tuple(tables.verify_lines(record)), good=all(one["ok"] for one in record["runs"]))

    def export(
        self,
        run: str,
        folder: str,
        *,
        which: str = "latest",
        part: str = "model",
        best: tuple[str, Mode] = ("val_loss", "min"),
        replace: bool = False,
        watch: Watch = _nobody,
    ) -> Outcome:
        """Write the weights of a checkpoint as one safetensors file into a folder, which is made if need be.

        Args:
            run: the run.
            folder: where the file goes; its name says which checkpoint it is.
            which: "latest", "best" (by `best`: a metric, and whether less of it is better), or a checkpoint's id.
            part: "model", "ema", or "state.<name>".
            best: what "best" means.
            replace: a file of that name may go.
            watch: told how far it is.

        Raises:
            UsageError: no folder is named, or the file is there already.
            CheckpointNotFound, NoUsableCheckpoint, CheckpointDamaged: there is nothing to export.
            StoreError: the file could not be written.
        """
        if not folder.strip():
            raise UsageError(problem="It is not said where the file should go.", remedy="Name a folder.")
        watch("Reading the checkpoint and checking its bytes …", None)
        repository = find_run(self._opened(), run)
        loaded = choose(repository, which, KeepBest(n=1, monitor=best[0], mode=best[1]))
        file = Path(folder.strip()) / f"{repository.folder.replace('/', '-')}-{loaded.manifest.id}-{part}.safetensors"
        target = _target(file, replace=replace)
        watch("Writing the file …", None)
        return Outcome(lines=tuple(tables.exported_lines(export.export_weights(loaded, part, target))))

    # -- deleting ----------------------------------------------------------------------------------

    def prune(
        self,
        run: str,
        *,
        keep_last: int = 2,
        keep_best: int = 1,
        monitor: str = "val_loss",
        mode: Mode = "min",
        apart: bool = False,
    ) -> DryRun:
        """What would go of a run's checkpoints if these were kept, as `colabkeep prune` says it; `go` does it.

        Raises:
            UsageError: nothing would be left.
            CheckpointNotFound: there is no such run.
            CheckpointDamaged, StoreError: it cannot be told what is needed.
        """
        policy = prune_policy(keep_last, keep_best, monitor, mode)
        repository = find_run(self._opened(), run)
        plan = plan_prune(repository, policy, apart=apart)
        return DryRun(
            lines=_pruned(repository, plan, dry_run=True, caught_up=True),
            empty=not plan.doomed and not plan.files,
            act=partial(self._prune, repository.run, policy, plan, apart),
        )

    def delete(self, run: str) -> DryRun:
        """What would go if the whole run went; `go`, with the run's name, does it.

        Raises:
            CheckpointNotFound: there is no such run.
            StoreError: the store cannot be asked.
        """
        plan = plan_deletion(find_run(self._opened(), run))
        return DryRun(
            lines=tuple(_deletion_lines(plan, "would go")),
            empty=False,
            word=plan.run,
            act=partial(self._delete, plan),
        )

    def _prune(self, run: str, policy: RetentionPolicy, shown: PrunePlan, apart: bool, watch: Watch) -> Outcome:
        store = self._opened()
        now = plan_prune(Repository(store, run), policy, apart=apart)
        if (now.doomed, now.files) != (shown.doomed, shown.files):
            raise CheckpointError(
                problem=f"The run {run!r} is not what it was when you looked: something else would go now. "
                "Nothing was deleted.",
                remedy="Look again at what would go, and then decide.",
            )
        each = _counting(watch, run, len(now.doomed) + len(now.files))
        plan, caught_up = prune(store, run, policy, self._clock, apart=apart, watch=each)
        return Outcome(lines=_pruned(Repository(store, run), plan, dry_run=False, caught_up=caught_up))

    def _delete(self, plan: DeletionPlan, watch: Watch) -> Outcome:
        each = _counting(watch, plan.run, len(plan.files))
        caught_up = delete_run(self._opened(), plan, self._clock, each)
        lines = list(_deletion_lines(plan, "are deleted"))
        if not caught_up:
            lines.append("The slower side of the storage has not done it yet: look again later.")
            return Outcome(lines=tuple(lines))
        self.close()  # what a store only hides is seen again when it is opened anew
        if plan.run in run_names(self._opened()):
            lines.append(
                "A part of it lies where nothing can be deleted from here, such as the output of an earlier session "
                "that is attached to this notebook: remove it there."
            )
        return Outcome(lines=tuple(lines))

    # -- looks -------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return "\n".join(import_module("colabkeep.faces.browser.text").browser_lines(self))

    def _ipython_display_(self) -> None:
        import_module("colabkeep.faces.browser.showing").show(self, Environment.here())

    def _opened(self) -> Store:
        if self._store is None:
            self._store = find_store(self.storage)
        return self._store


def _target(file: Path, *, replace: bool) -> export.Target:
    """The file to write.

    Raises:
        UsageError: it cannot be named so, or it is there and may not be replaced.
    """
    check_name(file.name)
    try:
        return export.Target(str(file), force=replace)
    except UsageError as error:
        raise UsageError(
            problem=error.problem, remedy="Name another folder, or let the file be replaced: tick it, or replace=True."
        ) from error


def _pruned(repository: Repository, plan: PrunePlan, *, dry_run: bool, caught_up: bool) -> tuple[str, ...]:
    record = reports.prune_record(repository, plan, dry_run=dry_run, caught_up=caught_up)
    return tuple(tables.pruned_lines(record))


def _deletion_lines(plan: DeletionPlan, would: str) -> Iterator[str]:
    number, free = len(plan.checkpoints), tables.size_text(plan.bytes)
    yield f"{plan.run}: the whole run with {number} checkpoint(s), {free} in {len(plan.files)} file(s), {would}"
    if plan.others:
        yield f"  {len(plan.others)} file(s) below its folder are not the run's, and stay: {', '.join(plan.others[:3])}"


def _counting(watch: Watch, run: str, total: int) -> Callable[[str, int], None]:
    """To be called for each object that is gone."""
    done = count(1)

    def gone(_: str, __: int) -> None:
        number = next(done)
        watch(f"Deleting from {run}: {number} of {total} files", min(1.0, number / max(1, total)))

    return gone
