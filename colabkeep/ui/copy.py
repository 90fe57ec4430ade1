"""`colabkeep copy`: runs to another storage, or to another name, in words and numbers."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from colabkeep.checkpoint.inspect import find_run, run_names
from colabkeep.checkpoint.repository import Repository
from colabkeep.core.arguments import checked_run_name
from colabkeep.core.errors import CheckpointNotFound, UsageError
from colabkeep.core.system import SystemClock
from colabkeep.session.copy import Copied, copy_run, plan_copy
from colabkeep.session.open import find_store
from colabkeep.stores.base import Store
from colabkeep.ui.text import Record, plain, size_text

Watch: TypeAlias = Callable[[str], Callable[[str, int], None]]
"""By the name of a run, what is called with the name and the bytes of each of its files."""


def add_arguments(parser: argparse.ArgumentParser, name: Callable[[str], str]) -> None:
    """The words of the command. `name` makes a run's name of what was typed."""
    parser.add_argument("source", help="the storage to copy from: a folder or URL")
    parser.add_argument("target", help="the storage to copy to")
    parser.add_argument("--run", type=name, metavar="NAME", help="only this run (default: all runs)")
    parser.add_argument("--as", dest="new_name", type=name, metavar="NAME", help="what the copy is called")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be copied")


def copy_record(words: argparse.Namespace, watch: Watch) -> Record:
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
            return {"dry_run": words.dry_run, "runs": [_one(words, source, target, name, watch) for name in names]}
        finally:
            target.close()
    finally:
        source.close()


def _one(words: argparse.Namespace, source: Store, target: Store, name: str, watch: Watch) -> dict[str, Any]:
    new_name = name if words.new_name is None else checked_run_name(words.new_name)
    old, new = Repository(source, name), Repository(target, new_name)
    if words.dry_run:
        return _record(old, new, plan_copy(old, new))
    return _record(old, new, copy_run(old, new, SystemClock(), watch(name)))


def _record(old: Repository, new: Repository, found: Copied) -> dict[str, Any]:
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


def copied_lines(record: Record) -> Iterator[str]:
    """For people."""
    dry = record["dry_run"]
    for run in record["runs"]:
        called = "" if run["name"] == run["new_name"] else f" as {plain(run['new_name'])}"
        count, size = len(run["checkpoints"]), f"{size_text(run['bytes'])} in {run['files']} file(s)"
        there = f"; {run['there']} file(s) are there already" if run["there"] else ""
        what = "would be copied" if dry else "copied"
        yield f"{plain(run['name'])}: {count} checkpoint(s), {size} {what} to {run['target']}{called}{there}"
        for id, why in run["left_out"].items():
            yield f"  LEFT OUT {id}: {plain(why)}"
        if run["verified"]:
            yield "  Verified: each file there has the bytes that were read here."
        elif not dry:
            yield "  NOT VERIFIED: the target has not taken all of it yet. Keep the source, and run this command again."
            yield from [f"  {plain(run['trouble'])}"] if run["trouble"] else []


def copy_status(record: Record) -> int:
    """0: all is there. 1: damaged checkpoints were left out. 4: not verified. 5: newer ones were left out."""
    runs = record["runs"]
    if not record["dry_run"] and not all(run["verified"] for run in runs):
        return 4
    if any(set(run["left_out"]) - set(run["newer"]) for run in runs):
        return 1
    return 5 if any(run["newer"] for run in runs) else 0
