"""The texts of a state: its name, its sentence, how far, what would be lost, how long the session lasts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timezone

from colabkeep.faces.panel.state import FINAL, PanelState
from colabkeep.faces.panel.words import SYMBOLS, words_of
from colabkeep.faces.tables import size_text
from colabkeep.vocabulary.durations import duration_text

__all__ = ["chip_of", "how_far", "safety", "says", "session_time", "utc"]


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
