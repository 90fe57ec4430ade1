"""The phrases of a story that text and HTML share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from colabkeep.faces.tables import plain, size_text, utc_time
from colabkeep.session.chapters import Chapter, Redone, Save, Told
from colabkeep.session.story import Story
from colabkeep.vocabulary.durations import duration_text

__all__ = [
    "SAVE_HEAD",
    "SESSION_HEAD",
    "events",
    "left_out",
    "newest_saves",
    "save_row",
    "sentence",
    "session_row",
    "starts",
    "state",
]

SESSION_HEAD = ("session", "began", "for", "machine", "steps", "end", "trained again")
SAVE_HEAD = ("checkpoint", "saved", "why", "size", "waited", "rung", "")


def state(story: Story) -> str:
    """In a word, how the run stands: "finished", "failed", "stopped", "not finite" (the loss), or "no goodbye"."""
    reason = story.sessions[-1].stopped if story.sessions else None
    if story.nan_since is not None and reason != "error":
        return "not finite"
    if reason is None:
        return "no goodbye"
    return "finished" if reason in ("finished", "max_steps") else "failed" if reason == "error" else "stopped"


def sentence(story: Story) -> str:
    """How far it came, in how long, and what was trained twice."""
    total = story.totals
    sessions = "1 session" if total.sessions == 1 else f"{total.sessions} sessions"
    came = f"Step {total.steps} after {duration_text(total.trained)} of training, in {sessions}"
    over = f" over {duration_text(total.wall)} ({duration_text(total.gaps)} of that without a machine)"
    broken = "" if story.nan_since is None else f" The loss is not a finite number since step {story.nan_since}."
    return f"{came}{over if total.sessions > 1 else ''}. {_twice(story)}{broken}"


def session_row(chapter: Chapter, *, last: bool) -> tuple[str, ...]:
    """One session, as `SESSION_HEAD` says. `last`: no other came after it."""
    length = None
    if chapter.began is not None and chapter.last_seen is not None:
        length = duration_text(max(0.0, chapter.last_seen - chapter.began))
    number = "?" if chapter.number is None else str(chapter.number)
    return (
        f"{number} · {chapter.session}",
        utc_time(chapter.began),
        length or "?",
        _machine(chapter),
        _steps(chapter),
        _end(chapter, last=last),
        _again(chapter.redone),
    )


def starts(story: Story, most: int) -> Iterator[str]:
    """How long the last sessions took to their first step, and what took how long; the newest first."""
    timed = [chapter for chapter in story.sessions if chapter.start]
    for chapter in timed[: -most - 1 : -1]:
        parts = [(_PARTS.get(name, plain(name, limit=20)), seconds) for name, seconds in chapter.start[:_MOST_PARTS]]
        shown = [(name, seconds) for name, seconds in parts if seconds >= 0.005]
        total = sum(seconds for _, seconds in chapter.start)
        rest = total - sum(seconds for _, seconds in shown)
        if shown and rest >= 0.005:
            shown.append(("the rest", rest))
        told = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in shown)
        number = "?" if chapter.number is None else str(chapter.number)
        yield f"{number} · {chapter.session}: {total:.2f} s to the first step{f' ({told})' if told else ''}"


def newest_saves(story: Story, most: int) -> list[Save]:
    """The saves of all sessions, the newest first."""
    saves = [save for chapter in story.sessions for save in chapter.saves]
    return saves[: -most - 1 : -1]


def save_row(save: Save) -> tuple[str, ...]:
    """One save, as `SAVE_HEAD` says."""
    return (
        save.checkpoint,
        utc_time(save.at),
        plain(save.reason, limit=40),
        size_text(save.bytes),
        "?" if save.blocked is None else f"{save.blocked * 1000:.0f} ms",
        plain(save.rung or "?", limit=20),
        "" if save.kept else "deleted since",
    )


def events(story: Story, most: int) -> list[tuple[str, str]]:
    """The last sentences of all sessions, with their times, the newest first."""
    told = [each for chapter in story.sessions for each in _told(chapter)]
    return [(utc_time(each.at), plain(each.text, limit=300)) for each in told[: -most - 1 : -1]]


def left_out(story: Story, most: int = 8) -> Iterator[str]:
    """What could not be read, or was not, in sentences."""
    if story.left_out:
        yield (
            f"{story.left_out} parts of the journal were not read, there being so many: the beginning and the end of "
            "each session were, as far as they go."
        )
    for trouble in story.troubles[:most]:
        yield f"Could not be read, and is left out: {plain(trouble)}"
    if len(story.troubles) > most:
        yield f"… and {len(story.troubles) - most} more; `colabkeep verify` names them all."


_MOST_PARTS = 12
_PARTS = {
    "import": "importing the framework",
    "check": "looking at the machine",
    "storage": "opening the storage",
    "find": "finding the run",
    "read": "reading and hashing the checkpoint",
    "restore": "restoring",
    "ready": "making ready",
    "loader": "the first batch",
    "step": "the first step",
}


def _twice(story: Story) -> str:
    total = story.totals
    least, at_most = duration_text(total.lost_at_least), duration_text(total.lost_at_most)
    if total.lost_at_most == 0:
        return "Nothing was trained twice."
    if total.lost_at_least == total.lost_at_most:
        return f"Trained twice: {_count(total.redone_steps)}, {least}."
    return f"Trained twice: {_count(total.redone_steps)} or more, between {least} and {at_most}."


def _machine(chapter: Chapter) -> str:
    counted = Counter(chapter.accelerators[:16])
    cards = [f"{name} x{count}" if count > 1 else name for name, count in counted.items()]
    return plain(", ".join(filter(None, (" ".join((chapter.platform, chapter.kind)).strip(), *cards))) or "?", limit=80)


def _steps(chapter: Chapter) -> str:
    if chapter.reached is None and chapter.resumed_at is None:
        return "?"
    begin = "?" if chapter.resumed_at is None else str(chapter.resumed_at)
    end = "?" if chapter.reached is None else str(max(chapter.reached, chapter.resumed_at or 0))
    return f"{begin} to {end}{'' if chapter.stopped else ' or more'}"


def _end(chapter: Chapter, *, last: bool) -> str:
    if chapter.stopped is not None:
        return plain(chapter.stopped, limit=40) + (f": {plain(chapter.error, limit=80)}" if chapter.error else "")
    seen = utc_time(chapter.last_seen)
    return f"still on, or lost after {seen}" if last else f"no goodbye, lost after {seen}"


def _again(redone: Redone | None) -> str:
    if redone is None:
        return ""
    if redone.exact:
        return f"{_count(redone.steps)}, {duration_text(redone.seconds)}" if redone.steps else "nothing"
    at_most = "" if redone.at_most is None else f", at most {duration_text(redone.at_most)}"
    return f"{_count(redone.steps)} or more{at_most}"


def _count(steps: int) -> str:
    return "1 step" if steps == 1 else f"{steps} steps"


def _told(chapter: Chapter) -> Iterator[Told]:
    if chapter.stopped is None and not chapter.noted:
        yield Told(at=chapter.began, kind="Lost", text=f"session {chapter.session} left no journal: it never saved")
    yield from chapter.told
