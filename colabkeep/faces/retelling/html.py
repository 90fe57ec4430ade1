"""A story as HTML that any notebook keeps: inline styles, tables, and the curve as a picture."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape as html_escape

from colabkeep.faces.drawing.colours import BLUE, GREEN, PURPLE, RED
from colabkeep.faces.drawing.curve import Mark, curve
from colabkeep.faces.drawing.markup import Markup, badge, chip, details, frame, items, join, paragraph, table
from colabkeep.faces.retelling.text import session_lines
from colabkeep.faces.retelling.words import (
    SAVE_HEAD,
    SESSION_HEAD,
    events,
    left_out,
    newest_saves,
    save_row,
    sentence,
    session_row,
    starts,
    state,
)
from colabkeep.faces.tables import utc_time
from colabkeep.session.story import Story
from colabkeep.vocabulary.durability import has_arrived

__all__ = ["marks_of", "story_html"]

_ROWS = 12  # sessions in a table with styles; those before them are lines of text, a fifth as long
_SAVES = 8
_EVENTS = 20
_STARTS = 4
_CHIPS = {
    "finished": ("✔", "FINISHED", GREEN),
    "failed": ("✖", "FAILED", RED),
    "not finite": ("✖", "LOSS NOT FINITE", RED),
    "stopped": ("■", "STOPPED", PURPLE),
    "no goodbye": ("○", "NO GOODBYE YET", BLUE),
}


def story_html(story: Story, as_of: float) -> Markup:
    """The report as a frame. `as_of`: when the story was read, in seconds since 1970 (UTC)."""
    symbol, word, colour = _CHIPS[state(story)]
    saves = newest_saves(story, _SAVES)
    parts = [
        chip(symbol, word, colour),
        badge(story.run),
        badge(story.storage),
        paragraph(sentence(story), strong=True),
        "" if story.durability is None else paragraph(story.durability.sentence),
        curve(story.points, marks_of(story)) if story.points else "",
        *_sessions(story),
        _wide(table(f"Saves, the newest of {story.totals.saves}", SAVE_HEAD, map(save_row, saves), right=(3, 4)))
        if saves
        else "",
        _folded(
            f"Events ({min(_EVENTS, len(events(story, _EVENTS)))})", (": ".join(e) for e in events(story, _EVENTS))
        ),
        _folded("From the start to the first step", starts(story, _STARTS)),
        _folded("What could not be read", left_out(story)),
        paragraph(f"As of {utc_time(as_of)}. It does not change by itself: run colabkeep.report() again.", quiet=True),
    ]
    return frame(join(*parts), colour)


def marks_of(story: Story) -> list[Mark]:
    """Where sessions went on, and the checkpoints that are there, known to last or not."""
    marks = [Mark(step, "resumed", f"resumed at {step}") for step in story.resumed_at]
    if story.nan_since is not None:
        marks.append(Mark(story.nan_since, "broken", f"not finite at {story.nan_since}"))
    place = None if story.durability is None else story.durability.place
    for save in newest_saves(story, story.totals.saves):
        if save.kept:
            arrived = save.rung is not None and has_arrived(save.rung, "confirmed" if place is None else place.top)
            durable = arrived and (place is None or place.lasts)
            kind = "durable" if durable else "local"
            marks.append(Mark(save.step, "durable" if durable else "local", f"checkpoint {save.step} {kind}"))
    return marks


def _sessions(story: Story) -> Iterable[Markup]:
    count = len(story.sessions)
    begin = max(0, count - _ROWS)
    if begin:
        lines = "\n".join(html_escape(line) for line in session_lines(story, 0, begin))
        yield details(f"The first {begin} sessions", _wide(Markup(f'<pre style="font-size:11px">{lines}</pre>')))
    rows = [session_row(story.sessions[index], last=index == count - 1) for index in range(begin, count)]
    yield _wide(table("Sessions, the first one first", SESSION_HEAD, rows))


def _folded(summary: str, texts: Iterable[str]) -> Markup | str:
    found = list(texts)
    return details(summary, items(found)) if found else ""


def _wide(content: Markup) -> Markup:
    """What may be wider than the frame scrolls by itself."""
    return Markup(f'<div style="overflow-x:auto">{content}</div>')
