"""`colabkeep.report()`: what became of a run, drawn from what lies in the storage, as text, as HTML, and as a
record for machines.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from html import escape as html_escape
from typing import Any

from colabkeep.checkpoint.inspect import run_names
from colabkeep.core.arguments import door, duration_text
from colabkeep.core.durability import has_arrived
from colabkeep.core.errors import CheckpointNotFound, UsageError
from colabkeep.core.system import SystemClock
from colabkeep.session.history import Message, RepeatedSteps, RunHistory, Save, SessionHistory, read_history
from colabkeep.session.metrics import plain_points
from colabkeep.session.wiring import find_store
from colabkeep.stores import Storage
from colabkeep.stores.base import Store
from colabkeep.ui.drawing import (
    BLUE,
    GREEN,
    PURPLE,
    RED,
    Mark,
    Markup,
    badge,
    chip,
    curve,
    details,
    escape,
    frame,
    history_figure,
    items,
    join,
    paragraph,
    table,
)
from colabkeep.ui.records import durability_record
from colabkeep.ui.text import Record, aligned, plain, size_text, utc_time

__all__ = [
    "SAVE_HEAD",
    "SESSION_HEAD",
    "RunReport",
    "events",
    "history_html",
    "history_lines",
    "history_record",
    "left_out",
    "marks_of",
    "newest_saves",
    "report",
    "report_on",
    "save_row",
    "sentence",
    "session_lines",
    "session_row",
    "starts",
    "state",
]

SESSION_HEAD = ("session", "began", "for", "machine", "steps", "end", "trained again")
SAVE_HEAD = ("checkpoint", "saved", "why", "size", "waited", "rung", "")


def state(run_history: RunHistory) -> str:
    """In a word, how the run stands: "finished", "failed", "stopped", "not finite" (the loss), or "no goodbye"."""
    reason = run_history.sessions[-1].stopped if run_history.sessions else None
    if run_history.nan_since is not None and reason != "error":
        return "not finite"
    if reason is None:
        return "no goodbye"
    return "finished" if reason in ("finished", "max_steps") else "failed" if reason == "error" else "stopped"


def sentence(run_history: RunHistory) -> str:
    """How far it came, in how long, and what was trained twice."""
    total = run_history.totals
    sessions = "1 session" if total.sessions == 1 else f"{total.sessions} sessions"
    came = f"Step {total.steps} after {duration_text(total.trained)} of training, in {sessions}"
    over = f" over {duration_text(total.wall)} ({duration_text(total.gaps)} of that without a machine)"
    broken = (
        "" if run_history.nan_since is None else f" The loss is not a finite number since step {run_history.nan_since}."
    )
    return f"{came}{over if total.sessions > 1 else ''}. {_twice(run_history)}{broken}"


def session_row(session_history: SessionHistory, *, last: bool) -> tuple[str, ...]:
    """One session, as `SESSION_HEAD` says. `last`: no other came after it."""
    length = None
    if session_history.began is not None and session_history.last_seen is not None:
        length = duration_text(max(0.0, session_history.last_seen - session_history.began))
    number = "?" if session_history.number is None else str(session_history.number)
    return (
        f"{number} · {session_history.session}",
        utc_time(session_history.began),
        length or "?",
        _machine(session_history),
        _steps(session_history),
        _end(session_history, last=last),
        _again(session_history.redone),
    )


def starts(run_history: RunHistory, most: int) -> Iterator[str]:
    """How long the last sessions took to their first step, and what took how long; the newest first."""
    timed = [session_history for session_history in run_history.sessions if session_history.start]
    for session_history in timed[: -most - 1 : -1]:
        parts = [
            (_PARTS.get(name, plain(name, limit=20)), seconds) for name, seconds in session_history.start[:_MOST_PARTS]
        ]
        shown = [(name, seconds) for name, seconds in parts if seconds >= 0.005]
        total = sum(seconds for _, seconds in session_history.start)
        rest = total - sum(seconds for _, seconds in shown)
        if shown and rest >= 0.005:
            shown.append(("the rest", rest))
        told = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in shown)
        number = "?" if session_history.number is None else str(session_history.number)
        yield f"{number} · {session_history.session}: {total:.2f} s to the first step{f' ({told})' if told else ''}"


def newest_saves(run_history: RunHistory, most: int) -> list[Save]:
    """The saves of all sessions, the newest first."""
    saves = [save for session_history in run_history.sessions for save in session_history.saves]
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


def events(run_history: RunHistory, most: int) -> list[tuple[str, str]]:
    """The last sentences of all sessions, with their times, the newest first."""
    told = [each for session_history in run_history.sessions for each in _told(session_history)]
    return [(utc_time(each.at), plain(each.text, limit=300)) for each in told[: -most - 1 : -1]]


def left_out(run_history: RunHistory, most: int = 8) -> Iterator[str]:
    """What could not be read, or was not, in sentences."""
    if run_history.left_out:
        yield (
            f"{run_history.left_out} parts of the journal were not read, there being so many: the beginning and the "
            "end of each session were, as far as they go."
        )
    for trouble in run_history.troubles[:most]:
        yield f"Could not be read, and is left out: {plain(trouble)}"
    if len(run_history.troubles) > most:
        yield f"… and {len(run_history.troubles) - most} more; `colabkeep verify` names them all."


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


def _twice(run_history: RunHistory) -> str:
    total = run_history.totals
    least, at_most = duration_text(total.lost_at_least), duration_text(total.lost_at_most)
    if total.lost_at_most == 0:
        return "Nothing was trained twice."
    if total.lost_at_least == total.lost_at_most:
        return f"Trained twice: {_count(total.redone_steps)}, {least}."
    return f"Trained twice: {_count(total.redone_steps)} or more, between {least} and {at_most}."


def _machine(session_history: SessionHistory) -> str:
    counted = Counter(session_history.accelerators[:16])
    cards = [f"{name} x{count}" if count > 1 else name for name, count in counted.items()]
    return plain(
        ", ".join(filter(None, (" ".join((session_history.platform, session_history.kind)).strip(), *cards))) or "?",
        limit=80,
    )


def _steps(session_history: SessionHistory) -> str:
    if session_history.reached is None and session_history.resumed_at is None:
        return "?"
    begin = "?" if session_history.resumed_at is None else str(session_history.resumed_at)
    end = "?" if session_history.reached is None else str(max(session_history.reached, session_history.resumed_at or 0))
    return f"{begin} to {end}{'' if session_history.stopped else ' or more'}"


def _end(session_history: SessionHistory, *, last: bool) -> str:
    if session_history.stopped is not None:
        return plain(session_history.stopped, limit=40) + (
            f": {plain(session_history.error, limit=80)}" if session_history.error else ""
        )
    seen = utc_time(session_history.last_seen)
    return f"still on, or lost after {seen}" if last else f"no goodbye, lost after {seen}"


def _again(redone: RepeatedSteps | None) -> str:
    if redone is None:
        return ""
    if redone.exact:
        return f"{_count(redone.steps)}, {duration_text(redone.seconds)}" if redone.steps else "nothing"
    at_most = "" if redone.at_most is None else f", at most {duration_text(redone.at_most)}"
    return f"{_count(redone.steps)} or more{at_most}"


def _count(steps: int) -> str:
    return "1 step" if steps == 1 else f"{steps} steps"


def _told(session_history: SessionHistory) -> Iterator[Message]:
    if session_history.stopped is None and not session_history.noted:
        yield Message(
            at=session_history.began,
            kind="Lost",
            text=f"session {session_history.session} left no journal: it never saved",
        )
    yield from session_history.told


_LINES_OF_SAVES = 20
_LINES_OF_EVENTS = 20
_LINES_OF_STARTS = 4


def history_lines(run_history: RunHistory) -> Iterator[str]:
    """The whole of it: how it stands, the sessions, the last saves and events, and what could not be read."""
    since, where = utc_time(run_history.created), plain(run_history.storage)
    yield f"{plain(run_history.run)}: {state(run_history)}. Since {since}, in {where}"
    yield f"  {sentence(run_history)}"
    if run_history.durability is not None:
        yield f"  {plain(run_history.durability.sentence, limit=2000)}"
    yield from ("", "Sessions, the first one first", *session_lines(run_history))
    began = [f"  {line}" for line in starts(run_history, _LINES_OF_STARTS)]
    if began:
        yield from ("", "From the start to the first step, the newest first", *began)
    saves = newest_saves(run_history, _LINES_OF_SAVES)
    if saves:
        count = run_history.totals.saves
        yield from ("", "Saves, the newest first" + (f" ({len(saves)} of {count})" if count > len(saves) else ""))
        yield from aligned([SAVE_HEAD, *map(save_row, saves)], right=(3, 4))
    told = events(run_history, _LINES_OF_EVENTS)
    if told:
        yield from ("", "What happened, the latest first", *aligned(told))
    for line in left_out(run_history):
        yield from ("", line)


def session_lines(run_history: RunHistory, begin: int = 0, end: int | None = None) -> Iterator[str]:
    """Some of the sessions as a table, a line for each."""
    session_histories = list(enumerate(run_history.sessions))[begin:end]
    rows = [
        session_row(session_history, last=index == len(run_history.sessions) - 1)
        for index, session_history in session_histories
    ]
    return aligned([SESSION_HEAD, *rows])


def history_record(run_history: RunHistory, as_of: float) -> Record:
    """Everything, JSON-able: times in seconds since 1970 (UTC), lengths in seconds, sizes in bytes; None is what is
    not known, and a loss that is no finite number is a text."""
    return {
        "name": run_history.run,
        "storage": run_history.storage,
        "created": run_history.created,
        "as_of": as_of,
        "totals": asdict(run_history.totals),
        "sessions": [asdict(session_history) for session_history in run_history.sessions],
        "losses": plain_points(run_history.points),
        "resumed_at": list(run_history.resumed_at),
        "not_finite_since": run_history.nan_since,
        "durability": None if run_history.durability is None else durability_record(run_history.durability),
        "troubles": list(run_history.troubles),
        "left_out": run_history.left_out,
    }


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


def history_html(run_history: RunHistory, as_of: float) -> Markup:
    """The report as a frame. `as_of`: when the story was read, in seconds since 1970 (UTC)."""
    symbol, word, colour = _CHIPS[state(run_history)]
    saves = newest_saves(run_history, _SAVES)
    parts = [
        chip(symbol, word, colour),
        badge(run_history.run),
        badge(run_history.storage),
        paragraph(sentence(run_history), strong=True),
        "" if run_history.durability is None else paragraph(run_history.durability.sentence),
        curve(run_history.points, marks_of(run_history)) if run_history.points else "",
        *_sessions(run_history),
        _wide(table(f"Saves, the newest of {run_history.totals.saves}", SAVE_HEAD, map(save_row, saves), right=(3, 4)))
        if saves
        else "",
        _folded(
            f"Events ({min(_EVENTS, len(events(run_history, _EVENTS)))})",
            (": ".join(e) for e in events(run_history, _EVENTS)),
        ),
        _folded("From the start to the first step", starts(run_history, _STARTS)),
        _folded("What could not be read", left_out(run_history)),
        paragraph(f"As of {utc_time(as_of)}. It does not change by itself: run colabkeep.report() again.", quiet=True),
    ]
    return frame(join(*parts), colour)


def marks_of(run_history: RunHistory) -> list[Mark]:
    """Where sessions went on, and the checkpoints that are there, known to last or not."""
    marks = [Mark(step, "resumed", f"resumed at {step}") for step in run_history.resumed_at]
    if run_history.nan_since is not None:
        marks.append(Mark(run_history.nan_since, "broken", f"not finite at {run_history.nan_since}"))
    place = None if run_history.durability is None else run_history.durability.place
    for save in newest_saves(run_history, run_history.totals.saves):
        if save.kept:
            arrived = save.rung is not None and has_arrived(save.rung, "confirmed" if place is None else place.top)
            durable = arrived and (place is None or place.lasts)
            kind = "durable" if durable else "local"
            marks.append(Mark(save.step, "durable" if durable else "local", f"checkpoint {save.step} {kind}"))
    return marks


def _sessions(run_history: RunHistory) -> Iterable[Markup]:
    count = len(run_history.sessions)
    begin = max(0, count - _ROWS)
    if begin:
        lines = "\n".join(html_escape(line) for line in session_lines(run_history, 0, begin))
        yield details(f"The first {begin} sessions", _wide(Markup(f'<pre style="font-size:11px">{lines}</pre>')))
    rows = [session_row(run_history.sessions[index], last=index == count - 1) for index in range(begin, count)]
    yield _wide(table("Sessions, the first one first", SESSION_HEAD, rows))


def _folded(summary: str, texts: Iterable[str]) -> Markup | str:
    found = list(texts)
    return details(summary, items(found)) if found else ""


def _wide(content: Markup) -> Markup:
    """What may be wider than the frame scrolls by itself."""
    return Markup(f'<div style="overflow-x:auto">{content}</div>')


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
    return RunReport(read_history(store, _the_only(store) if run is None else run), SystemClock().time())


class RunReport:
    """What `colabkeep.report()` returns. `run_history` holds the facts themselves; `as_of`: when they were read, in
    seconds since 1970 (UTC)."""

    def __init__(self, run_history: RunHistory, as_of: float) -> None:
        self.run_history = run_history
        self.as_of = as_of

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """The report as lines of text."""
        return history_lines(self.run_history)

    def to_dict(self) -> Record:
        """The report for programs: "name", "storage", "totals", "sessions" (the first one first, each with its
        "saves", "spells" and "told"), "losses" as [step, loss], "resumed_at", "durability", "troubles", "left_out"."""
        return history_record(self.run_history, self.as_of)

    def to_json(self) -> str:
        """`to_dict` as one line of strict JSON."""
        return json.dumps(self.to_dict(), allow_nan=False)

    def to_html(self) -> str:
        """The report as a page of its own."""
        title = escape(f"{self.run_history.run}: report", limit=200)
        return (
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>{self._repr_html_()}</html>\n'
        )

    def plot(self) -> Any:
        """The loss over all sessions, and how far each came in which hours: a matplotlib Figure.

        Raises:
            MissingDependency: matplotlib is not installed.
        """
        return history_figure(self.run_history)

    def _repr_html_(self) -> str:
        return str(history_html(self.run_history, self.as_of))


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
