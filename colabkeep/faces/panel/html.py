"""A state as HTML: below 10 kB, and as high in each state as in the others, so that the page below it stays put."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields

from colabkeep.faces.drawing import colours
from colabkeep.faces.drawing.curve import CurveWords, Mark, curve
from colabkeep.faces.drawing.markup import (
    Markup,
    badge,
    bar,
    chip,
    details,
    escape,
    frame,
    items,
    join,
    paragraph,
    table,
)
from colabkeep.faces.panel.saving import how_it_saves
from colabkeep.faces.panel.sentences import chip_of, how_far, safety, says, session_time, utc
from colabkeep.faces.panel.state import FINAL, PanelState, Saved
from colabkeep.faces.panel.words import words_of
from colabkeep.faces.tables import size_text

__all__ = ["COLOURS", "render"]

COLOURS: Mapping[str, colours.Colour] = {
    "starting": colours.BLUE,
    "fresh": colours.BLUE,
    "resumed": colours.BLUE,
    "saving": colours.AMBER,
    "uploading": colours.AMBER,
    "saved": colours.GREEN,
    "durable": colours.GREEN,
    "degraded": colours.ORANGE,
    "ending": colours.ORANGE,
    "nan": colours.RED,
    "interrupted": colours.PURPLE,
    "finished": colours.GREEN,
    "diverged": colours.RED,
    "failed": colours.RED,
}
"""By the name of the state."""

_ROWS = 4  # of the table of checkpoints, filled or not
_WHERE = 48  # bytes of a place in that table, which is not to be wider than the panel
_STALE_AFTER = 60.0  # seconds without an update after which a live panel says that it is not live
_MOST = 9_900  # bytes of HTML
_ROOMS = (
    1.0,
    0.5,
    0.1,
    0.05,
)  # shares of the room for texts that are tried: what people and machines write is long


def render(state: PanelState, *, stale_after: float = _STALE_AFTER) -> Markup:
    """The panel. What people or machines wrote is escaped and cut.

    `stale_after`: seconds after which a panel that is not final, and is not renewed, says that it is not live.
    """
    drawn = Markup()
    for room in _ROOMS:
        drawn = _draw(state, stale_after, room)
        if len(drawn.encode()) <= _MOST:
            break
    return drawn


def _draw(state: PanelState, stale_after: float, room: float) -> Markup:
    words, colour = words_of(state.language), COLOURS[state.phase]
    parts = [
        paragraph(_top(state, room), lines=2),
        paragraph(escape(says(state), _cut(900, room)), strong=True, lines=3),
        paragraph(join(bar(state.share, wide=True), how_far(state)), lines=2),
        paragraph(safety(state), strong=True, lines=1.5),
        paragraph(escape(session_time(state), _cut(500, room)), quiet=True, lines=2),
        paragraph(escape("" if state.phase in FINAL else how_it_saves(state), _cut(700, room)), quiet=True, lines=3),
        *_advice(state, room),
        _curve(state, words, None if state.phase in FINAL else stale_after),
        table(
            words["checkpoints"],
            [words[f"column.{name}"] for name in ("step", "size", "rung", "where")],
            _rows(state, words, room),
            right=(0, 1),
        ),
        *_promise(state, words, room),
        details(f"{words['events']} ({len(state.happened)})", items(_happened(state, room))),
        paragraph(_as_of(state, words, room), quiet=True, lines=2),
    ]
    return frame(join(*parts), colour)


def _cut(size: int, room: float) -> int:
    """Bytes for a text that may have `size` where there is room."""
    return max(12, int(size * room))


def _top(state: PanelState, room: float) -> Markup:
    symbol, word = chip_of(state)
    facts = (" ".join(filter(None, (state.platform, state.kind and f"({state.kind})"))), _cards(state), state.run)
    badges = (badge(escape(fact, _cut(120, room))) for fact in facts if fact)
    return join(chip(symbol, word, COLOURS[state.phase]), *badges)


def _as_of(state: PanelState, words: Mapping[str, str], room: float) -> Markup:
    run = escape(repr(state.run) if state.run else "", _cut(200, room))
    return Markup(escape(words["as-of"]).format(time=utc(state.now), run=run))


def _cards(state: PanelState) -> str:
    names = dict.fromkeys(state.accelerators)
    counted = ", ".join(
        name + (f" x{count}" if (count := state.accelerators.count(name)) > 1 else "") for name in names
    )
    return f"{counted or 'CPU'}: {state.verdict}" if state.verdict else counted


def _advice(state: PanelState, room: float) -> Iterator[Markup]:
    """What to click, where the check says that another machine should be had first."""
    if state.verdict not in ("", "keep"):
        yield paragraph(escape(" ".join(state.advice), _cut(900, room)), quiet=True, lines=3)


def _curve(state: PanelState, words: Mapping[str, str], stale_after: float | None) -> Markup:
    marks = [Mark(step, "resumed", words["mark.resumed"].format(step=step)) for step in state.resumed_at]
    if state.nan_since is not None:
        marks.append(Mark(state.nan_since, "broken", words["mark.broken"].format(step=state.nan_since)))
    for saved in reversed(state.saves):
        kind: str = "durable" if state.has_arrived(saved) and state.lasts else "local"
        text = words[f"mark.{kind}"].format(step=saved.step)
        marks.append(Mark(saved.step, "durable" if kind == "durable" else "local", text))
    return curve(
        state.points,
        marks,
        title=words["curve.title"],
        stale_after=stale_after,
        words=CurveWords(**{each.name: words[f"curve.{each.name}"] for each in fields(CurveWords)}),
    )


def _rows(state: PanelState, words: Mapping[str, str], room: float) -> list[Sequence[object]]:
    shown = [saved for saved in state.saves if not saved.gone][:_ROWS]
    rows: list[Sequence[object]] = [
        (
            saved.step,
            size_text(saved.bytes),
            f"{'✔' if state.has_arrived(saved) else '↑'} {words[f'rung.{saved.rung}']}",
            escape(_where(state, saved, words), _cut(_WHERE, room)),
        )
        for saved in shown
    ]
    return rows + [("", "", "", "")] * (_ROWS - len(rows))


def _where(state: PanelState, saved: Saved, words: Mapping[str, str]) -> str:
    if state.place is None or not state.has_arrived(saved):
        return words["where.here"]
    return state.place.url


def _promise(state: PanelState, words: Mapping[str, str], room: float) -> Iterator[Markup]:
    """What a resume restores, what prevents the same bits, and what no checkpoint sees, where there is room for it."""
    texts = (state.promise, *state.reasons, state.unseen, state.precision)
    if room >= 0.5:
        shown = _fitting((escape(text, _cut(400, room)) for text in texts if text), _cut(1800, room))
        yield details(words[f"exactness.{state.exactness}"], items(shown))


def _happened(state: PanelState, room: float) -> Iterator[str]:
    """The newest events first, as many as there is room for."""
    texts = (escape(f"{utc(happened.at, '%H:%M:%S')} {happened.text}", _cut(500, room)) for happened in state.happened)
    yield from _fitting(texts, _cut(2000, room))


def _fitting(texts: Iterable[str], left: int) -> Iterator[str]:
    """The first of them, up to so many bytes."""
    for text in texts:
        left -= len(text.encode()) + 9  # with its tags
        if left < 0:
            return
        yield text
