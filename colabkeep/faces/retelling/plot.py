"""Curves as matplotlib figures, where that is installed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from colabkeep.faces.tables import plain
from colabkeep.vocabulary.errors import MissingDependency

if TYPE_CHECKING:
    from colabkeep.session.story import Story  # a training has a figure too, and does not wait for what retells it

__all__ = ["result_figure", "story_figure"]

_HOUR = 3600.0


def story_figure(story: Story) -> Any:
    """The loss over all sessions, and below it how far each came in which hours.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    figure, losses = _losses(story.run, story.points, story.resumed_at, rows=2)
    hours = figure.add_subplot(2, 1, 2)
    begins = [chapter.began for chapter in story.sessions if chapter.began is not None]
    for chapter in story.sessions:
        if chapter.began is not None and chapter.last_seen is not None and chapter.reached is not None:
            times = [(time - min(begins)) / _HOUR for time in (chapter.began, chapter.last_seen)]
            lost = chapter.stopped is None
            hours.plot(times, [chapter.resumed_at or 0, chapter.reached], marker="x" if lost else "o", markevery=[1])
    hours.set(xlabel="hours since the first session began (x: no goodbye)", ylabel="step")
    losses.set_xlabel("step")
    return figure


def result_figure(
    run: str,
    points: Sequence[tuple[int, float]],
    resumed_at: Sequence[int],
    history: Sequence[Mapping[str, Any]],
) -> Any:
    """The loss over all sessions, with the losses that were measured at the end of each epoch.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    figure, losses = _losses(run, points, resumed_at, rows=1)
    names = dict.fromkeys(name for record in history for name in record if name.endswith("loss"))
    for name in names:
        measured = [(record["step"], record[name]) for record in history if name in record]
        losses.plot(*zip(*measured, strict=True), marker=".", label=plain(name, limit=40))
    if names:
        losses.legend()
    losses.set_xlabel("step")
    return figure


def _losses(run: str, points: Sequence[tuple[int, float]], resumed_at: Sequence[int], *, rows: int) -> tuple[Any, Any]:
    try:
        figures = import_module("matplotlib.figure")
    except ImportError as error:
        raise MissingDependency(
            problem="The plot needs matplotlib, which is not installed. The report itself needs nothing.",
            remedy="pip install matplotlib",
        ) from error
    figure = figures.Figure(figsize=(8, 3.2 * rows), layout="constrained")
    axes = figure.add_subplot(rows, 1, 1)
    whole = [(step, value if math.isfinite(value) else math.nan) for step, value in points]
    if whole:
        axes.plot(*zip(*whole, strict=True), label="loss", linewidth=1)
    for step in resumed_at:
        axes.axvline(step, linestyle=":", linewidth=1, color="purple")
    # No dollar sign of a name is to be read as mathematics.
    axes.set_title(plain(run, limit=80).replace("$", r"\$") + (" (dotted: gone on from there)" if resumed_at else ""))
    axes.set_ylabel("loss")
    return figure, axes
