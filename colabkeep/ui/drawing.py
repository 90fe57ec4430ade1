"""Drawing for notebooks: HTML with inline styles only, its colours, a curve as a picture, and curves as matplotlib
figures, where that is installed.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape as _html
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from colabkeep.core.errors import MissingDependency
from colabkeep.ui.text import plain

if TYPE_CHECKING:
    from colabkeep.session.history import (
        RunHistory,  # a training has a figure too, and does not wait for what retells it
    )

__all__ = [
    "AMBER",
    "BLUE",
    "ENGLISH",
    "GREEN",
    "GREY",
    "LINE",
    "MARK",
    "ORANGE",
    "PURPLE",
    "RED",
    "TEXT",
    "Colour",
    "CurveWords",
    "Mark",
    "Markup",
    "badge",
    "bar",
    "chip",
    "curve",
    "details",
    "escape",
    "frame",
    "history_figure",
    "items",
    "join",
    "paragraph",
    "result_figure",
    "table",
]

# A notebook that is opened on another machine, or on GitHub, keeps inline styles, tables, `<details>`, `<progress>` and
# pictures with a data address; style sheets, scripts, inline `<svg>`, ids and roles are stripped from it.


@dataclass(frozen=True, slots=True)
class Colour:
    """Ink for text on the paper, and on white; both as "#rrggbb"."""

    ink: str
    paper: str


TEXT = Colour("#1f2328", "#ffffff")
GREY = Colour("#3f4750", "#f3f4f6")
BLUE = Colour("#0b3d91", "#e3edfb")
AMBER = Colour("#663c00", "#fff1d6")
GREEN = Colour("#0b4a1e", "#e0f3e4")
ORANGE = Colour("#7a2600", "#fde8dc")
PURPLE = Colour("#4a148c", "#f0e6fb")
RED = Colour("#85000b", "#fde7e7")

LINE = "#1f5fbf"  # the curve
MARK = "#4a148c"  # where a session went on


_LONGEST = 1000  # bytes of one piece of text as HTML
_FONT = "font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans',sans-serif;font-size:13px;line-height:1.5"
_ROUND = "display:inline-block;padding:1px 9px;margin:0 6px 2px 0;border-radius:10px"


class Markup(str):
    """HTML that is whole and safe: only builders make it, from escaped text."""

    __slots__ = ()


def escape(text: object, limit: int = _LONGEST) -> Markup:
    """Any text as HTML: on one line, cut so that it takes `limit` bytes at most, without what steers a terminal or the
    direction of writing. `Markup` is left as it is."""
    if isinstance(text, Markup):
        return text
    pieces, room = [], limit
    for char in " ".join(str(text).split()):
        piece = _html(char if char.isprintable() else "?", quote=True)
        if len(piece.encode()) > room:
            break
        room -= len(piece.encode())
        pieces.append(piece)
    else:
        return Markup("".join(pieces))
    while pieces and room < 3:  # for the sign of what is left out
        room += len(pieces.pop().encode())
    return Markup("".join(pieces) + "…")


def join(*parts: object) -> Markup:
    """The parts after each other, each escaped unless it is `Markup`."""
    return Markup("".join(map(escape, parts)))


def chip(symbol: str, word: str, colour: Colour) -> Markup:
    """A state: symbol and word, in its colour. The word alone says it."""
    return _span(f"{_ROUND};font-weight:bold;color:{colour.ink};background:{colour.paper}", f"{symbol} {word}")


def badge(text: object) -> Markup:
    """A fact beside a chip, in grey."""
    return _span(f"{_ROUND};color:{GREY.ink};background:{GREY.paper}", text)


def paragraph(text: object, *, strong: bool = False, quiet: bool = False, lines: float | None = None) -> Markup:
    """A line of text: `strong` in bold, `quiet` in grey. `lines`: it takes the height of so many, whatever it says."""
    style = "margin:4px 0"
    style += ";font-weight:bold" if strong else ""
    style += f";color:{GREY.ink}" if quiet else ""
    style += f";height:{lines * 1.5:g}em;overflow:auto" if lines is not None else ""
    return Markup(f'<div style="{style}">{escape(text)}</div>')


def bar(share: float | None, *, wide: bool = False) -> Markup:
    """A progress bar; `share` from 0 to 1, None where the length is not known. Its text is the percentage. `wide`: it
    has a line of its own, else text follows it."""
    style = f"{'width:100%' if wide else 'width:220px;margin-right:8px'};height:12px;vertical-align:middle"
    if share is None:
        return Markup(f'<progress style="{style}" value="0" max="1">?</progress>')
    share = min(max(share, 0.0), 1.0)
    return Markup(f'<progress style="{style}" value="{share:.4f}" max="1">{int(share * 100)} %</progress>')


def table(
    caption: object, columns: Sequence[object], rows: Iterable[Sequence[object]], *, right: Collection[int] = ()
) -> Markup:
    """A table with a caption and a head; the columns of the numbers in `right` end together."""
    sides = ["right" if index in right else "left" for index in range(len(columns))]
    cell = "padding:1px 12px 1px 0"
    head = "".join(
        f'<th scope="col" style="{cell};text-align:{side};color:{GREY.ink}">{escape(name)}</th>'
        for side, name in zip(sides, columns, strict=True)
    )
    # The background is said for each row: notebooks stripe those of tables that say nothing.
    body = "".join(
        f'<tr style="background:{TEXT.paper}">'
        + "".join(
            f'<td style="{cell}{";text-align:right" if side == "right" else ""}">{escape(value) or "&nbsp;"}</td>'
            for side, value in zip(sides, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return Markup(
        f'<table style="border-collapse:collapse;margin:4px 0;white-space:nowrap;color:{TEXT.ink};'
        f'background:{TEXT.paper}"><caption style="text-align:left;font-weight:bold;color:{TEXT.ink}">'
        f"{escape(caption)}</caption>"
        f'<thead><tr style="background:{TEXT.paper}">{head}</tr></thead><tbody>{body}</tbody></table>'
    )


def items(texts: Iterable[object]) -> Markup:
    """A list."""
    return Markup(
        '<ul style="margin:2px 0;padding-left:20px">' + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>"
    )


def details(summary: object, content: object, *, opened: bool = False) -> Markup:
    """Content behind a line that opens it, without a script."""
    return Markup(
        f'<details style="margin:4px 0"{" open" if opened else ""}>'
        f'<summary style="cursor:pointer">{escape(summary)}</summary>{escape(content)}</details>'
    )


def frame(content: object, colour: Colour) -> Markup:
    """The whole thing: light paper and dark ink of its own, so that it can be read on a dark theme too."""
    return Markup(
        f'<div style="{_FONT};max-width:640px;padding:8px 12px;color:{TEXT.ink};background:{TEXT.paper};'
        f'border:1px solid {GREY.paper};border-left:5px solid {colour.ink}">{escape(content)}</div>'
    )


def _span(style: str, text: object) -> Markup:
    return Markup(f'<span style="{style}">{escape(text)}</span>')


_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 8, 14, 26  # pixels around the curve
_BUCKET = 8  # pixels along the steps that are drawn by their lowest and their highest point
_APART = {"resumed": 20.0, "durable": 10.0, "local": 10.0}  # pixels between two marks at least; the later one stays
_LABEL_APART = 110.0  # pixels between the words of two resumptions
_NAMED = 6  # marks of a kind that the text names


@dataclass(frozen=True, slots=True)
class Mark:
    """Something at a step: where a session went on, where the loss broke, or a checkpoint that is durable or only local
    yet. `text` is said beside the line of a resumption or a break, and in the text for who does not see the picture."""

    step: int
    kind: Literal["resumed", "broken", "durable", "local"]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveWords:
    """The words of the picture; what stands in braces is filled in."""

    empty: str = "{title}: no value yet"
    legend: str = "{title} by step"
    legend_saves: str = "▲ durable, △ not yet"
    told: str = (
        "{title}, {count} points from step {begin} to {end}: first {first}, last {last}, lowest {lowest} at {at}"
    )
    gaps: str = "not a number at step {steps}"
    more: str = "and {count} more"
    stale: str = "No update for {seconds} s: not live"


ENGLISH = CurveWords()


def curve(
    points: Sequence[tuple[int, float]],
    marks: Sequence[Mark] = (),
    *,
    title: str = "loss",
    width: int = 600,
    height: int = 150,
    stale_after: float | None = None,
    words: CurveWords = ENGLISH,
) -> Markup:
    """The picture of `points`, (step, value) in order of steps. What is no finite number leaves a gap, and is named.

    `stale_after`: seconds after which the picture says that nothing renews it any more. It needs no script for that:
    whoever renews it restarts the time.
    """
    whole = [(step, value) for step, value in points if math.isfinite(value)]
    steps = [step for step, _ in whole] + [mark.step for mark in marks]
    plot = _Plot(width, height, steps or [0], [value for _, value in whole] or [0.0])
    drawing = [f'<rect width="{width}" height="{height}" fill="{TEXT.paper}"/>']
    if whole:
        drawing += _axes(plot)
        drawing += (_line(plot, piece) for piece in _pieces(_thinned(points, width // _BUCKET)))
        drawing.append(_last_point(plot, *whole[-1]))
        drawing.append(_legend(plot, marks, title, words))
    else:
        drawing.append(_text(width / 2, height / 2, words.empty.format(title=title), anchor="middle"))
    drawing += _marks(plot, marks)
    if stale_after is not None:
        drawing.append(_stale(plot, stale_after, words))
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">{"".join(drawing)}</svg>'
    )
    alt = escape(_alt(points, whole, marks, title, words), limit=400)
    return Markup(
        f'<img alt="{alt}" width="{width}" height="{height}" style="max-width:100%;display:block" '
        f'src="data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}">'
    )


class _Plot:
    """Where a step and a value are in the picture, in pixels."""

    def __init__(self, width: int, height: int, steps: Sequence[int], values: Sequence[float]) -> None:
        self.right, self.bottom = width - _RIGHT, height - _BOTTOM
        self.first, self.last = min(steps), max(steps)
        self.low, self.high = min(values), max(values)

    def x(self, step: float) -> float:
        return _LEFT + (self.right - _LEFT) * _share(step, self.first, self.last)

    def y(self, value: float) -> float:
        return self.bottom - (self.bottom - _TOP) * _share(value, self.low, self.high)


def _share(value: float, low: float, high: float) -> float:
    """From 0 to 1."""
    if high <= low:
        return 0.5
    if math.isinf(high - low):  # two finite numbers can be as far apart as that; their halves are not
        return (value / 2 - low / 2) / (high / 2 - low / 2)
    return (value - low) / (high - low)


def _thinned(points: Sequence[tuple[int, float]], buckets: int) -> Iterator[tuple[int, float]]:
    """The lowest and the highest point of each bucket, in their order; and what is not finite, as a gap."""
    size = max(1, math.ceil(len(points) / buckets))
    for begin in range(0, len(points), size):
        bucket = points[begin : begin + size]
        finite = [point for point in bucket if math.isfinite(point[1])]
        if len(finite) < len(bucket):
            yield next(point for point in bucket if not math.isfinite(point[1]))
        if finite:
            low, high = (pick(finite, key=lambda point: point[1]) for pick in (min, max))
            yield from sorted({low, high})


def _pieces(points: Iterator[tuple[int, float]]) -> Iterator[list[tuple[int, float]]]:
    """The runs of finite points between the gaps."""
    piece: list[tuple[int, float]] = []
    for point in points:
        if math.isfinite(point[1]):
            piece.append(point)
        elif piece:
            yield piece
            piece = []
    if piece:
        yield piece


def _line(plot: _Plot, piece: Sequence[tuple[int, float]]) -> str:
    path = " ".join(f"{plot.x(step):.0f},{plot.y(value):.1f}" for step, value in piece)
    return f'<polyline fill="none" stroke="{LINE}" stroke-width="1.6" stroke-linejoin="round" points="{path}"/>'


def _last_point(plot: _Plot, step: int, value: float) -> str:
    return f'<circle cx="{plot.x(step):.1f}" cy="{plot.y(value):.1f}" r="2.5" fill="{LINE}"/>'


def _axes(plot: _Plot) -> Iterator[str]:
    middle = plot.low / 2 + plot.high / 2
    for value in sorted({plot.low, middle, plot.high}):
        y = plot.y(value)
        yield f'<path d="M{_LEFT} {y:.1f}H{plot.right}" stroke="{GREY.paper}"/>'
        yield _text(_LEFT - 5, y + 4, f"{value:.3g}", anchor="end")
    yield _text(_LEFT, plot.bottom + 23, str(plot.first), anchor="start")
    if plot.last > plot.first:
        yield _text(plot.right, plot.bottom + 23, str(plot.last), anchor="end")


def _legend(plot: _Plot, marks: Sequence[Mark], title: str, words: CurveWords) -> str:
    """Below the steps: what the line is, and what the triangles are if there are any."""
    saves = any(mark.kind in ("durable", "local") for mark in marks)
    text = words.legend.format(title=title) + (f" · {words.legend_saves}" if saves else "")
    return _text((_LEFT + plot.right) / 2, plot.bottom + 23, text, anchor="middle")


def _marks(plot: _Plot, marks: Sequence[Mark]) -> Iterator[str]:
    resumed = sorted(_apart(plot, marks, "resumed"), key=lambda mark: mark.step)
    if resumed:
        lines = "".join(f"M{plot.x(mark.step):.0f} {_TOP}V{plot.bottom}" for mark in resumed)
        yield f'<path d="{lines}" stroke="{MARK}" stroke-dasharray="3 3"/>'
    worded = -math.inf
    for mark in resumed:
        x = plot.x(mark.step)
        if x - worded >= _LABEL_APART:
            worded, late = x, x > plot.right - _LABEL_APART
            yield _text(x - 3 if late else x + 3, _TOP - 3, mark.text, anchor="end" if late else "start")
    for mark in (each for each in marks if each.kind == "broken"):
        x, late = plot.x(mark.step), plot.x(mark.step) > plot.right - _LABEL_APART
        yield f'<path d="M{x:.0f} {_TOP}V{plot.bottom}" stroke="{RED.ink}"/>'
        yield _text(x - 4 if late else x + 4, _TOP + 10, mark.text, anchor="end" if late else "start", ink=RED.ink)
    for kind, fill in (("durable", TEXT.ink), ("local", TEXT.paper)):
        triangles = "".join(f"M{plot.x(mark.step):.0f} {plot.bottom + 3}l4 8h-8z" for mark in _apart(plot, marks, kind))
        if triangles:
            yield f'<path d="{triangles}" fill="{fill}" stroke="{TEXT.ink}"/>'


def _apart(plot: _Plot, marks: Sequence[Mark], kind: str) -> Iterator[Mark]:
    """Those of a kind that have room, from the last to the first."""
    taken = math.inf
    for mark in sorted((each for each in marks if each.kind == kind), key=lambda each: each.step, reverse=True):
        if taken - plot.x(mark.step) >= _APART[kind]:
            taken = plot.x(mark.step)
            yield mark


def _stale(plot: _Plot, seconds: float, words: CurveWords) -> str:
    """Hidden until the time is over: an animation that begins once, in the picture itself (SMIL)."""
    shown = f'<set attributeName="visibility" to="visible" begin="{seconds:g}s" fill="freeze"/>'
    text = escape(words.stale.format(seconds=f"{seconds:g}"))
    return (
        f'<g visibility="hidden">{shown}<rect x="{plot.right - 230}" y="{_TOP}" width="230" height="22" rx="4" '
        f'fill="{AMBER.paper}" stroke="{AMBER.ink}"/><text x="{plot.right - 115}" y="{_TOP + 15}" text-anchor="middle" '
        f'font-size="12" font-weight="bold" fill="{AMBER.ink}">{text}</text></g>'
    )


def _text(x: float, y: float, text: str, *, anchor: str, ink: str = GREY.ink) -> str:
    place = "" if anchor == "start" else f' text-anchor="{anchor}"'  # the picture is to be small
    return f'<text x="{x:.0f}" y="{y:.0f}"{place} fill="{ink}">{escape(text, limit=60)}</text>'


def _alt(
    points: Sequence[tuple[int, float]],
    whole: Sequence[tuple[int, float]],
    marks: Sequence[Mark],
    title: str,
    words: CurveWords,
) -> str:
    if not whole:
        told = words.empty.format(title=title)
    else:
        at, lowest = min(whole, key=lambda point: point[1])
        first, last = whole[0][1], whole[-1][1]
        told = words.told.format(
            title=title, count=len(points), begin=points[0][0], end=points[-1][0],
            first=f"{first:.4g}", last=f"{last:.4g}", lowest=f"{lowest:.4g}", at=at,
        )  # fmt: skip
    gaps = [str(step) for step, value in points if not math.isfinite(value)]
    sentences = [told]
    if gaps:
        sentences.append(words.gaps.format(steps=_listed(gaps, words)))
    for kind in ("broken", "resumed", "durable", "local"):
        texts = [mark.text for mark in marks if mark.kind == kind]
        if texts:
            sentences.append(_listed(texts, words))
    return "; ".join(sentences) + "."


def _listed(texts: Sequence[str], words: CurveWords) -> str:
    shown = ", ".join(texts[-_NAMED:])
    return shown if len(texts) <= _NAMED else f"{shown}, {words.more.format(count=len(texts) - _NAMED)}"


_HOUR = 3600.0


def history_figure(run_history: RunHistory) -> Any:
    """The loss over all sessions, and below it how far each came in which hours.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    figure, losses = _losses(run_history.run, run_history.points, run_history.resumed_at, rows=2)
    hours = figure.add_subplot(2, 1, 2)
    begins = [session_history.began for session_history in run_history.sessions if session_history.began is not None]
    for session_history in run_history.sessions:
        if (
            session_history.began is not None
            and session_history.last_seen is not None
            and session_history.reached is not None
        ):
            times = [(time - min(begins)) / _HOUR for time in (session_history.began, session_history.last_seen)]
            lost = session_history.stopped is None
            hours.plot(
                times,
                [session_history.resumed_at or 0, session_history.reached],
                marker="x" if lost else "o",
                markevery=[1],
            )
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
