"""A story as lines of text."""

from __future__ import annotations

from collections.abc import Iterator

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
from colabkeep.faces.tables import aligned, plain, utc_time
from colabkeep.session.story import Story

__all__ = ["session_lines", "story_lines"]

_SAVES = 20
_EVENTS = 20
_STARTS = 4


def story_lines(story: Story) -> Iterator[str]:
    """The whole of it: how it stands, the sessions, the last saves and events, and what could not be read."""
    yield f"{plain(story.run)}: {state(story)}. Since {utc_time(story.created)}, in {plain(story.storage)}"
    yield f"  {sentence(story)}"
    if story.durability is not None:
        yield f"  {plain(story.durability.sentence, limit=2000)}"
    yield from ("", "Sessions, the first one first", *session_lines(story))
    began = [f"  {line}" for line in starts(story, _STARTS)]
    if began:
        yield from ("", "From the start to the first step, the newest first", *began)
    saves = newest_saves(story, _SAVES)
    if saves:
        count = story.totals.saves
        yield from ("", "Saves, the newest first" + (f" ({len(saves)} of {count})" if count > len(saves) else ""))
        yield from aligned([SAVE_HEAD, *map(save_row, saves)], right=(3, 4))
    told = events(story, _EVENTS)
    if told:
        yield from ("", "What happened, the latest first", *aligned(told))
    for line in left_out(story):
        yield from ("", line)


def session_lines(story: Story, begin: int = 0, end: int | None = None) -> Iterator[str]:
    """Some of the sessions as a table, a line for each."""
    chapters = list(enumerate(story.sessions))[begin:end]
    rows = [session_row(chapter, last=index == len(story.sessions) - 1) for index, chapter in chapters]
    return aligned([SESSION_HEAD, *rows])
