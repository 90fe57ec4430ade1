"""`colabkeep.report()`: what became of a run, drawn from what lies in the storage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from colabkeep.faces.drawing.markup import escape
from colabkeep.faces.retelling.html import story_html
from colabkeep.faces.retelling.plot import story_figure
from colabkeep.faces.retelling.record import story_record
from colabkeep.faces.retelling.text import story_lines
from colabkeep.faces.tables import Record
from colabkeep.session.catalogue import run_names
from colabkeep.session.clock import SystemClock
from colabkeep.session.story import Story, read_story
from colabkeep.session.wiring import find_store
from colabkeep.stores import Storage
from colabkeep.stores.base import Store
from colabkeep.vocabulary.door import door
from colabkeep.vocabulary.errors import CheckpointNotFound, UsageError

__all__ = ["RunReport", "report", "report_on"]


@door()
def report(run_name: str | None = None, *, storage: Storage = "auto") -> RunReport:
    """Tell the whole story of a run over all its sessions: machines, gaps, what was lost, saves, the loss curve.

    Reads what lies in the storage, so it needs no kernel that remembers anything, no framework, and no GPU. Changes
    nothing, and may be called while the run is being trained elsewhere.

    Args:
        run_name: the run; without it, the only one there.
        storage: where it is kept, as in `resumable_fit`.

    Returns:
        RunReport: shown as the last line of a cell; ``print`` it elsewhere; ``to_dict()`` for programs, ``plot()``
            for a figure.

    Raises:
        CheckpointNotFound: there is no such run.
        UsageError: there are several; the message names them.
        StoreError: the storage cannot be listed. What cannot be read in it is named in the report.
    """
    store = find_store(storage)
    try:
        return report_on(store, run_name)
    finally:
        if store is not storage:
            store.close()


def report_on(store: Store, run: str | None) -> RunReport:
    """The report on a run in a store; raises as `report`."""
    return RunReport(read_story(store, _the_only(store) if run is None else run), SystemClock().time())


class RunReport:
    """What `colabkeep.report()` returns. `story` holds the facts themselves; `as_of`: when they were read, in seconds
    since 1970 (UTC)."""

    def __init__(self, story: Story, as_of: float) -> None:
        self.story = story
        self.as_of = as_of

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """The report as lines of text."""
        return story_lines(self.story)

    def to_dict(self) -> Record:
        """The report for programs: "name", "storage", "totals", "sessions" (the first one first, each with its
        "saves", "spells" and "told"), "losses" as [step, loss], "resumed_at", "durability", "troubles", "left_out"."""
        return story_record(self.story, self.as_of)

    def to_json(self) -> str:
        """`to_dict` as one line of strict JSON."""
        return json.dumps(self.to_dict(), allow_nan=False)

    def to_html(self) -> str:
        """The report as a page of its own."""
        title = escape(f"{self.story.run}: report", limit=200)
        return (
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>{self._repr_html_()}</html>\n'
        )

    def plot(self) -> Any:
        """The loss over all sessions, and how far each came in which hours: a matplotlib Figure.

        Raises:
            MissingDependency: matplotlib is not installed.
        """
        return story_figure(self.story)

    def _repr_html_(self) -> str:
        return str(story_html(self.story, self.as_of))


def _the_only(store: Store) -> str:
    names = run_names(store)
    if not names:
        raise CheckpointNotFound(
            problem=f"There is no run in {store.url} yet.",
            remedy="Is that the right place? Say another with storage=… (--storage).",
        )
    if len(names) > 1:
        raise UsageError(
            problem=f"There are {len(names)} runs in {store.url}: {', '.join(names)}.",
            remedy=f'Say which one: colabkeep.report("{names[0]}"), or `colabkeep report {names[0]}`.',
        )
    return names[0]
