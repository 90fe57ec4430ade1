"""The curves of one run or several as figures of matplotlib, to be looked at and kept."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from io import BytesIO
from typing import Any

from colabkeep.core.errors import MissingDependency
from colabkeep.ui.curve import COLOURS, RATES, Points, axis_of, base_name, is_own, smoothed
from colabkeep.ui.drawing import escape
from colabkeep.ui.text import Report, plain

_OTHERS = 3  # metrics beside the loss
_NO_METRICS = ("epoch", "step", *RATES)
_SMOOTHED = 3  # points at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """What is drawn of a run: the loss of its steps, what was logged as in `Run.history`, where sessions went on."""

    run: str
    points: Points
    logged: Sequence[Mapping[str, Any]] = ()
    resumed_at: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One curve. `faint`: the raw values behind a smooth one; `measured`: once an epoch, with a dot at each."""

    name: str
    points: Points
    colour: str
    faint: bool = False
    measured: bool = False

    @property
    def steps(self) -> list[int]:
        """Along the axis."""
        return [step for step, _ in self.points]

    @property
    def values(self) -> list[float]:
        """NaN is a gap."""
        return [value if math.isfinite(value) else math.nan for _, value in self.points]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One of the plots of a figure, over the steps."""

    title: str
    lines: Sequence[Line]
    resumed_at: Sequence[int] = ()

    @property
    def axis(self) -> tuple[bool, float, float]:
        """Is it logarithmic, and from where to where does it go, with some room?"""
        log, low, high = axis_of([value for line in self.lines for _, value in line.points])
        room = (high / low) ** 0.05 if log else 0.05 * (high - low) or 1.0
        return (log, low / room, high * room) if log else (log, low - room, high + room)


def plots(runs: Sequence[Curves]) -> list[Plot]:
    """The losses of all runs on one plot, and other metrics below it. Of one run, each curve has a colour of its own;
    of several, each run."""
    losses, others, single = list[Line](), dict[str, list[Line]](), len(runs) == 1
    for number, run in enumerate(runs):
        colour = COLOURS[number % len(COLOURS)]
        losses += _training(run, colour, single=single)
        for index, (metric, series) in enumerate(measured(run.logged).items(), 1):
            line = Line(
                name=plain(metric if single else f"{metric}, {run.run}", limit=80),
                points=series,
                colour=COLOURS[index % len(COLOURS)] if single else colour,
                measured=True,
            )
            (losses if metric.endswith("loss") else others.setdefault(base_name(metric), [])).append(line)
    below = [Plot(title=plain(name, limit=60), lines=lines) for name, lines in list(others.items())[:_OTHERS]]
    return [Plot(title="loss", lines=losses, resumed_at=runs[0].resumed_at if single else ()), *below]


def measured(logged: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """The metrics that were logged, without the loss that there is of each step, and without learning rates."""
    names = dict.fromkeys(name for record in logged for name in record if name not in _NO_METRICS and not is_own(name))
    return {name: [(record["step"], record[name]) for record in logged if name in record] for name in names}


def _training(run: Curves, colour: str, *, single: bool) -> Iterator[Line]:
    if not run.points:
        return
    smooth = len(run.points) >= _SMOOTHED
    if smooth and single:
        yield Line(name="each step", points=run.points, colour=colour, faint=True)
    name = "training loss" if single else f"training loss, {plain(run.run, limit=60)}"
    yield Line(name=name, points=smoothed(run.points) if smooth else run.points, colour=colour)


def drawn(title: str, shown: Sequence[Plot], *, more: int = 0) -> Any:
    """A matplotlib Figure, with room for `more` plots below.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    try:
        make = import_module("matplotlib.figure").Figure
    except ImportError as error:
        raise MissingDependency(
            problem="The plot needs matplotlib, which is not installed. The report itself needs nothing.",
            remedy="pip install matplotlib",
        ) from error
    rows = len(shown) + more
    figure = make(figsize=(8, 1.0 + 2.2 * rows), layout="constrained")
    for row, plot in enumerate(shown, 1):
        axes = figure.add_subplot(rows, 1, row)
        for line in plot.lines:
            look = {"alpha": 0.3, "linewidth": 0.8} if line.faint else {"linewidth": 1.6}
            mark = "." if line.measured else None
            axes.plot(line.steps, line.values, color=line.colour, label=_plain(line.name), marker=mark, **look)
        for step in plot.resumed_at:
            axes.axvline(step, linestyle=":", linewidth=1, color="purple")
        log, low, high = plot.axis
        axes.set(xlabel="step", ylabel=_plain(plot.title), yscale="log" if log else "linear", ylim=(low, high))
        if plot.lines:
            axes.legend(fontsize="small")
        if row == 1:
            resumed = " (dotted: resumed there)" if plot.resumed_at else ""
            axes.set_title(_plain(plain(title, limit=80)) + resumed)
    figure._repr_png_ = partial(_png, figure)  # a fresh kernel shows figures as text, until matplotlib.pyplot is there
    return figure


class Plotted(Report):
    """A report with curves, which is a page too."""

    title: str

    def _repr_html_(self) -> str:
        raise NotImplementedError

    def to_html(self) -> str:
        """The report as a page of its own."""
        head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(self.title, limit=200)}</title>'
        return f"{head}{self._repr_html_()}</html>\n"


def _plain(text: str) -> str:
    return text.replace("$", r"\$")  # which would begin mathematics


def _png(figure: Any) -> bytes:
    file = BytesIO()
    figure.savefig(file, format="png", dpi=100)
    return file.getvalue()
