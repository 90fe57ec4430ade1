"""The browser as text: the listing, and the lines to type for what the buttons do."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from colabkeep.faces.browser.listing import CheckpointShown, Listing, RunShown, StorageShown
from colabkeep.faces.tables import aligned, local_time, plain, size_text
from colabkeep.vocabulary.errors import ColabKeepError

if TYPE_CHECKING:
    from colabkeep.faces.browser.model import Browser

__all__ = ["HEAD", "browser_lines", "cells", "error_lines", "storage_words"]

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
        yield from _run(run)


def _run(run: RunShown) -> Iterator[str]:
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
