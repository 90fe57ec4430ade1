"""A curve over steps as a picture: an SVG inside an `<img>`, with all of it said in the text that stands for it."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from colabkeep.faces.drawing.colours import AMBER, GREY, LINE, MARK, RED, TEXT
from colabkeep.faces.drawing.markup import Markup, escape

__all__ = ["ENGLISH", "CurveWords", "Mark", "curve"]

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
