"""`colabkeep.report()`: the history of a run, drawn from what lies in the storage, as text, as HTML, and as a record
for machines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from html import escape as html_escape
from typing import Any

from colabkeep.checkpoint.inspect import run_names
from colabkeep.checkpoint.journal import Line
from colabkeep.core.arguments import duration_text, public
from colabkeep.core.errors import CheckpointNotFound, UsageError
from colabkeep.core.events import has_arrived
from colabkeep.core.language import said
from colabkeep.core.system import SystemClock
from colabkeep.session.history import Message, RepeatedSteps, RunHistory, Save, SessionHistory, read_history
from colabkeep.session.open import asked_for, find_store
from colabkeep.session.state import plain_points
from colabkeep.stores import Storage
from colabkeep.stores.base import Store
from colabkeep.ui import curve, figures
from colabkeep.ui import drawing as draw
from colabkeep.ui.drawing import BLUE, Colour, Markup
from colabkeep.ui.messages import message_of
from colabkeep.ui.panel.render import STATES, state_chip
from colabkeep.ui.panel.state import end_of
from colabkeep.ui.records import durability_record
from colabkeep.ui.text import Record, aligned, plain, size_text, utc_time


@public()
def report(run_name: str | None = None, *, storage: Storage = "auto") -> RunReport:
    """Show the whole history of a run over all its sessions: machines, gaps, what was lost, saves, the loss curve.

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
        return report_on(store, run_name, asked_for(storage))
    finally:
        if store is not storage:
            store.close()


def report_on(store: Store, run: str | None, asked: str = "") -> RunReport:
    """The report on a run in a store, whose place was `asked` for by ``storage=…``; raises as `report`."""
    return RunReport(read_history(store, _the_only(store, asked) if run is None else run, _tell), SystemClock().time())


def _the_only(store: Store, asked: str) -> str:
    names = run_names(store)
    if not names:
        raise CheckpointNotFound(
            problem=f"There is no run in {store.url} yet.",
            remedy="Is that the right place? Name another with storage=… (--storage).",
        )
    if len(names) > 1:
        raise UsageError(
            problem=f"There are {len(names)} runs in {store.url}: {', '.join(names)}.",
            remedy=f"Say which one: colabkeep.report({names[0]!r}{asked and f', storage={asked}'}), or "
            f"`colabkeep report {names[0]}{asked and f' --storage {asked}'}`.",
        )
    return names[0]


class RunReport(figures.Plotted):
    """What `colabkeep.report()` returns. `run_history` holds the facts themselves; `as_of`: when they were read, in
    seconds since 1970 (UTC)."""

    def __init__(self, run_history: RunHistory, as_of: float) -> None:
        self.run_history = run_history
        self.as_of = as_of
        self.title = f"the report on {plain(run_history.run)}"

    def lines(self) -> Iterator[str]:
        """The report as lines of text."""
        run = self.run_history
        word = said(STATE_TEXTS[state_of(run)] if state_of(run) or not run.folder else _OPEN_FOLDER)
        yield f"{plain(run.run)}: {word}. Since {utc_time(run.created)}, in {plain(run.storage)}"
        yield f"  {_sentence(run)}"
        if run.durability is not None:
            yield f"  {plain(run.durability.sentence, limit=2000)}"
        yield from ("", "Sessions, the first one first", *aligned([_sessions_head(run), *_session_rows(run)]))
        started = [f"  {line}" for line in _starts(run)]
        if started:
            yield from ("", "From the start to the first step, newest first", *started)
        saves = _newest_saves(run, _LINES)
        if saves:
            count = run.totals.saves
            what = "Versions" if run.folder else "Saves"
            yield from (
                "",
                f"{said(what)}, newest first" + (f" ({len(saves)} of {count})" if count > len(saves) else ""),
            )
            head, rows, right = _save_rows(run, saves)
            yield from aligned([head, *rows], right=right)
        events = _events(run)
        if events:
            yield from ("", "What happened, latest first", *aligned(events))
        for line in _left_out(run):
            yield from ("", line)

    def to_dict(self) -> Record:
        """The report for programs: "name", "storage", "totals", "sessions" (the first one first, each with its "saves",
        "outages" and "told"), "losses" as [step, loss], "resumed_at", "durability", "troubles", "left_out". Times are
        in seconds since 1970 (UTC), lengths in seconds, sizes in bytes; None is what is not known, and a loss that is
        no finite number is a text."""
        run = self.run_history
        return {
            "name": run.run,
            "storage": run.storage,
            "created": run.created,
            "as_of": self.as_of,
            "totals": asdict(run.totals),
            "sessions": [asdict(session) for session in run.sessions],
            "losses": plain_points(run.points),
            "resumed_at": list(run.resumed_at),
            "not_finite_since": run.nan_since,
            "durability": None if run.durability is None else durability_record(run.durability),
            "troubles": list(run.troubles),
            "left_out": run.left_out,
            "folder": run.folder,
        }

    def plot(self) -> Any:
        """The loss over all sessions and what was measured, and how far each session came in which hours: a matplotlib
        Figure.

        Raises:
            MissingDependency: matplotlib is not installed.
        """
        run = self.run_history
        curves = figures.Curves(run=run.run, points=run.points, logged=run.logged, resumed_at=run.resumed_at)
        shown = figures.plots([curves])
        figure = figures.drawn(run.run, shown, more=1)
        hours = figure.add_subplot(len(shown) + 1, 1, len(shown) + 1)
        begin = min((session.began for session in run.sessions if session.began is not None), default=0.0)
        for session in run.sessions:
            if session.began is not None and session.last_seen is not None and session.reached is not None:
                times = [(time - begin) / 3600.0 for time in (session.began, session.last_seen)]
                marker = "x" if session.stopped is None else "o"
                hours.plot(times, [session.resumed_at or 0, session.reached], marker=marker, markevery=[1])
        unit = "version" if run.folder else "step"
        hours.set(xlabel="hours since the first session began (x: ended unexpectedly)", ylabel=unit)
        return figure

    def _repr_html_(self) -> str:
        run = self.run_history
        shown = state_of(run)
        colour: Colour = BLUE if shown is None else STATES[shown][1]
        events = [": ".join(each) for each in _events(run)]
        return draw.frame(
            draw.join(
                draw.chip("○", said(_OPEN_FOLDER if run.folder else STATE_TEXTS[None]).upper(), BLUE)
                if shown is None
                else state_chip(shown),
                draw.badge(run.run),
                draw.badge(run.storage),
                draw.paragraph(_sentence(run), strong=True),
                "" if run.durability is None else draw.paragraph(run.durability.sentence),
                *_curves(run),
                *_session_tables(run),
                _save_table(run),
                _folded(f"Events ({len(events)})", events),
                _folded("From the start to the first step", _starts(run)),
                _folded("What could not be read", _left_out(run)),
                draw.paragraph(
                    f"As of {utc_time(self.as_of)}. It is not live: make the report again for the rest.",
                    quiet=True,
                ),
            ),
            colour,
        )


_LINES = 20  # saves and events that are listed as text
# Saves and sessions in a table with styles; earlier sessions are lines of text, a fifth as long.
_SAVED, _ROWS = 8, 12
_STARTS, _PARTS_SHOWN, _TROUBLES = 4, 12, 8
_SESSIONS = ("session", "began", "duration", "machine", "steps", "end", "repeated steps")
_SAVES = ("checkpoint", "saved", "why", "size", "training paused", "durability", "")
_VERSIONS = ("version", "made", "why", "size", "new", "durability", "")
_OPEN_FOLDER = "still kept, or ended unexpectedly"
STATE_TEXTS = {
    "finished": "finished",
    "failed": "failed",
    "interrupted": "stopped",
    "diverged": "ended with a loss that is not finite",
    "nan": "the loss is not finite",
    None: "still training, or ended unexpectedly",
}
# Events that the table of sessions shows, or that are of no interest afterwards.
_ELSEWHERE = ("AlreadyComplete", "CatchingUp", "EpochDone", "MachineChecked", "Restored", "RunStarted", "RunStopped")
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


def state_of(run: RunHistory) -> str | None:
    """How the last session ended, by the name of the panel's state; None where no end is recorded."""
    reason = run.sessions[-1].stopped if run.sessions else None
    if reason is None:
        return None if run.nan_since is None else "nan"
    return end_of(reason, run.nan_since)


def _sentence(run: RunHistory) -> str:
    """How far it came, in how long, and what was repeated."""
    if run.folder:
        return _folder_sentence(run)
    total = run.totals
    over = "1 session"
    if total.sessions != 1:
        gaps = duration_text(total.gaps)
        over = f"{total.sessions} sessions over {duration_text(total.wall)} ({gaps} of that without a machine)"
    came = f"Step {total.steps} after {duration_text(total.trained)} of training, in {over}"
    least, at_most = duration_text(total.lost_at_least), duration_text(total.lost_at_most)
    repeated = f"Repeated: {_count(total.redone_steps)} or more, between {least} and {at_most}."
    if total.lost_at_most == 0:
        repeated = "No steps were repeated."
    elif total.lost_at_least == total.lost_at_most:
        repeated = f"Repeated: {_count(total.redone_steps)}, {least}."
    broken = "" if run.nan_since is None else f" The loss has not been a finite number since step {run.nan_since}."
    return f"{came}. {repeated}{broken}"


def _folder_sentence(run: RunHistory) -> str:
    """Of another program's folder: its versions, and how often something after a version was lost."""
    total = run.totals
    in_all = "1 session" if total.sessions == 1 else f"{total.sessions} sessions over {duration_text(total.wall)}"
    lost = sum(before.stopped is None for before in run.sessions[:-1])
    cut = "None of them was cut off" if not lost else f"{lost} of them cut off, and what was not kept yet was lost"
    versions = "1 version" if total.saves == 1 else f"{total.saves} versions"
    return f"{versions}, {size_text(total.written)} written, in {in_all}. {cut}."


def _session_rows(run: RunHistory) -> list[tuple[str, ...]]:
    last = len(run.sessions) - 1
    rows = [_session_row(session, last=number == last) for number, session in enumerate(run.sessions)]
    if not run.folder:
        return rows
    saved = {save.checkpoint: save.at for session in run.sessions for save in session.saves}
    before = (None, *run.sessions)
    return [
        (*(cell.replace("still training", "still kept") for cell in row[:-1]), _lost(session, earlier, saved))
        for row, session, earlier in zip(rows, run.sessions, before, strict=False)
    ]


def _lost(session: SessionHistory, before: SessionHistory | None, saved: Mapping[str, float | None]) -> str:
    """What a session of a folder found lost: what the program did after the version that came back."""
    if before is None:
        return ""
    if before.stopped is not None:
        return "nothing"
    if session.resumed_from is None:
        return "nothing: its files were there still" if session.resumed_at is None else "all that was not kept"
    at, age = saved.get(session.resumed_from), session.age
    if at is None and age is not None and session.began is not None:  # it was deleted since
        at = session.began - age
    since = "" if at is None else f"what came after {utc_time(at)}"
    return ", ".join(filter(None, (since, "" if age is None else f"at most {duration_text(age)}")))


def _sessions_head(run: RunHistory) -> tuple[str, ...]:
    return (*_SESSIONS[:4], "versions", "end", "lost before it") if run.folder else _SESSIONS


def _save_rows(
    run: RunHistory, saves: Sequence[Save]
) -> tuple[tuple[str, ...], list[tuple[str, ...]], tuple[int, ...]]:
    """The head and the rows of a table of saves, and which columns end together."""
    rows = list(map(_save_row, saves))
    if run.folder:  # nothing stands still for them
        new = ("?" if save.written is None else size_text(save.written) for save in saves)
        rows = [(*row[:4], size, *row[5:]) for row, size in zip(rows, new, strict=True)]
    return _VERSIONS if run.folder else _SAVES, rows, (3, 4)


def _session_row(session: SessionHistory, *, last: bool) -> tuple[str, ...]:
    length = "?"
    if session.began is not None and session.last_seen is not None:
        length = duration_text(max(0.0, session.last_seen - session.began))
    counted = Counter(session.accelerators[:16])
    cards = [f"{name} x{count}" if count > 1 else name for name, count in counted.items()]
    machine = ", ".join(filter(None, (" ".join((session.platform, session.kind)).strip(), *cards)))
    seen = utc_time(session.last_seen)
    end = f"still training, or ended unexpectedly after {seen}" if last else f"ended unexpectedly after {seen}"
    if session.stopped is not None:
        end = said(plain(session.stopped, limit=40)) + (f": {plain(session.error, limit=80)}" if session.error else "")
    return (
        _named(session),
        utc_time(session.began),
        length,
        plain(machine or "?", limit=80),
        _steps(session),
        end,
        _repeated(session.redone),
    )


def _named(session: SessionHistory) -> str:
    return f"{'?' if session.number is None else session.number} · {session.session}"


def _steps(session: SessionHistory) -> str:
    if session.reached is None and session.resumed_at is None:
        return "?"
    begin = "?" if session.resumed_at is None else str(session.resumed_at)
    end = "?" if session.reached is None else str(max(session.reached, session.resumed_at or 0))
    return f"{begin} to {end}{'' if session.stopped else ' or more'}"


def _repeated(redone: RepeatedSteps | None) -> str:
    if redone is None:
        return ""
    if redone.exact:
        return f"{_count(redone.steps)}, {duration_text(redone.seconds)}" if redone.steps else "none"
    at_most = "" if redone.at_most is None else f", at most {duration_text(redone.at_most)}"
    return f"{_count(redone.steps)} or more{at_most}"


def _count(steps: int) -> str:
    return "1 step" if steps == 1 else f"{steps} steps"


def _starts(run: RunHistory) -> Iterator[str]:
    """How long the last sessions took to their first step, and what took how long; the newest first."""
    timed = [session for session in run.sessions if session.start]
    for session in timed[: -_STARTS - 1 : -1]:
        parts = [
            (said(_PARTS.get(name, plain(name, limit=20))), seconds) for name, seconds in session.start[:_PARTS_SHOWN]
        ]
        shown = [(name, seconds) for name, seconds in parts if seconds >= 0.005]
        total = sum(seconds for _, seconds in session.start)
        remaining = total - sum(seconds for _, seconds in shown)
        if shown and remaining >= 0.005:
            shown.append(("remaining", remaining))
        listed = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in shown)
        yield f"{_named(session)}: {total:.2f} s to the first step{f' ({listed})' if listed else ''}"


def _newest_saves(run: RunHistory, most: int | None = None) -> list[Save]:
    """The saves of all sessions, the newest first."""
    return [save for session in run.sessions for save in session.saves][::-1][:most]


def _save_row(save: Save) -> tuple[str, ...]:
    return (
        save.checkpoint,
        utc_time(save.at),
        said(plain(save.reason, limit=40)),
        size_text(save.bytes),
        "?" if save.blocked is None else f"{save.blocked * 1000:.0f} ms",
        said(plain(save.level or "?", limit=20)),
        "" if save.kept else "deleted since",
    )


def _tell(line: Line, folder: bool) -> str | None:
    told = None if line.event in _ELSEWHERE else message_of(line, folder=folder)
    return None if told is None else said(told)


def _events(run: RunHistory) -> list[tuple[str, str]]:
    """The last sentences of all sessions, with their times, the newest first."""
    messages = [each for session in run.sessions for each in _messages(session)]
    return [(utc_time(each.at), plain(" ".join(each.text.split()), limit=300)) for each in messages[: -_LINES - 1 : -1]]


def _messages(session: SessionHistory) -> Sequence[Message]:
    if session.stopped is not None or session.noted:
        return session.told
    never = f"session {session.session} ended unexpectedly before its first save"
    return (Message(at=session.began, kind="Lost", text=never), *session.told)


def _left_out(run: RunHistory) -> Iterator[str]:
    """What could not be read, or was not, in sentences."""
    if run.left_out:
        yield (
            f"{run.left_out} parts of the journal were not read, because there are so many: the beginning and the end "
            "of each session were, as far as they go."
        )
    for trouble in run.troubles[:_TROUBLES]:
        yield f"Could not be read, and is left out: {plain(trouble)}"
    if len(run.troubles) > _TROUBLES:
        yield f"… and {len(run.troubles) - _TROUBLES} more; `colabkeep verify` names them all."


# -- HTML ----------------------------------------------------------------------------------------------


def _curves(run: RunHistory) -> Iterator[Markup]:
    if run.points:
        measured = curve.measured_in(run.logged, run.monitor, run.mode)
        yield curve.loss_curve(run.points, run.resumed_at, run.nan_since, _marked(run), measured=measured)
    yield curve.small_multiples(curve.grouped(figures.measured(run.logged)))


def _marked(run: RunHistory) -> Iterator[tuple[int, bool]]:
    """The checkpoints that are there: the step of each, and whether it is known to be safe."""
    place = None if run.durability is None else run.durability.place
    for save in _newest_saves(run):
        if save.kept:
            arrived = save.level is not None and has_arrived(save.level, "confirmed" if place is None else place.top)
            yield save.step, arrived and (place is None or place.lasts)


def _session_tables(run: RunHistory) -> Iterator[Markup]:
    rows = _session_rows(run)
    earlier = rows[:-_ROWS]
    if earlier:
        lines = "\n".join(html_escape(line) for line in aligned([_sessions_head(run), *earlier]))
        yield draw.details(
            f"The first {len(earlier)} sessions", draw.wide(f'<pre style="font-size:11px">{lines}</pre>')
        )
    yield draw.table("Sessions, the first one first", _sessions_head(run), rows[-_ROWS:])


def _save_table(run: RunHistory) -> Markup | str:
    head, rows, right = _save_rows(run, _newest_saves(run, _SAVED))
    what = "Versions" if run.folder else "Saves"
    return draw.table(f"{said(what)}, the newest of {run.totals.saves}", head, rows, right=right) if rows else ""


def _folded(summary: str, texts: Iterable[str]) -> Markup | str:
    found = list(texts)
    return draw.details(summary, draw.items(found)) if found else ""
