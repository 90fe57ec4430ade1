"""A panel's state in sentences, as one line that a program can take apart, and as HTML below 20 kB that keeps its
height; and the pieces of it that the report and the results of a training show too: the state, and the loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from colabkeep.core.arguments import duration_text
from colabkeep.core.events import Event
from colabkeep.core.language import said
from colabkeep.core.policies import cost_text
from colabkeep.ui import curve
from colabkeep.ui import drawing as draw
from colabkeep.ui.drawing import AMBER, BLUE, GREEN, ORANGE, PURPLE, RED, Colour, Markup
from colabkeep.ui.messages import REASONS, clause_as_sentence, sentence, way_back
from colabkeep.ui.panel.state import FINAL, PanelState, Phase
from colabkeep.ui.text import plain, size_text, utc_time

STATES: Mapping[str, tuple[str, Colour, str]] = {
    "starting": ("○", BLUE, "STARTING"),
    "fresh": ("○", BLUE, "TRAINING"),
    "resumed": ("↻", BLUE, "RESUMED"),
    "saving": ("✎", AMBER, "TRAINING · saving"),
    "uploading": ("↑", AMBER, "TRAINING · uploading"),
    "saved": ("✔", GREEN, "TRAINING · checkpoint saved"),
    "durable": ("✔", GREEN, "TRAINING · checkpoint saved"),
    "degraded": ("▲", ORANGE, "TRAINING · saved locally only"),
    "unsaved": ("▲", ORANGE, "TRAINING · NOT SAVED"),
    "ending": ("!", ORANGE, "SESSION ENDING SOON"),
    "nan": ("✖", RED, "LOSS IS {}"),
    "interrupted": ("■", PURPLE, "STOPPED"),
    "finished": ("✔", GREEN, "FINISHED"),
    "diverged": ("✖", RED, "ENDED WITH {}"),
    "failed": ("✖", RED, "FAILED"),
}
"""Symbol (one that basic fonts have), colour and words of each state. "unsaved": "degraded" where a save has failed."""

_OF_FOLDER = {  # of another program's folder
    "fresh": "KEEPING",
    "resumed": "PUT BACK",
    "saving": "KEEPING · making a version",
    "uploading": "KEEPING · uploading",
    "saved": "KEEPING · version kept",
    "durable": "KEEPING · version safe",
    "degraded": "KEEPING · on this machine only",
    "unsaved": "KEEPING · NO NEW VERSION",
}


def state_chip(name: str, *, loss: str = "", folder: bool = False) -> Markup:
    """The chip of a state. `loss`: what it is where it is not finite, as in `LossNotFinite.value`; "": not known."""
    symbol, colour, words = STATES[name]
    return draw.chip(symbol, said((_OF_FOLDER.get(name, words) if folder else words).format(_nan(loss))), colour)


# What the panel says first, before how far it is.
_URGENT = frozenset({"degraded", "ending", "nan", *FINAL})


# -- sentences -----------------------------------------------------------------------------------------


def says(state: PanelState) -> str:
    """The plain sentences of the state."""
    return (_FOLDER_SAYINGS if state.folder else _SAYINGS)[state.phase](state)


def _dots(parts: Iterable[str]) -> str:
    """What is there of them, each in the reader's language."""
    return " · ".join(said(part) for part in parts if part)


def folder_now(state: PanelState) -> str:
    """Of another program's folder: "/content/runs · version 7 · 2 file(s) have changed since, and wait: last.pt …"."""
    seen, changed, waits = state.seen, "", ""
    newest = next((saved for saved in state.saves if not saved.gone), None)
    if seen is not None and seen.changed:
        changed = f"{seen.changed} file(s) have changed since"
    elif seen is not None and newest is not None:
        changed = "nothing has changed since"
    if seen is not None and seen.waits:
        waits = said(f", and wait: {seen.waits}")
    at = "no version yet" if newest is None else f"version {newest.step}"
    return f"{_dots((state.started.keeps, at, changed))}{waits}"


def how_far(state: PanelState) -> str:
    """ "71 % · epoch 8 of 10 · step 712 of 1000 · 3.1 steps/s · 99 samples/s · trained for 4 min · about 2 min to go",
    as far as it is known."""
    share, total, final = state.share, state.total_steps, state.phase in FINAL
    progress, epochs = state.progress, None if final else state.max_epochs
    return _dots(
        (
            "?" if share is None else f"{int(share * 100)} %",
            "" if epochs is None else f"epoch {min(progress.epoch + 1, epochs)} of {epochs}",
            f"step {progress.step}" if total is None else f"step {progress.step} of {total}",
            *(() if final else _speed(state)),
            f"trained for {duration_text(progress.seconds)}" if progress.seconds else "",
            "" if final else _left(state),
        )
    )


def pace(state: PanelState) -> str:
    """ "3.1 steps/s · 99 samples/s · about 2 min to go", as far as it is known."""
    return _dots((*_speed(state), _left(state)))


def _speed(state: PanelState) -> Iterator[str]:
    if state.steps_per_second is not None:
        yield f"{_rate(state.steps_per_second)} steps/s"
    if state.samples_per_second is not None:
        yield f"{_rate(state.samples_per_second)} samples/s"
    if state.tokens_per_second is not None:
        yield f"{_rate(state.tokens_per_second)} tokens/s"


def _left(state: PanelState) -> str:
    return "" if state.seconds_left is None else f"about {duration_text(state.seconds_left)} to go"


def _rate(speed: float) -> str:
    return f"{speed:.3g}" if speed < 1000 else f"{speed:,.0f}"


def numbers(state: PanelState) -> str:
    """ "loss 0.3706 (last 0.4102) · learning rate 0.0003 · val_loss 0.41", as far as it is known."""
    found, final = list[str](), state.phase in FINAL
    if state.loss is not None:
        smooth = curve.smoothed(state.points)[-1][1] if len(state.points) >= _SMOOTH else math.nan
        shows_both = math.isfinite(smooth) and not final
        found.append(f"loss {smooth:.4g} (last {state.loss:.4g})" if shows_both else f"loss {state.loss:.4g}")
    if state.learning_rate is not None and not final:
        found.append(f"learning rate {state.learning_rate:.3g}")
    if state.grad_norm is not None and not final:
        found.append(f"gradient norm {state.grad_norm:.3g}")
    return " · ".join([*map(said, found), *_measured(state)])


def _measured(state: PanelState) -> list[str]:
    """ "val_loss 0.41": the latest value of each metric beside the loss, as many as there is room for."""
    names = [name for name in state.metrics if name not in curve.RATES and not curve.is_own(name)]
    if state.grad_norm is not None:  # the one of now is told already
        names = [name for name in names if name != "grad_norm"]
    return [f"{plain(name, limit=40)} {state.metrics[name]:.4g}" for name in names[:_NAMED]]


def machine_now(state: PanelState) -> str:
    """ "GPU: 93 % busy, 9.8 GB of 15 GB · RAM: 5.2 GB of 12.7 GB", and a sentence where the GPU waits for batches."""
    found, usage = list[str](), state.usage
    for index, card in enumerate(usage.cards):
        number = f" {index}" if len(usage.cards) > 1 else ""
        used, total = size_text(card.used), size_text(card.total)
        if card.busy is None:
            found.append(f"GPU{number}: {used} of {total}")
        else:
            found.append(f"GPU{number}: {100 * card.busy:.0f} % busy, {used} of {total}")
    if usage.memory is not None:
        used, total = map(size_text, usage.memory)
        found.append(f"RAM: {used} of {total}")
    told, busiest = _dots(found), max((card.busy or 0.0 for card in usage.cards), default=0.0)
    reading = state.reading
    if reading is None or reading < _WAITS or not state.machine.accelerators or busiest > _BUSY:
        return told
    waits = (
        f"The GPU waits: {100 * reading:.0f} % of the time goes into reading batches. A larger num_workers in the "
        "DataLoader may help."
    )
    return ". ".join(filter(None, (told, said(waits))))


def safety(state: PanelState) -> str:
    """Up to where the run is safe, or saved where nobody knows whether that lasts; and what would be lost now."""
    step = state.safe_step
    if state.folder:
        if step is None:
            return said("Checking which versions the storage has" if state.asking else "Nothing is safe yet")
        lost = f"would be lost now: {state.lost}" if state.lost else "nothing would be lost now"
        known = f"Safe: version {step}" if state.lasts else f"Kept: version {step}"
        return _dots((known, "" if state.lost is None else lost))
    if step is None and state.asking:
        return said("Checking which checkpoint the storage has")
    known = f"Safe up to step {step}" if state.lasts else f"Saved up to step {step}"
    unsaved = f"unsaved progress: {state.lost_steps} steps ({duration_text(state.lost_seconds)})"
    return _dots(("Nothing is safe yet" if step is None else known, unsaved))


def session_time(state: PanelState) -> str:
    """How long the session lasts at most, and where that figure is from; "" when it has ended."""
    left = state.session_left
    if state.phase in FINAL:
        return ""
    if left is None:
        return "Session time left: unknown."
    return f"Session time left: at most {duration_text(left)} (an estimate). {state.started.ends_source}".strip()


def how_it_saves(state: PanelState) -> str:
    """How often, where colabkeep chooses that; and what the last save cost."""
    chosen = "" if state.cadence is None else state.cadence.sentence()
    return f"{chosen[0].upper()}{chosen[1:]}. {last_save(state)}" if chosen else last_save(state)


def last_save(state: PanelState) -> str:
    """How long it paused training, and what made that longer, if anything did; "" before there is one."""
    saved = state.newest_own
    if saved is None:
        return ""
    return (
        f"The last save paused training for {cost_text(saved.stall)}{f' ({said(saved.copy)})' if saved.copy else ''}."
    )


def _resumed(state: PanelState) -> str:
    step, age = (0, 0.0) if state.restored is None else (state.restored.progress.step, state.restored.age)
    how = "Model, optimizer, random streams and position in the data are as they were."
    if state.inexact:
        how = f"Not bit for bit: {state.inexact}."
    return (
        f"Resumed from step {step}. It was saved {duration_text(age)} earlier, so at most that much training is "
        f"repeated. {how}"
    )


def _put_back(state: PanelState) -> str:
    step, age = (0, 0.0) if state.restored is None else (state.restored.progress.step, state.restored.age)
    return f"Version {step} was restored, byte for byte. It was made {duration_text(age)} earlier."


def _saving(state: PanelState) -> str:
    step = 0 if state.saving is None else state.saving.progress.step
    if state.folder:
        return f"Version {step} is being made; the program continues. {_back(state)}"
    return f"The state at step {step} is being saved; training continues. {_back(state)}"


def _uploading(state: PanelState) -> str:
    waiting, upload, back = "", state.upload, _back(state)
    if upload is not None and upload.waiting_bytes and upload.bytes_per_second:
        speed = size_text(int(upload.bytes_per_second))
        waiting = f" ({size_text(upload.waiting_bytes)} left at {speed}/s)"
    step, place = 0 if state.newest_own is None else state.newest_own.step, _place(state)
    if state.folder:
        return f"Version {step} is on this machine's disk and is being uploaded to {place}{waiting}. {back}"
    return f"The checkpoint of step {step} is on this machine's disk and is being uploaded to {place}{waiting}. {back}"


def _durable(state: PanelState) -> str:
    own, place = state.newest_own, _place(state)
    if own is None:
        return _kept(state)
    level = "sent" if own.level == "local" and state.place is not None and state.place.persists else own.level
    proof = f"{place} has received all of it"
    if level == "confirmed":
        proof = f"upload to {place} verified (checksum matches)"
    elif level == "unknown":
        proof = f"{place} has received all of it, but cannot confirm what it holds"
    elif level == "local":
        proof = f"kept only if {place} survives this machine; colabkeep cannot check that"
    if state.folder:
        return f"Version {own.step} is safe: {proof}." if state.lasts else f"Version {own.step} is kept: {proof}."
    if state.lasts:
        return f"The checkpoint of step {own.step} is safe: {proof}."
    return f"The checkpoint of step {own.step} is saved: {proof}."


def _degraded(state: PanelState) -> str:
    detail, place = state.failing or state.degraded, _place(state)
    if detail:
        return f"Since {utc_time(state.trouble_since, '%H:%M')} UTC: {detail}"
    if state.folder:
        return f"Versions go to {place}, which is lost with this machine: nothing of this folder would remain."
    return f"Checkpoints go to {place}, which is lost with this machine: nothing of this training would remain."


def _ending(state: PanelState) -> str:
    if state.deadline is None:
        return ""
    return _whole(replace(state.deadline, seconds=state.session_left or 0.0), state)


def _whole(event: Event, state: PanelState) -> str:
    """The sentence of an event, which says the state too."""
    return clause_as_sentence(sentence(event, folder=state.folder) or "?")


def _interrupted(state: PanelState) -> str:
    word = "" if state.stopped is None else state.stopped.reason
    reason = said(REASONS.get(word, word))
    if state.folder:
        return f"Stopped ({reason}). {_kept(state)} Run the same again to resume."
    return f"Stopped at step {state.progress.step} ({reason}). {_kept(state)} Run the same cell again to continue."


def _finished(state: PanelState) -> str:
    step, seconds = state.progress.step, duration_text(state.progress.seconds)
    if state.folder:
        return f"The program has ended. {_kept(state)}"
    if state.complete is not None:
        since = utc_time(state.complete.since, "%Y-%m-%d %H:%M")
        return f"Complete since {since} UTC, at step {step}: nothing was trained. {_kept(state)}"
    return f"Finished at step {step} after {seconds} of training in {state.sessions} session(s). {_kept(state)}"


def _broken(state: PanelState) -> str:
    if state.broken is None:
        return ""
    if state.phase == "nan":
        return _whole(state.broken, state)
    return (
        f"Ended at step {state.progress.step}. The loss has not been a finite number since step {state.nan_since} "
        f"({_nan(state.broken.value)}), so these weights are useless. {way_back(state.broken.checkpoint, ended=True)}"
    )


def _failed(state: PanelState) -> str:
    error = (state.stopped.error if state.stopped else "").rstrip(".") or "an unknown error"
    if state.folder:
        return f"The program failed: {error}. {_kept(state)} Run the same again to resume from there."
    return (
        f"Failed at step {state.progress.step}: {error}. {_kept(state)} Fix the cause and run the same cell again to "
        "continue."
    )


_SAYINGS: Mapping[Phase, Callable[[PanelState], str]] = {
    "starting": lambda _: "Looking for an earlier checkpoint of this run.",
    "fresh": lambda state: (
        f"This run has no checkpoint in {state.started.storage} yet: training starts from zero. Nothing is safe before "
        "the first save."
    ),
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
_FOLDER_SAYINGS: Mapping[Phase, Callable[[PanelState], str]] = {
    **_SAYINGS,
    "starting": lambda _: "Looking for an earlier version of this folder.",
    "fresh": lambda _: (
        "No version has been made in this session yet. The first one comes when files have changed and are at rest."
    ),
    "resumed": _put_back,
}


def _nan(value: str) -> str:
    return said("NaN" if value == "nan" else "INFINITE" if value else "NaN OR INFINITE")


def _back(state: PanelState) -> str:
    step, place, lasts = state.safe_step, _place(state), state.lasts
    if state.folder:
        if step is None:
            return "If this machine vanished now, nothing would come back."
        if lasts:
            return f"If this machine vanished now, version {step} would come back."
        return f"If this machine vanished now, version {step} would come back, if {place} survives."
    if step is None:
        return "If this machine vanished now, training would start again."
    if lasts:
        return f"If this machine vanished now, training would resume from step {step}."
    return f"If this machine vanished now, training would resume from step {step}, if {place} survives."


def _kept(state: PanelState) -> str:
    newest = next((saved for saved in state.saves if not saved.gone), None)
    if newest is None:
        return "There is no version." if state.folder else "There is no checkpoint."
    level = said(_LEVELS[newest.level])
    return (
        f"Newest version: {newest.step} ({level})."
        if state.folder
        else f"Newest checkpoint: step {newest.step} ({level})."
    )


_LEVELS = {
    "captured": "in memory",
    "local": "on this machine's disk",
    "unknown": "sent, cannot be confirmed",
    "sent": "sent",
    "confirmed": "upload verified",
}


def _place(state: PanelState) -> str:
    return state.started.storage if state.place is None else state.place.url


# -- one line ------------------------------------------------------------------------------------------


def moving_line(state: PanelState) -> str:
    """For a terminal, which cuts it where it ends: ``epoch 8/10 ━━━━━━━━━━━━━━────── 71% · loss 0.3706 · val_loss 0.41
    · 3.1 steps/s · 2 min to go · step 712/1000 · safe 600, unsaved 112 steps``. What is not known is left out."""
    if state.folder or state.phase in ("starting", *FINAL):
        return line(state)
    share, parts = state.share, [] if state.phase in _CALM else [state.phase.upper()]
    if share is not None:
        done = int(share * _BAR)
        parts.append(f"{_epoch(state)}{'━' * done}{'─' * (_BAR - done)} {int(share * 100)}%")
    return " · ".join([*parts, *_counted(state), _step(state), f"{_safe(state)}, {_unsaved(state)}"])


_BAR = 20  # columns
_CALM = ("fresh", "resumed", "saving", "uploading", "saved", "durable")  # nothing that has to be known


def line(state: PanelState) -> str:
    """``[colabkeep 15:42:10] UPLOADING epoch 8/10 step 712/1000 71% loss 0.3706 val_loss 0.41 3.1 steps/s 2 min to go
    safe 600 unsaved 112 steps (36 s) left 7 h 10 min (estimate) | The checkpoint of step 700 is on …``. The time is
    UTC, and the state's name English; what is not known is left out. Of another program's folder it has no step, and no
    loss."""
    name = state.phase.upper()
    if state.phase in ("fresh", "saved", "durable") or (state.folder and state.phase == "resumed"):
        name = "KEEPING" if state.folder else "TRAINING"
    elif state.phase == "interrupted":
        name = "STOPPED"
    parts = [f"[colabkeep {utc_time(state.now, '%H:%M:%S')}]", name]
    if state.folder:
        parts += [_safe(state), *([] if state.lost is None else [f"would lose {state.lost or 'nothing'}"])]
    else:
        parts += [f"{_epoch(state)}{_step(state)}", *([] if state.share is None else [f"{int(state.share * 100)}%"])]
        parts += [*_counted(state), _safe(state), _unsaved(state)]
        if state.session_left is not None and state.phase not in FINAL:
            parts.append(f"left {duration_text(state.session_left)} (estimate)")
    return f"{' '.join(parts)} | {plain(' '.join(said(says(state)).split()))}"


def _epoch(state: PanelState) -> str:
    epochs = state.max_epochs
    return "" if epochs is None else f"epoch {min(state.progress.epoch + 1, epochs)}/{epochs} "


def _step(state: PanelState) -> str:
    return f"step {state.progress.step}" + ("" if state.total_steps is None else f"/{state.total_steps}")


def _safe(state: PanelState) -> str:
    known = "safe" if state.lasts or state.safe_step is None else "saved"  # where nobody knows whether that lasts
    if state.safe_step is None:
        return f"{known} {'unknown' if state.asking and not state.folder else 'none'}"
    return f"{known} version {state.safe_step}" if state.folder else f"{known} {state.safe_step}"


def _unsaved(state: PanelState) -> str:
    return f"unsaved {state.lost_steps} steps ({duration_text(state.lost_seconds)})"


def _counted(state: PanelState) -> list[str]:
    """The loss, the metrics, the speed and the time that is left, each as far as it is known."""
    found = [] if state.loss is None else [f"loss {state.loss:.4g}"]
    found += _measured(state)
    if state.phase not in FINAL:
        found += [] if state.steps_per_second is None else [f"{_rate(state.steps_per_second)} steps/s"]
        found += [] if state.tokens_per_second is None else [f"{_rate(state.tokens_per_second)} tokens/s"]
        found += [] if state.seconds_left is None else [f"{duration_text(state.seconds_left)} to go"]
    return found


# -- HTML ----------------------------------------------------------------------------------------------

_ROWS = 4  # of the table of checkpoints, filled or not
_LAST_EPOCHS = 6  # in their table, beside the best one
_METRICS = 6  # columns of that table
_NAMED = 6  # metrics beside the loss
_SMOOTH = 20  # points at least, for a smooth loss
_WAITS = 0.3  # of the time for the next batch, from where on that is told; unless a GPU is busier than the next one
_BUSY = 0.7
_WHERE = 48  # bytes of a place in that table, which is not to be wider than the panel
_STALE_AFTER = 60.0  # seconds without an update after which a live panel says that it is not live


def render(state: PanelState, *, stale_after: float = _STALE_AFTER, status: str = "") -> Markup:
    """The panel. What people or machines wrote is escaped and cut.

    `status`: the page that is kept up to date beside the checkpoints, as seen from the notebook's folder.
    `stale_after`: seconds after which a panel that is not final, and is not renewed, says that it is not live.
    """
    final, started = state.phase in FINAL, state.started
    # What to click, where the check says that another machine should be had first.
    clicks = "" if state.check.verdict in ("", "keep") else " ".join(map(said, state.check.lines))
    # What a resume restores, what prevents the same bits, and what no checkpoint sees.
    promises = filter(None, (started.promise, *started.reasons, started.unseen, started.precision))
    happened = (f"{utc_time(each.at, '%H:%M:%S')} {said(each.text)}" for each in state.happened)
    run, storage = started.run and repr(started.run), started.asked and f"storage={started.asked}"
    call = draw.escape(", ".join(filter(None, (run, storage))), 500)
    as_of = Markup(draw.escape(_AS_OF).format(time=utc_time(state.now, "%Y-%m-%d %H:%M:%S"), call=call))
    sentences = draw.paragraph(draw.escape(says(state), 900), strong=state.phase in _URGENT)
    caption = "Versions, newest first" if state.folder else "Checkpoints, newest first"
    columns = ("version" if state.folder else "step", "size", "state", "where")
    checkpoints = draw.table(caption, columns, _rows(state), right=(0, 1))
    session = draw.paragraph(draw.escape(session_time(state), 500), quiet=True)
    parts = (
        draw.paragraph(_top(state)),
        sentences if state.phase in _URGENT else "",
        draw.paragraph(
            draw.escape(folder_now(state), 600)
            if state.folder
            else draw.join(draw.bar(state.share, wide=True), how_far(state))
        ),
        draw.paragraph(draw.escape(clicks, 900), quiet=True) if clicks else "",
        *(() if state.folder else _training(state, None if final else stale_after)),
        draw.paragraph(safety(state), strong=True),
        "" if state.phase in _URGENT else sentences,
        draw.join(session, checkpoints)
        if state.folder
        else draw.details(
            "Checkpoints and session",
            draw.join(
                session, draw.paragraph(draw.escape("" if final else how_it_saves(state), 700), quiet=True), checkpoints
            ),
        ),
        draw.details(
            "What comes back" if state.folder and not started.exactness else _EXACTNESS[started.exactness],
            draw.items(_fitting(promises)),
        ),
        draw.details(f"{said('Last events')} ({len(state.happened)})", draw.items(_fitting(happened))),
        draw.paragraph(draw.join(as_of, _status(status) if status and not final else ""), quiet=True),
    )
    return draw.frame(draw.join(*parts), STATES[state.phase][1])


_AS_OF = "As of {time} UTC. If that is long ago, this is not live: colabkeep.report({call}) shows the whole history."
_EXACTNESS = {
    "": "What a resume restores: not known yet",
    "exact": "Exact: the same bits after a resume",
    "mostly": "Exact after a resume, except for what is named here",
    "course": "Equivalent after a resume, but not the same bits: why",
}


def _status(page: str) -> Markup:
    """For who has reloaded the page: a running cell does not come back to it in each front end, and the file does."""
    return Markup(f" {draw.escape('How it is now: {page}', 200).format(page=draw.link(page, page))}")


def _training(state: PanelState, stale_after: float | None) -> Iterator[Markup | str]:
    """What is measured of it: the numbers of now, the losses, the other metrics, the epochs."""
    told = numbers(state)
    yield draw.paragraph(draw.escape(told, 500), strong=True) if told else ""
    machine = "" if state.phase in FINAL else machine_now(state)
    yield draw.paragraph(draw.escape(machine, 500), quiet=True) if machine else ""
    names = dict.fromkeys(name for row in state.epochs[-_LAST_EPOCHS:] for name in row.metrics)
    losses = [name for name in names if name.endswith("loss") and not curve.is_own(name)]
    best = state.best_epoch if state.judged_by[0] in losses else None
    yield curve.loss_curve(
        state.points,
        state.resumed_at,
        state.nan_since,
        [(saved.step, state.has_arrived(saved) and state.lasts) for saved in state.saves],
        measured=curve.Measured(
            {name: state.series(name) for name in losses}, best=None if best is None else best.step
        ),
        stale_after=stale_after,
    )
    if len(state.epochs) > 1:
        yield curve.small_multiples(curve.grouped({name: state.series(name) for name in names}))
    if state.epochs:
        yield _epochs(state, list(names))


def _epochs(state: PanelState, names: Sequence[str]) -> Markup:
    """The last ones, and the best one, which is marked."""
    best, (judge, _) = state.best_epoch, state.judged_by
    names = [name for name in names if name not in curve.RATES or len({value for _, value in state.series(name)}) > 1]
    order = sorted(names, key=lambda name: (name != judge, not name.endswith("loss"), name in curve.RATES))[:_METRICS]
    shown = [name for name in names if name in order]
    rows = [*([best] if best is not None and best not in state.epochs[-_LAST_EPOCHS:] else []),
            *state.epochs[-_LAST_EPOCHS:]]  # fmt: skip
    cells = [
        (
            f"{'★ ' if row is best else ''}{row.epoch + 1}",
            *(f"{row.metrics[name]:.4g}" if name in row.metrics else "" for name in shown),
            "" if row.seconds is None else duration_text(row.seconds),
        )
        for row in rows
    ]
    caption = "Epochs"
    if best is not None:
        caption = f"Epochs · ★ best {plain(judge, limit=40)}: {best.metrics[judge]:.4g}, epoch {best.epoch + 1}"
    columns = ["epoch", *(draw.escape(name, 60) for name in shown), "time"]
    return draw.table(caption, columns, cells, right=range(len(columns)))


_VERDICTS = {
    "keep": "{}",
    "reconnect": "{}: reconnect for a better one",
    "switch": "{}: choose another accelerator",
    "enable": "No GPU: turn one on",
    "unusable": "{}: cannot be used",
}


def _top(state: PanelState) -> Markup:
    name = "unsaved" if state.phase == "degraded" and state.failing else state.phase
    names, kind = state.machine.accelerators, state.machine.kind
    counted = ((each, names.count(each)) for each in dict.fromkeys(names))
    cards = ", ".join(f"{each} x{count}" if count > 1 else each for each, count in counted)
    if state.check.verdict:
        cards = _VERDICTS[state.check.verdict].format(cards or "CPU")
    facts = (" ".join(filter(None, (state.platform, kind and f"({kind})"))), cards, state.started.run)
    badges = (draw.badge(draw.escape(fact, 120)) for fact in facts if fact)
    return draw.join(
        state_chip(name, loss="" if state.broken is None else state.broken.value, folder=state.folder), *badges
    )


def _rows(state: PanelState) -> list[Sequence[object]]:
    shown = [saved for saved in state.saves if not saved.gone][:_ROWS]
    rows: list[Sequence[object]] = []
    for saved in shown:
        arrived = state.place is not None and state.has_arrived(saved)
        sign, where = ("✔", _place(state)) if arrived else ("↑", "this machine")
        level = f"{sign} {said(_LEVELS[saved.level])}"
        rows.append((saved.step, size_text(saved.bytes), level, draw.escape(where, _WHERE)))
    return rows + [("", "", "", "")] * (_ROWS - len(rows))


def _fitting(texts: Iterable[str]) -> list[Markup]:
    """The first of them, as many as have room."""
    shown, left = [], 2000  # bytes
    for text in texts:
        shown.append(draw.escape(text, 400))
        left -= len(shown[-1].encode())
        if left < 400:
            break
    return shown
