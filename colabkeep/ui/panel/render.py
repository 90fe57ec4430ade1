"""A state in sentences, as one line that a program can take apart, and as HTML below 10 kB that keeps its height."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timezone

from colabkeep.core.arguments import duration_text
from colabkeep.ui import drawing
from colabkeep.ui.drawing import (
    CurveWords,
    Mark,
    Markup,
    badge,
    bar,
    chip,
    curve,
    details,
    escape,
    frame,
    items,
    join,
    paragraph,
    table,
)
from colabkeep.ui.panel.messages import SYMBOLS, words_of
from colabkeep.ui.panel.model import how_it_saves
from colabkeep.ui.panel.state import FINAL, PanelState, Saved
from colabkeep.ui.text import plain, size_text

__all__ = [
    "COLOURS",
    "chip_of",
    "how_far",
    "line",
    "render",
    "safety",
    "says",
    "session_time",
    "utc",
]


def chip_of(state: PanelState) -> tuple[str, str]:
    """Symbol and word of the state that the panel is in."""
    name = "unsaved" if state.phase == "degraded" and state.failing else state.phase
    words = words_of(state.language)
    return SYMBOLS[name], words[f"chip.{name}"].format(word=_nan(state, words))


def says(state: PanelState) -> str:
    """The plain sentences of the state."""
    return _SAYINGS[state.phase](state, words_of(state.language))


def how_far(state: PanelState) -> str:
    """ "71 % · epoch 8 of 10 · step 712 of 1000 · 3.1 steps/s · about 2 min to go", as far as it is known."""
    words, share, total, speed, left = (
        words_of(state.language),
        state.share,
        state.total_steps,
        state.steps_per_second,
        state.seconds_left,
    )
    at = ""
    if state.max_epochs is not None and state.phase not in FINAL:
        epoch = min(state.progress.epoch + 1, state.max_epochs)
        at = words["at.epoch"].format(epoch=epoch, epochs=state.max_epochs)
    at += words["at.step" if total is None else "at.steps"].format(step=state.progress.step, total=total)
    final = state.phase in FINAL
    return words["progress"].format(
        share="?" if share is None else f"{int(share * 100)} %",
        at=at,
        speed="" if final or speed is None else words["speed"].format(speed=f"{speed:.3g}"),
        left="" if final or left is None else words["left"].format(left=duration_text(left)),
    )


def safety(state: PanelState) -> str:
    """Up to where the run is safe, or saved where nobody knows whether that lasts; and what would be lost now."""
    known = "safe" if state.lasts else "saved"
    name = known if state.safe_step is not None else "safe.asked" if state.asking else "safe.none"
    return words_of(state.language)[name].format(
        step=state.safe_step, steps=state.lost_steps, seconds=duration_text(state.lost_seconds)
    )


def session_time(state: PanelState) -> str:
    """How long the session lasts at most, and where that figure is from; "" when it has ended."""
    words, left = words_of(state.language), state.session_left
    if state.phase in FINAL:
        return ""
    if left is None:
        return words["session.unknown"]
    return words["session"].format(left=duration_text(left), source=state.ends_source).strip()


def utc(seconds: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Seconds since 1970 as a time in UTC; "?" for a year that the calendar does not have."""
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).strftime(form)
    except (ValueError, OverflowError, OSError):
        return "?"


def _resumed(state: PanelState, words: Mapping[str, str]) -> str:
    how = words["how.inexact"].format(reason=state.inexact) if state.inexact else words["how.exact"]
    step = 0 if state.restored is None else state.restored.step
    return words["says.resumed"].format(step=step, age=duration_text(state.restored_age), how=how)


def _saving(state: PanelState, words: Mapping[str, str]) -> str:
    return words["says.saving"].format(step=state.saving, back=_back(state, words))


def _uploading(state: PanelState, words: Mapping[str, str]) -> str:
    waiting, speed = "", state.bytes_per_second
    if state.waiting_bytes and speed:
        waiting = words["waiting"].format(size=size_text(state.waiting_bytes), speed=size_text(int(speed)))
    step = 0 if state.newest_own is None else state.newest_own.step
    return words["says.uploading"].format(step=step, place=_place(state), waiting=waiting, back=_back(state, words))


def _durable(state: PanelState, words: Mapping[str, str]) -> str:
    own = state.newest_own
    if own is None:
        return words["kept.none"]
    rung = "sent" if own.rung == "local" and state.place is not None and state.place.persists else own.rung
    return words["says.durable" if state.lasts else "says.saved"].format(
        step=own.step, proof=words[f"proof.{rung}"].format(place=_place(state))
    )


def _degraded(state: PanelState, words: Mapping[str, str]) -> str:
    detail = state.failing or state.degraded
    if not detail:
        return words["says.temporary"].format(place=_place(state))
    return words["says.degraded"].format(since=utc(state.trouble_since, "%H:%M"), detail=detail)


def _ending(state: PanelState, words: Mapping[str, str]) -> str:
    then = words["then.ends" if state.ends_by_itself else "then.goes-on"]
    return words["says.ending"].format(left=duration_text(state.session_left or 0.0), then=then)


def _interrupted(state: PanelState, words: Mapping[str, str]) -> str:
    reason = words.get(f"reason.{state.stopped}", state.stopped)
    return words["says.interrupted"].format(step=state.progress.step, reason=reason, kept=_kept(state, words))


def _finished(state: PanelState, words: Mapping[str, str]) -> str:
    if state.complete_since is not None:
        since = utc(state.complete_since, "%Y-%m-%d %H:%M")
        return words["says.complete"].format(since=since, step=state.progress.step, kept=_kept(state, words))
    return words["says.finished"].format(
        step=state.progress.step,
        seconds=duration_text(state.progress.seconds),
        sessions=state.sessions,
        kept=_kept(state, words),
    )


def _broken(state: PanelState, words: Mapping[str, str]) -> str:
    step, word = state.progress.step, _nan(state, words)
    back = words["back.good" if state.good else "back.no-good"].format(checkpoint=state.good)
    return words[f"says.{state.phase}"].format(step=step, since=state.nan_since, word=word, back=back)


def _nan(state: PanelState, words: Mapping[str, str]) -> str:
    return words["loss.nan" if state.nan_word == "nan" else "loss.inf"]


def _failed(state: PanelState, words: Mapping[str, str]) -> str:
    error = state.error or words["error.unknown"]
    return words["says.failed"].format(error=error, step=state.progress.step, kept=_kept(state, words))


_SAYINGS: Mapping[str, Callable[[PanelState, Mapping[str, str]], str]] = {
    "starting": lambda _, words: words["says.starting"],
    "fresh": lambda state, words: words["says.fresh"].format(storage=state.storage),
    "resumed": _resumed,
    "saving": _saving,
    "uploading": _uploading,
    "saved": _durable,
    "durable": _durable,
    "degraded": _degraded,
    "ending": _ending,
    "nan": _broken,
    "interrupted": _interrupted,
    "finished": _finished,
    "diverged": _broken,
    "failed": _failed,
}


def _back(state: PanelState, words: Mapping[str, str]) -> str:
    if state.safe_step is None:
        return words["back.none"]
    return words["back" if state.lasts else "back.if"].format(step=state.safe_step, place=_place(state))


def _kept(state: PanelState, words: Mapping[str, str]) -> str:
    newest = next((saved for saved in state.saves if not saved.gone), None)
    if newest is None:
        return words["kept.none"]
    return words["kept"].format(step=newest.step, rung=words[f"rung.{newest.rung}"])


def _place(state: PanelState) -> str:
    return state.storage if state.place is None else state.place.url


def line(state: PanelState) -> str:
    """``[colabkeep 15:42:10] UPLOADING step 712/1000 71% loss 0.3706 safe 600 at-risk 112 steps (36 s) left 7 h 10 min
    (estimate) | The checkpoint of step 700 is on …``. The time is UTC, and the state's name English; what is not
    known is left out."""
    total = "" if state.total_steps is None else f"/{state.total_steps}"
    words = [f"[colabkeep {utc(state.now, '%H:%M:%S')}]", state.phase.upper(), f"step {state.progress.step}{total}"]
    if state.share is not None:
        words.append(f"{int(state.share * 100)}%")
    if state.loss is not None:
        words.append(f"loss {state.loss:.4g}")
    none = "unknown" if state.asking else "none"
    known = "safe" if state.lasts or state.safe_step is None else "saved"  # where nobody knows whether that lasts
    words.append(f"{known} {none if state.safe_step is None else state.safe_step}")
    words.append(f"at-risk {state.lost_steps} steps ({duration_text(state.lost_seconds)})")
    if state.session_left is not None and state.phase not in FINAL:
        words.append(f"left {duration_text(state.session_left)} (estimate)")
    return f"{' '.join(words)} | {plain(' '.join(says(state).split()))}"


COLOURS: Mapping[str, drawing.Colour] = {
    "starting": drawing.BLUE,
    "fresh": drawing.BLUE,
    "resumed": drawing.BLUE,
    "saving": drawing.AMBER,
    "uploading": drawing.AMBER,
    "saved": drawing.GREEN,
    "durable": drawing.GREEN,
    "degraded": drawing.ORANGE,
    "ending": drawing.ORANGE,
    "nan": drawing.RED,
    "interrupted": drawing.PURPLE,
    "finished": drawing.GREEN,
    "diverged": drawing.RED,
    "failed": drawing.RED,
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
