"""The run browser without its looks: what is kept, as records and text, and what can be done with it. Every action
is a method.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from colabkeep.checkpoint.durability import objects_of
from colabkeep.checkpoint.inspect import CheckpointInfo, checkpoints, durability_of, find_run, run_names
from colabkeep.checkpoint.repository import Repository
from colabkeep.core.durability import RungName, lowest
from colabkeep.core.errors import CheckpointError, ColabKeepError, UsageError
from colabkeep.core.policies import KeepBest, Mode, RetentionPolicy
from colabkeep.core.system import Environment, SystemClock
from colabkeep.session.prune import DeletionPlan, PrunePlan, delete_run, plan_deletion, plan_prune, prune
from colabkeep.session.weights import choose
from colabkeep.session.wiring import find_store, prune_policy
from colabkeep.stores.base import Store, StoreProperties, check_name
from colabkeep.ui import export, records, text
from colabkeep.ui.browse.storage_guide import Walk, find_walk
from colabkeep.ui.text import aligned, local_time, plain, size_text

__all__ = [
    "HEAD",
    "Browser",
    "CheckpointShown",
    "DryRun",
    "Listing",
    "Outcome",
    "RunShown",
    "StorageShown",
    "browser_lines",
    "cells",
    "error_lines",
    "look",
    "storage_words",
]

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


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Outcome:
    """What was done, in `lines`; `good`: all is well, so far as was looked."""

    lines: tuple[str, ...]
    good: bool = True

    def __repr__(self) -> str:
        return "\n".join(plain(line, limit=2000) for line in self.lines)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DryRun:
    """What would be deleted, in `lines`. Nothing is, until `go` is called. `empty`: there is nothing to delete.

    `word`: what has to be typed first, where a whole run would go; None where nothing has to.
    """

    lines: tuple[str, ...]
    empty: bool
    word: str | None = None
    act: Callable[[Watch], Outcome] = field(repr=False)

    def go(self, typed: str = "", watch: Watch = lambda *_: None) -> Outcome:
        """Delete what was said, and nothing else.

        Raises:
            UsageError: the name of the run was not typed.
            RunBusy: the run is being trained.
            CheckpointError: it is not what it was any more; nothing was deleted.
            StoreError: the store failed; what was not deleted stays for the next time.
        """
        if self.word is not None and typed != self.word:
            raise UsageError(
                problem=f"The name of the run that would be gone was not typed ({typed!r:.80}). Nothing was deleted.",
                remedy=f"Type it exactly: {self.word}",
            )
        return self.act(watch)

    def __repr__(self) -> str:
        then = "" if self.word is None else repr(self.word)
        last = () if self.empty else (f"Nothing is deleted yet. To do it, call .go({then}) on this.",)
        return "\n".join(plain(line, limit=2000) for line in (*self.lines, *last))


HEAD = ("checkpoint", "step", "epoch", "size", "saved", "state", "rung")
"""The columns of a run's checkpoints; `cells` gives a row of them."""

_ACTIONS = (
    ("the story of a run", "browser.report({run!r})"),
    ("read every file again", "browser.verify({run!r})"),
    ("its weights as a safetensors file", 'browser.export({run!r}, "exports")'),
    ("what would go of its old checkpoints", "browser.prune({run!r})"),
    ("what would go if the whole run went", "browser.delete({run!r})"),
)


def browser_lines(browser: Browser) -> Iterator[str]:
    """All of it; where nothing can be listed, the way to a storage instead."""
    listing = browser.listing
    yield from (plain(line, limit=2000) for line in _listing(listing))
    yield from ("", "What you can type")
    yield f"  browser = colabkeep.browse({plain(_given(browser.storage))})"
    if listing.runs:
        name = next((run.name for run in listing.runs if run.trouble is None), listing.runs[0].name)
        width = max(len(code.format(run=name)) for _, code in _ACTIONS)
        yield from (plain(f"  {code.format(run=name):<{width}}  # {what}") for what, code in _ACTIONS)
    if listing.trouble is not None:
        yield from ("", *str(browser.walk()).splitlines())
    else:
        yield "  browser.walk()  # signing in and mounting, step by step"


def storage_words(storage: StorageShown) -> Iterator[str]:
    """Where, how durable, how much room, who is signed in."""
    told = storage.properties
    yield f"{storage.url} {_FATES[told.persists]}"
    yield _TOPS[told.top_rung]
    account = told.account if told.behind is None else told.behind.account
    if account is not None:
        yield f"signed in as {account}"
    if told.free_bytes is not None:
        yield f"{size_text(told.free_bytes)} free" + (" on the faster side" if told.behind is not None else "")
    if told.behind is not None:
        yield from _behind(storage)
    if storage.degraded is not None:
        yield storage.degraded


def cells(checkpoint: CheckpointShown) -> tuple[str, ...]:
    """One checkpoint as a row of text."""
    info = checkpoint.info
    epoch = "?" if info.epoch is None else str(info.epoch)
    saved = local_time(info.created)
    return (info.id, str(info.step), epoch, size_text(info.bytes), saved, info.state, checkpoint.rung or "")


def error_lines(error: ColabKeepError) -> tuple[str, str]:
    """The problem and the remedy."""
    return error.problem, f"→ {error.remedy}"


def _given(storage: object) -> str:
    """What was written as storage=…, to be written again."""
    if isinstance(storage, str | os.PathLike):
        return repr(os.fspath(storage))
    if isinstance(storage, tuple | list):
        return f"({', '.join(map(_given, storage))})"
    return "storage"


def _listing(listing: Listing) -> Iterator[str]:
    if listing.storage is not None:
        yield from storage_words(listing.storage)
    if listing.trouble is not None:
        yield from error_lines(listing.trouble)
        return
    yield ""
    if not listing.runs:
        yield "There are no runs here. Is that the right place?"
    for run in listing.runs:
        yield from _run_lines(run)


def _run_lines(run: RunShown) -> Iterator[str]:
    yield run.name
    if run.trouble is not None:
        yield from (f"  {line}" for line in error_lines(run.trouble))
        return
    rows = [cells(checkpoint) for checkpoint in run.checkpoints]
    yield from aligned([HEAD, *rows], right=(1, 2, 3)) if rows else ["  no checkpoint yet"]
    yield f"  {run.promise}"


def _behind(storage: StorageShown) -> Iterator[str]:
    behind = storage.properties.behind
    if behind is None:
        return
    if behind.free_bytes is not None:
        yield f"{size_text(behind.free_bytes)} free in {behind.url}"
    if behind.waiting_bytes:
        yield f"{size_text(behind.waiting_bytes)} are still on their way to {behind.url}"
    if behind.full:
        yield f"{behind.url} is FULL: make room there"


_FATES: Mapping[bool | None, str] = {
    True: "outlives this machine",
    False: "is lost with this machine",
    None: "is where it is: whether it outlives this machine cannot be told from here",
}
_TOPS = {
    "local": "the highest rung there is local: on its disk",
    "sent": "the highest rung there is sent: it has what it was given, and cannot state a digest",
    "confirmed": "the highest rung there is confirmed: the place itself states the digest of what it holds",
    "unknown": "how durable it is cannot be told",
}


def _nobody(text: str, share: float | None) -> None:
    """Watches nothing."""


class Browser:
    """What a storage holds, and what can be done with it.

    As the last line of a cell it is shown with buttons, elsewhere as text with the lines to type. `listing` is what was
    found when it was looked at last; an error of the storage is shown there, and raised by nothing but the actions.
    """

    def __init__(self, storage: Any, *, mount: Callable[[], Store], show: Callable[[Browser], None]) -> None:
        self.storage = storage
        self.listing = Listing()
        self._ask_mount = mount
        self._show = show
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
        from colabkeep.ui.report import report

        return report(run, storage=self._opened())

    def verify(self, run: str, watch: Watch = _nobody) -> Outcome:
        """Read every file of a run again and compare it with what was written. Changes nothing.

        Raises:
            CheckpointNotFound: there is no such run.
            StoreError: the run cannot be listed.
        """
        repository = find_run(self._opened(), run)
        total = sum(entry.size for entry in repository.store.list(repository.folder))

        def seen(name: str, files: int, size: int) -> None:
            watch(f"Reading {name}: {files} files, {text.size_text(size)}", min(1.0, size / max(1, total)))

        record = records.verify_record(repository.store, [repository.run], seen)
        return Outcome(lines=tuple(text.verify_lines(record)), good=all(one["ok"] for one in record["runs"]))

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
        return Outcome(lines=tuple(text.exported_lines(export.export_weights(loaded, part, target))))

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
        return "\n".join(browser_lines(self))

    def _ipython_display_(self) -> None:
        self._show(self)

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
    record = records.prune_record(repository, plan, dry_run=dry_run, caught_up=caught_up)
    return tuple(text.pruned_lines(record))


def _deletion_lines(plan: DeletionPlan, would: str) -> Iterator[str]:
    number, free = len(plan.checkpoints), text.size_text(plan.bytes)
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
