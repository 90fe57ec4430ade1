"""The picture of a training: the losses on one plot, and other metrics as small ones. Each is an image with a data
address, which survives in a notebook that is opened without its kernel.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

from colabkeep.core.language import said
from colabkeep.ui.drawing import AMBER, GREY, ORANGE, PURPLE, RED, TEXT, Colour, Markup, escape

Points: TypeAlias = Sequence[tuple[int, float]]
"""(step, value), in order of steps."""

_WIDTH, _HEIGHT = 480, 176  # pixels; shown at up to a quarter more, which gives its letters the size of the text around
_WIDEST = 600
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, _WIDTH - 8, 14, _HEIGHT - 40  # of the plot in it
_BUCKET = 8  # pixels along the steps that are drawn by their lowest and their highest point
_RAW_BUCKETS = 56  # where a smooth curve lies over them
_LABEL = 110.0  # pixels that the words beside a line take
_NAMED = 6  # steps of a kind that the text names
_SMOOTHED = 20  # points at least, for a smooth curve over the raw one
_DOTS = 40  # points at most, for a dot at each
_LOG = 30.0  # how many times as high the highest values are as the lowest, from where on the axis is logarithmic
_SPIKE = {False: 3.0, True: 0.5}  # how far above nearly all others a value is cut off, in their height: plain, log

_EMPTY, _LOGARITHMIC = "loss: no value yet", "logarithmic"
_LINE, _RAW = "#1f5fbf", "#b9cdee"  # the training's loss, smooth and as it is
_MARK = PURPLE.ink  # where a session went on
_MEASURED: tuple[Colour, ...] = (ORANGE, PURPLE)  # what was measured beside it


@dataclass(frozen=True, slots=True)
class Measured:
    """Losses of other data by their names, such as those of the validation; `best`: the step of the best of them."""

    series: Mapping[str, Points]
    best: int | None = None


def loss_curve(
    points: Points,
    resumed_at: Iterable[int] = (),
    nan_since: int | None = None,
    saves: Iterable[tuple[int, bool]] = (),
    *,
    measured: Measured | None = None,
    stale_after: float | None = None,
) -> Markup:
    """The picture of the loss, smooth over the raw values, with the resumes, the step since which it is not finite, and
    the saves: (step, is it safe?). What is no finite number leaves a gap, and is named.

    The axis is logarithmic where the values go over more than one and a half powers of ten, and values far above all
    others are cut off and marked, so that one of them does not flatten the rest.

    `stale_after`: seconds after which the picture says that nothing renews it any more. It needs no script for that:
    whoever renews it restarts the time.
    """
    measured = measured or Measured({})
    others = dict(list(measured.series.items())[: len(_MEASURED)])
    whole = [(step, value) for step, value in points if math.isfinite(value)]
    known = [*whole, *(each for series in others.values() for each in series if math.isfinite(each[1]))]
    resumed, saved = sorted(resumed_at), sorted(saves)
    broken = [] if nan_since is None else [nan_since]
    steps = [step for step, _ in known] + resumed + broken + [step for step, _ in saved]
    plot = _Plot(steps or [0], [value for _, value in known])
    drawing = [f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="{TEXT.paper}"/>']
    if known:
        drawing += _axes(plot)
        drawing += _training(plot, points, whole)
        for (_, series), colour in zip(others.items(), _MEASURED, strict=False):
            drawing += _series(plot, series, colour.ink, dots=len(series) <= _DOTS)
        drawing += _best(plot, measured.best, others)
        drawing += _cut_off(plot, known)
        drawing += _legend(plot, list(others), bool(whole), bool(saved))
    else:
        drawing.append(_text(_WIDTH / 2, _HEIGHT / 2, _EMPTY, anchor="middle"))
    drawing += _resumes(plot, resumed)
    for step in broken:
        drawing.append(f'<path d="M{plot.x(step):.0f} {_TOP}V{_BOTTOM}" stroke="{RED.ink}"/>')
        drawing.append(_beside(plot.x(step), _TOP + 10, f"NaN at {step}", RED.ink))
    for is_safe, fill in ((True, TEXT.ink), (False, TEXT.paper)):
        places = _apart([plot.x(step) for step, safe in saved if safe is is_safe], 10.0)
        if places:
            triangles = "".join(f"M{x:.0f} {_BOTTOM + 3}l4 8h-8z" for x in places)
            drawing.append(f'<path d="{triangles}" fill="{fill}" stroke="{TEXT.ink}"/>')
    if stale_after is not None:
        drawing.append(_stale(stale_after))
    marks = (
        [f"NaN at {step}" for step in broken],
        [f"resumed at {step}" for step in resumed],
        [f"{step} safe" for step, safe in saved if safe],
        [f"{step} not yet safe" for step, safe in saved if not safe],
    )
    told = [*_described(points, whole), *_lowest(others), *(_listed(each) for each in marks if each)]
    return _image("".join(drawing), _WIDTH, _HEIGHT, "; ".join(told))


def measured_in(history: Sequence[Mapping[str, Any]], monitor: str = "", mode: str = "min") -> Measured:
    """The losses that were logged beside the training's own, as `Run.history` has them; the best one is marked where
    `monitor` is one of them."""
    names = dict.fromkeys(name for record in history for name in record if name.endswith("loss") and not is_own(name))
    series = {name: [(each["step"], each[name]) for each in history if name in each] for name in names}
    judged = [each for each in series.get(monitor, ()) if math.isfinite(each[1])]
    pick = max if mode == "max" else min
    return Measured(series, best=pick(judged, key=lambda each: each[1])[0] if judged else None)


def is_own(metric: str) -> bool:
    """Is it the training's loss, of which there is a value of each step?"""
    return metric in ("loss", "train_loss")


_DATA = ("train_", "val_", "eval_", "valid_")  # what names of metrics begin with


def base_name(metric: str) -> str:
    """ "accuracy" of "val_accuracy": what the training's and the validation's have in common."""
    return next((metric[len(data) :] for data in _DATA if metric.startswith(data)), metric)


COLOURS = ("#1f5fbf", "#c2410c", "#15803d", "#7e22ce", "#0e7490", "#a16207", "#be185d", "#3f4750")
"""Of several runs on one plot; the first ones have them."""


def overlaid(name: str, series: Mapping[str, Points], *, dots: bool) -> Markup:
    """One plot with a curve for each run, and a dot at each value if there are few and `dots` are wanted."""
    shown = list(series.items())[: len(COLOURS)]
    known = [each for _, points in shown for each in points if math.isfinite(each[1])]
    if not known:
        return Markup("")
    plot = _Plot([step for step, _ in known], [value for _, value in known])
    drawing = [f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="{TEXT.paper}"/>', *_axes(plot)]
    for (_, points), ink in zip(shown, COLOURS, strict=False):
        drawing += _series(plot, points, ink, dots=dots and len(points) <= _DOTS)
    drawing += _cut_off(plot, known)
    drawing.append(_text(_LEFT, _BOTTOM + 37, name, anchor="start", ink=TEXT.ink))
    if plot.log:
        drawing.append(_text(_RIGHT, _BOTTOM + 37, _LOGARITHMIC, anchor="end"))
    return _image("".join(drawing), _WIDTH, _HEIGHT, "; ".join([name, *_lowest(dict(shown))]))


def axis_of(values: Sequence[float]) -> tuple[bool, float, float]:
    """Is an axis for these logarithmic, and from where to where does it go, spikes cut off?"""
    plot = _Plot([0], [value for value in values if math.isfinite(value)])
    return plot.log, plot.low, plot.high


def grouped(series: Mapping[str, Points]) -> dict[str, dict[str, Points]]:
    """Each metric that is no loss, that of the training beside that of the validation; no learning rate that stays."""
    found = dict[str, dict[str, Points]]()
    for name in sorted(series, key=lambda each: not each.startswith("train_")):
        constant = name in RATES and len({value for _, value in series[name]}) == 1
        if not is_own(name) and not name.endswith("loss") and not constant:
            found.setdefault(base_name(name), {})[name] = series[name]
    return found


RATES = ("lr", "learning_rate")

_SMALL, _SMALL_HEIGHT, _BESIDE = 156, 84, 3  # pixels of a small plot; how many are beside each other


def small_multiples(metrics: Mapping[str, Mapping[str, Points]]) -> Markup:
    """A small plot for each metric: name → its series by their names, such as that of the training beside that of the
    validation. Six at most; nothing where there are none."""
    shown = list(metrics.items())[: 2 * _BESIDE]
    if not shown:
        return Markup("")
    drawing, told = [], []
    for number, (name, series) in enumerate(shown):
        left, top = number % _BESIDE * (_SMALL + 6), number // _BESIDE * (_SMALL_HEIGHT + 6)
        known = [each for points in series.values() for each in points if math.isfinite(each[1])]
        if not known:
            continue
        plot = _Plot(
            [step for step, _ in known],
            [value for _, value in known],
            box=(left + 40, left + _SMALL - 4, top + 18, top + _SMALL_HEIGHT - 6),
        )
        drawing.append(_text(left + 40, top + 12, name, anchor="start", ink=TEXT.ink))
        for value in _ticks(plot.low, plot.high, 2):
            drawing.append(_rule(plot, value))
        for each, points in series.items():
            ink = ORANGE.ink if each != name and not each.startswith("train_") else _LINE  # as in the large picture
            drawing += _series(plot, points, ink, dots=len(points) <= _DOTS)
            finite = [value for _, value in points if math.isfinite(value)]
            if finite:
                told.append(said(f"{each}: last {finite[-1]:.4g}"))
    height = (len(shown) - 1) // _BESIDE * (_SMALL_HEIGHT + 6) + _SMALL_HEIGHT
    paper = f'<rect width="{_WIDTH}" height="{height}" fill="{TEXT.paper}"/>'
    return _image(paper + "".join(drawing), _WIDTH, height, "; ".join(told))


def _image(drawing: str, width: int, height: int, told: str) -> Markup:
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">{drawing}</svg>'
    )
    return Markup(
        f'<img alt="{escape(told, 599)}." width="{width}" height="{height}" style="width:100%;max-width:{_WIDEST}px;'
        f'height:auto;display:block" src="data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}">'
    )


class _Plot:
    """Where a step and a value are in the picture, in pixels. `box`: left, right, top and bottom of the plot."""

    def __init__(
        self,
        steps: Sequence[int],
        values: Sequence[float],
        *,
        box: tuple[float, float, float, float] = (_LEFT, _RIGHT, _TOP, _BOTTOM),
    ) -> None:
        self.left, self.right, self.top, self.bottom = box
        self.first, self.last = min(steps), max(steps)
        found = sorted(values) or [0.0]
        low, high = (found[min(len(found) - 1, int(len(found) * share))] for share in (0.02, 0.98))  # nearly all
        self.log = found[0] > 0.0 and high / found[0] > _LOG
        self._scaled: Callable[[float], float] = math.log10 if self.log else float
        self.low, self.high = found[0], found[-1]
        usual, highest = self._scaled(high) - self._scaled(low), self._scaled(self.high)
        if len(found) >= _SMOOTHED and usual > 0.0 and highest > self._scaled(high) + _SPIKE[self.log] * usual:
            cut = self._scaled(high) + usual / 4
            self.high = 10.0**cut if self.log else cut

    def x(self, step: float) -> float:
        return self.left + (self.right - self.left) * _share(step, self.first, self.last)

    def y(self, value: float) -> float:
        low, high = self._scaled(self.low), self._scaled(self.high)
        scaled = low if self.log and value <= 0.0 else self._scaled(value)
        return self.bottom - (self.bottom - self.top) * min(1.0, max(0.0, _share(scaled, low, high)))


def _share(value: float, low: float, high: float) -> float:
    """From 0 to 1. By halves: two finite numbers can be so far apart that their difference is not finite."""
    return (value / 2 - low / 2) / (high / 2 - low / 2) if high / 2 > low / 2 else 0.5


def _ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers between the two, `most` + 1 at most."""
    length = high - low
    if not 0.0 < length < math.inf or length < 1e-300:
        return sorted({low, high})
    power = 10.0 ** math.floor(math.log10(length / most))
    step = next(power * each for each in (1, 2, 2.5, 5, 10) if power * each * most >= length * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, first + most + 2) if number * step <= high + step * 1e-9]


def _log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, and what is between them where there are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = max(1, (last - first) // 5)
    for between in ((1, 2, 5), (1, 3), (1,)):
        found = [each * 10.0**power for power in range(first, last + 1, every) for each in between]
        found = [value for value in found if low <= value <= high]
        if len(found) <= 6:
            break
    return found or [low, high]


def _axes(plot: _Plot) -> Iterator[str]:
    for value in _log_ticks(plot.low, plot.high) if plot.log else _ticks(plot.low, plot.high, 4):
        yield _rule(plot, value)
    steps = [step for step in _ticks(plot.first, plot.last, 5) if step == int(step)]
    for step in steps or [plot.first]:
        x = plot.x(step)
        anchor = "start" if x < plot.left + 12 else "end" if x > plot.right - 20 else "middle"
        told = f"{step:,.0f}" if step < 100_000 else f"{step / 1000:,.4g}k"
        yield _text(x, plot.bottom + 23, told, anchor=anchor)


def _rule(plot: _Plot, value: float) -> str:
    y = plot.y(value)
    line = f'<path d="M{plot.left:.0f} {y:.1f}H{plot.right:.0f}" stroke="{GREY.paper}"/>'
    return line + _text(plot.left - 5, y + 4, f"{value:.3g}", anchor="end")


def _training(plot: _Plot, points: Points, whole: Points) -> Iterator[str]:
    """The raw values, and over them a smooth curve where there are enough of them."""
    smooth = len(whole) >= _SMOOTHED
    ink, width = (_RAW, 1.0) if smooth else (_LINE, 1.6)
    for piece in _pieces(_thinned(points, _RAW_BUCKETS if smooth else _WIDTH // _BUCKET)):
        yield _line(plot, piece, ink, width)
    if smooth:
        curve = smoothed(points)
        every = max(1, len(curve) // 80)
        thin = [each for number, each in enumerate(curve) if number % every == 0 or each is curve[-1]]
        for piece in _pieces(thin):
            yield _line(plot, piece, _LINE, 1.8)
        whole = curve
    if whole:
        last = next((each for each in reversed(whole) if math.isfinite(each[1])), whole[-1])
        yield f'<circle cx="{plot.x(last[0]):.1f}" cy="{plot.y(last[1]):.1f}" r="2.5" fill="{_LINE}"/>'


def smoothed(points: Points) -> list[tuple[int, float]]:
    """An exponential mean over a fortieth of the steps, or over three points where that is more, begun anew behind a
    gap. A gap stays one, and a value that is above or below both its neighbours counts as the nearer one: a single
    spike moves nothing.

    As Adam's moments it is divided by the weight that it has so far, so that it begins with the first value.
    """
    found, mean, weight = list[tuple[int, float]](), 0.0, 0.0
    span = max(1.0, (points[-1][0] - points[0][0]) / min(40.0, max(1.0, len(points) / 3))) if points else 1.0
    before = points[0][0] if points else 0
    for number, (step, raw) in enumerate(points):
        if math.isfinite(raw):
            beside = [each for _, each in points[max(0, number - 1) : number + 2] if math.isfinite(each)]
            value = sorted(beside)[1] if len(beside) == 3 else raw
            keeps, before = math.exp(-max(1, step - before) / span), step
            mean, weight = keeps * mean + (1.0 - keeps) * value, keeps * weight + (1.0 - keeps)
            found.append((step, mean / weight))
        else:
            mean = weight = 0.0
            found.append((step, raw))
    return found


def _series(plot: _Plot, points: Points, ink: str, *, dots: bool) -> Iterator[str]:
    for piece in _pieces(points if dots else _thinned(points, int(plot.right - plot.left) // _BUCKET)):
        if len(piece) > 1:
            yield _line(plot, piece, ink, 1.6)
        if dots or len(piece) == 1:
            marks = "".join(f"M{plot.x(step):.0f} {plot.y(value):.1f}h0" for step, value in piece)
            yield f'<path d="{marks}" stroke="{ink}" stroke-width="5" stroke-linecap="round"/>'


def _best(plot: _Plot, best: int | None, others: Mapping[str, Points]) -> Iterator[str]:
    """A ring around it, and the word."""
    value = next((value for series in others.values() for step, value in series if step == best), None)
    if best is None or value is None or not math.isfinite(value):
        return
    x, y = plot.x(best), plot.y(value)
    yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="none" stroke="{ORANGE.ink}" stroke-width="1.5"/>'
    yield _beside(x + (6 if x <= _RIGHT - _LABEL else -6), y - 7, "best", ORANGE.ink)


def _cut_off(plot: _Plot, known: Points) -> Iterator[str]:
    """A mark at the upper edge for what lies above it."""
    above = [(step, value) for step, value in known if value > plot.high]
    places = _apart([plot.x(step) for step, _ in above], 8.0)
    if places:
        marks = "".join(f"M{x:.0f} {_TOP - 8}l4 7h-8z" for x in places)
        yield f'<path d="{marks}" fill="{RED.ink}"/>'
        step, value = max(above, key=lambda each: each[1])
        yield _beside(plot.x(step) + 6, _TOP - 3, f"{value:.3g}", RED.ink)


def _legend(plot: _Plot, others: Sequence[str], own: bool, saved: bool) -> Iterator[str]:
    """What each line is, below the plot."""
    x, y = float(_LEFT), _BOTTOM + 37
    names = [("training loss", _LINE)] if own else []
    names += [(name, colour.ink) for name, colour in zip(others, _MEASURED, strict=False)]
    for whole, ink in names:
        name = escape(whole, 40)
        yield f'<path d="M{x:.0f} {y - 4}h14" stroke="{ink}" stroke-width="3"/>' + _text(
            x + 18, y, name, anchor="start"
        )
        x += 30 + 6.2 * len(name)
    notes = [_LOGARITHMIC] if plot.log else []
    notes += ["▲ safe, △ not yet"] if saved else []
    yield _text(_RIGHT, y, " · ".join(map(said, notes)), anchor="end")


def _thinned(points: Points, buckets: int) -> Iterator[tuple[int, float]]:
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


def _pieces(points: Iterable[tuple[int, float]]) -> Iterator[list[tuple[int, float]]]:
    """The runs of finite points between the gaps."""
    for finite, piece in groupby(points, key=lambda point: math.isfinite(point[1])):
        if finite:
            yield list(piece)


def _line(plot: _Plot, piece: Points, ink: str, width: float) -> str:
    path = " ".join(f"{plot.x(step):.0f},{plot.y(value):.1f}".removesuffix(".0") for step, value in piece)
    return f'<polyline fill="none" stroke="{ink}" stroke-width="{width}" stroke-linejoin="round" points="{path}"/>'


def _resumes(plot: _Plot, steps: Sequence[int]) -> Iterator[str]:
    """A broken line for each, and words where they have room."""
    places = {plot.x(step): step for step in steps}
    shown = _apart(list(places), 20.0)
    if shown:
        lines = "".join(f"M{x:.0f} {_TOP}V{_BOTTOM}" for x in shown)
        yield f'<path d="{lines}" stroke="{_MARK}" stroke-dasharray="3 3"/>'
    for x in _apart(shown, _LABEL):
        yield _beside(x, _TOP + 10, f"resumed at {places[x]}", GREY.ink)


def _apart(places: Sequence[float], pixels: float) -> list[float]:
    """Those that have so much room, from the last to the first."""
    shown: list[float] = []
    for x in sorted(places, reverse=True):
        if not shown or shown[-1] - x >= pixels:
            shown.append(x)
    return shown


def _beside(x: float, y: float, text: str, ink: str) -> str:
    late = x > _RIGHT - _LABEL
    return _text(x - 3 if late else x + 3, y, text, anchor="end" if late else "start", ink=ink)


def _stale(seconds: float) -> str:
    """Hidden until the time is over: animations that begin once, in the picture itself (SMIL). After a sixth of the
    time the bare fact is told: a step, or a validation, may take that long."""
    early = seconds / 6
    quiet = _late(f"No update for {early:.3g} s", early, GREY)
    return quiet + _late(f"No update for {seconds:.3g} s: not live", seconds, AMBER)


def _late(told: str, seconds: float, colour: Colour) -> str:
    shown = f'<set attributeName="visibility" to="visible" begin="{seconds:.3g}s" fill="freeze"/>'
    return (
        f'<g visibility="hidden">{shown}<rect x="{_RIGHT - 230}" y="{_TOP}" width="230" height="22" rx="4" '
        f'fill="{colour.paper}" stroke="{colour.ink}"/><text x="{_RIGHT - 115}" y="{_TOP + 15}" text-anchor="middle" '
        f'font-size="12" font-weight="bold" fill="{colour.ink}">{escape(told)}</text></g>'
    )


def _text(x: float, y: float, text: str, *, anchor: str, ink: str = GREY.ink) -> str:
    place = "" if anchor == "start" else f' text-anchor="{anchor}"'  # the picture is to be small
    return f'<text x="{x:.0f}" y="{y:.0f}"{place} fill="{ink}">{escape(text, limit=60)}</text>'


def _described(points: Points, whole: Points) -> Iterator[str]:
    """The curve, for who does not see the picture."""
    if not whole:
        yield _EMPTY
    else:
        at, lowest = min(whole, key=lambda point: point[1])
        first, last, lowest_text = (f"{value:.4g}" for value in (whole[0][1], whole[-1][1], lowest))
        yield said(
            f"loss, {len(points)} points from step {points[0][0]} to {points[-1][0]}: first {first}, last {last}, "
            f"lowest {lowest_text} at {at}"
        )
    gaps = [str(step) for step, value in points if not math.isfinite(value)]
    if gaps:
        yield said(f"not a number at step {_listed(gaps)}")


def _lowest(others: Mapping[str, Points]) -> Iterator[str]:
    for name, series in others.items():
        finite = [each for each in series if math.isfinite(each[1])]
        if finite:
            at, lowest = min(finite, key=lambda each: each[1])
            yield said(f"{name}: last {finite[-1][1]:.4g}, lowest {lowest:.4g} at {at}")


def _listed(texts: Sequence[str]) -> str:
    more = [f"and {len(texts) - _NAMED} more"] if len(texts) > _NAMED else []
    return ", ".join(map(said, [*texts[-_NAMED:], *more]))
