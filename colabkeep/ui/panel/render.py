"""A panel's state in sentences, as one line that a program can take apart, and as HTML below 20 kB that keeps its
height; and the pieces of it that the report and the results of a training show too: the state, and the loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from colabkeep.core.arguments import duration_text
from colabkeep.core.policies import cost_text
from colabkeep.ui import curve
from colabkeep.ui import drawing as draw
from colabkeep.ui.drawing import AMBER, BLUE, GREEN, ORANGE, PURPLE, RED, Colour, Markup
from colabkeep.ui.messages import EN, Words
from colabkeep.ui.panel.state import FINAL, PanelState, Phase
from colabkeep.ui.text import plain, size_text, utc_time

STATES: Mapping[str, tuple[str, Colour]] = {
    "starting": ("○", BLUE),
    "fresh": ("○", BLUE),
    "resumed": ("↻", BLUE),
    "saving": ("✎", AMBER),
    "uploading": ("↑", AMBER),
    "saved": ("✔", GREEN),
    "durable": ("✔", GREEN),
    "degraded": ("▲", ORANGE),
    "unsaved": ("▲", ORANGE),
    "ending": ("!", ORANGE),
    "nan": ("✖", RED),
    "interrupted": ("■", PURPLE),
    "finished": ("✔", GREEN),
    "diverged": ("✖", RED),
    "failed": ("✖", RED),
}
"""Symbol (one that basic fonts have) and colour of each state; "unsaved" is "degraded" where a save has failed."""

# What the line calls a state whose name in records is not the word for people.
_LINE = {"fresh": "TRAINING", "saved": "TRAINING", "durable": "TRAINING", "interrupted": "STOPPED"}


def state_chip(name: str, words: Words = EN, *, loss: str = "nan") -> Markup:
    """The chip of a state. `loss`: what it is where it is not finite, as in `LossNotFinite.value`; "": not known."""
    symbol, colour = STATES[name]
    return draw.chip(symbol, words[f"chip.{name}"].format(word=_nan(loss, words)), colour)


# What the panel says first, before how far it is.
_URGENT = frozenset({"degraded", "ending", "nan", *FINAL})

_FOLDER_LINE = {
    "fresh": "KEEPING",
    "resumed": "KEEPING",
    "saved": "KEEPING",
    "durable": "KEEPING",
    "interrupted": "STOPPED",
}


# -- sentences -----------------------------------------------------------------------------------------


def says(state: PanelState) -> str:
    """The plain sentences of the state."""
    return _SAYINGS[state.phase](state, state.words)


def folder_now(state: PanelState) -> str:
    """Of another program's folder: "/content/runs · version 7 · 2 file(s) have changed since, and wait: last.pt …"."""
    words, seen, changed, waits = state.words, state.seen, "", ""
    if seen is not None:
        changed = words["folder.changed"].format(count=seen.changed) if seen.changed else words["folder.same"]
        waits = words["folder.waits"].format(waits=seen.waits) if seen.waits else ""
    newest = next((saved for saved in state.saves if not saved.gone), None)
    name, step = ("folder.none", 0) if newest is None else ("folder.at", newest.step)
    changed = "" if newest is None and changed == words["folder.same"] else changed
    return words[name].format(folder=state.started.keeps, step=step, changed=changed, waits=waits)


def how_far(state: PanelState) -> str:
    """ "71 % · epoch 8 of 10 · step 712 of 1000 · 3.1 steps/s · 99 samples/s · trained for 4 min · about 2 min to go",
    as far as it is known."""
    words, share, total, final = state.words, state.share, state.total_steps, state.phase in FINAL
    seconds = state.progress.seconds
    at = words["at.step" if total is None else "at.steps"].format(step=state.progress.step, total=total)
    if state.max_epochs is not None and not final:
        epoch = min(state.progress.epoch + 1, state.max_epochs)
        at = words["at.epoch"].format(epoch=epoch, epochs=state.max_epochs) + at
    return words["progress"].format(
        share="?" if share is None else f"{int(share * 100)} %",
        at=at,
        speed="" if final else _speed(state),
        trained=words["trained"].format(seconds=duration_text(seconds)) if seconds else "",
        left="" if final else _left(state),
    )


def pace(state: PanelState) -> str:
    """ " · 3.1 steps/s · 99 samples/s · about 2 min to go", as far as it is known."""
    return _speed(state) + _left(state)


def _speed(state: PanelState) -> str:
    rates = {
        "speed": state.steps_per_second,
        "speed.samples": state.samples_per_second,
        "speed.tokens": state.tokens_per_second,
    }
    return "".join(state.words[name].format(speed=_rate(rate)) for name, rate in rates.items() if rate is not None)


def _left(state: PanelState) -> str:
    left = state.seconds_left
    return "" if left is None else state.words["left"].format(left=duration_text(left))


def _rate(speed: float) -> str:
    return f"{speed:.3g}" if speed < 1000 else f"{speed:,.0f}"


def numbers(state: PanelState) -> str:
    """ "loss 0.3706 (last 0.4102) · learning rate 0.0003 · val_loss 0.41", as far as it is known."""
    words, found = state.words, list[str]()
    if state.loss is not None:
        smooth = curve.smoothed(state.points)[-1][1] if len(state.points) >= _SMOOTH else math.nan
        name = "numbers.smooth" if math.isfinite(smooth) and state.phase not in FINAL else "numbers.loss"
        found.append(words[name].format(loss=f"{state.loss:.4g}", smooth=f"{smooth:.4g}"))
    if state.learning_rate is not None and state.phase not in FINAL:
        found.append(words["numbers.lr"].format(rate=f"{state.learning_rate:.3g}"))
    if state.grad_norm is not None and state.phase not in FINAL:
        found.append(words["numbers.grad"].format(norm=f"{state.grad_norm:.3g}"))
    return " · ".join([*found, *_measured(state)])


def _measured(state: PanelState) -> list[str]:
    """ "val_loss 0.41": the latest value of each metric beside the loss, as many as there is room for."""
    names = [name for name in state.metrics if name not in curve.RATES and not curve.is_own(name)]
    if state.grad_norm is not None:  # the one of now is told already
        names = [name for name in names if name != "grad_norm"]
    return [f"{plain(name, limit=40)} {state.metrics[name]:.4g}" for name in names[:_NAMED]]


def machine_now(state: PanelState) -> str:
    """ "GPU 93 % busy, 9.8 GB of 15 GB · memory 5.2 GB of 12.7 GB", and a sentence where the GPU waits for batches."""
    words, found, usage = state.words, list[str](), state.usage
    for number, card in enumerate(usage.cards):
        busy = "" if card.busy is None else words["usage.busy"].format(busy=f"{card.busy:.0%}".replace("%", " %"))
        found.append(
            words["usage.card"].format(
                number=f" {number}" if len(usage.cards) > 1 else "",
                busy=busy,
                used=size_text(card.used),
                total=size_text(card.total),
            )
        )
    if usage.memory is not None:
        used, total = map(size_text, usage.memory)
        found.append(words["usage.memory"].format(used=used, total=total))
    said, busiest = " · ".join(found), max((card.busy or 0.0 for card in usage.cards), default=0.0)
    reading = state.reading
    if reading is None or reading < _WAITS or not state.machine.accelerators or busiest > _BUSY:
        return said
    return ". ".join(filter(None, (said, words["usage.waits"].format(share=f"{100 * reading:.0f}"))))


def safety(state: PanelState) -> str:
    """Up to where the run is safe, or saved where nobody knows whether that lasts; and what would be lost now."""
    known = "safe" if state.lasts else "saved"
    name = known if state.safe_step is not None else "safe.asked" if state.asking else "safe.none"
    lost = ""
    if state.lost is not None:
        lost = state.words["lost"].format(lost=state.lost) if state.lost else state.words["lost.none"]
    return state.words[name].format(
        step=state.safe_step, steps=state.lost_steps, seconds=duration_text(state.lost_seconds), lost=lost
    )


def session_time(state: PanelState) -> str:
    """How long the session lasts at most, and where that figure is from; "" when it has ended."""
    words, left = state.words, state.session_left
    if state.phase in FINAL:
        return ""
    if left is None:
        return words["session.unknown"]
    return words["session"].format(left=duration_text(left), source=state.started.ends_source).strip()


def how_it_saves(state: PanelState) -> str:
    """How often, where colabkeep chooses that; and what the last save cost."""
    words, last = state.words, last_save(state)
    if state.cadence is None:
        return last
    chosen = state.cadence.sentence(words)
    return words["saves"].format(chosen=f"{chosen[0].upper()}{chosen[1:]}", last=last)


def last_save(state: PanelState) -> str:
    """How long it paused training, and what made that longer, if anything did; "" before there is one."""
    words, saved = state.words, state.newest_own
    if saved is None:
        return ""
    why = words["saves.why"].format(copy=saved.copy) if saved.copy else ""
    return words["saves.last"].format(stall=cost_text(saved.stall, words), why=why)


def _resumed(state: PanelState, words: Words) -> str:
    how = words["how.inexact"].format(reason=state.inexact) if state.inexact else words["how.exact"]
    step, age = (0, 0.0) if state.restored is None else (state.restored.progress.step, state.restored.age)
    return words["says.resumed"].format(step=step, age=duration_text(age), how=how)


def _uploading(state: PanelState, words: Words) -> str:
    waiting, upload = "", state.upload
    if upload is not None and upload.waiting_bytes and upload.bytes_per_second:
        speed = size_text(int(upload.bytes_per_second))
        waiting = words["waiting"].format(size=size_text(upload.waiting_bytes), speed=speed)
    step = 0 if state.newest_own is None else state.newest_own.step
    return words["says.uploading"].format(step=step, place=_place(state), waiting=waiting, back=_back(state, words))


def _durable(state: PanelState, words: Words) -> str:
    own = state.newest_own
    if own is None:
        return words["kept.none"]
    level = "sent" if own.level == "local" and state.place is not None and state.place.persists else own.level
    proof = words[f"proof.{level}"].format(place=_place(state))
    return words["says.durable" if state.lasts else "says.saved"].format(step=own.step, proof=proof)


def _degraded(state: PanelState, words: Words) -> str:
    detail = state.failing or state.degraded
    if not detail:
        return words["says.temporary"].format(place=_place(state))
    return words["says.degraded"].format(since=utc_time(state.trouble_since, "%H:%M"), detail=detail)


def _ending(state: PanelState, words: Words) -> str:
    ends = state.deadline is not None and state.deadline.ends
    then = words["then.ends" if ends else "then.goes-on"]
    return words["says.ending"].format(left=duration_text(state.session_left or 0.0), then=then)


def _interrupted(state: PanelState, words: Words) -> str:
    reason = "" if state.stopped is None else words.get(f"reason.{state.stopped.reason}", state.stopped.reason)
    return words["says.interrupted"].format(step=state.progress.step, reason=reason, kept=_kept(state, words))


def _finished(state: PanelState, words: Words) -> str:
    step, kept = state.progress.step, _kept(state, words)
    if state.complete is not None:
        since = utc_time(state.complete.since, "%Y-%m-%d %H:%M")
        return words["says.complete"].format(since=since, step=step, kept=kept)
    seconds = duration_text(state.progress.seconds)
    return words["says.finished"].format(step=step, seconds=seconds, sessions=state.sessions, kept=kept)


def _broken(state: PanelState, words: Words) -> str:
    word, good = _nan(_nan_value(state), words), None if state.broken is None else state.broken.checkpoint
    back = words["back.good" if good else "back.no-good"].format(checkpoint=good)
    return words[f"says.{state.phase}"].format(step=state.progress.step, since=state.nan_since, word=word, back=back)


def _failed(state: PanelState, words: Words) -> str:
    error = (state.stopped.error if state.stopped else "").rstrip(".") or words["error.unknown"]
    return words["says.failed"].format(error=error, step=state.progress.step, kept=_kept(state, words))


_SAYINGS: Mapping[Phase, Callable[[PanelState, Words], str]] = {
    "starting": lambda _, words: words["says.starting"],
    "fresh": lambda state, words: words["says.fresh"].format(storage=state.started.storage),
    "resumed": _resumed,
    "saving": lambda state, words: words["says.saving"].format(
        step=0 if state.saving is None else state.saving.progress.step, back=_back(state, words)
    ),
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


def _nan_value(state: PanelState) -> str:
    return "" if state.broken is None else state.broken.value


def _nan(value: str, words: Words) -> str:
    return words["loss.nan" if value == "nan" else "loss.inf" if value else "loss.unknown"]


def _back(state: PanelState, words: Words) -> str:
    if state.safe_step is None:
        return words["back.none"]
    return words["back" if state.lasts else "back.if"].format(step=state.safe_step, place=_place(state))


def _kept(state: PanelState, words: Words) -> str:
    newest = next((saved for saved in state.saves if not saved.gone), None)
    if newest is None:
        return words["kept.none"]
    return words["kept"].format(step=newest.step, level=words[f"level.{newest.level}"])


def _place(state: PanelState) -> str:
    return state.started.storage if state.place is None else state.place.url


def moving_line(state: PanelState) -> str:
    """For a terminal, which cuts it where it ends: ``epoch 8/10 ━━━━━━━━━━━━━━────── 71% · loss 0.3706 · val_loss 0.41
    · 3.1 steps/s · 2 min to go · step 712/1000 · safe 600, unsaved 112 steps``. What is not known is left out."""
    if state.started.keeps or state.phase in ("starting", *FINAL):
        return line(state)
    share, total, (epoch, numbers_now) = state.share, state.total_steps, _counted(state)
    parts = [] if state.phase in _CALM else [state.phase.upper()]
    if share is not None:
        done = int(share * _BAR)
        parts.append(f"{epoch}{'━' * done}{'─' * (_BAR - done)} {int(share * 100)}%")
    parts += numbers_now
    parts.append(f"step {state.progress.step}{'' if total is None else f'/{total}'}")
    known = "safe" if state.lasts or state.safe_step is None else "saved"
    safe = "nothing" if state.safe_step is None else state.safe_step
    unsaved = f"unsaved {state.lost_steps} steps ({duration_text(state.lost_seconds)})"
    parts.append(f"{known} {safe}, {unsaved}")
    return " · ".join(parts)


_BAR = 20  # columns
_CALM = ("fresh", "resumed", "saving", "uploading", "saved", "durable")  # nothing that has to be known


def _counted(state: PanelState) -> tuple[str, list[str]]:
    """ "epoch 8/10 ", and the loss, the metrics, the speed and the time that is left, each as far as it is known."""
    epoch, found = "", []
    if state.max_epochs is not None:
        epoch = f"epoch {min(state.progress.epoch + 1, state.max_epochs)}/{state.max_epochs} "
    if state.loss is not None:
        found.append(f"loss {state.loss:.4g}")
    found += _measured(state)
    if state.phase not in FINAL:
        found += [] if state.steps_per_second is None else [f"{_rate(state.steps_per_second)} steps/s"]
        found += [] if state.tokens_per_second is None else [f"{_rate(state.tokens_per_second)} tokens/s"]
        found += [] if state.seconds_left is None else [f"{duration_text(state.seconds_left)} to go"]
    return epoch, found


def line(state: PanelState) -> str:
    """``[colabkeep 15:42:10] UPLOADING epoch 8/10 step 712/1000 71% loss 0.3706 val_loss 0.41 3.1 steps/s 2 min to go
    safe 600 unsaved 112 steps (36 s) left 7 h 10 min (estimate) | The checkpoint of step 700 is on …``. The time is
    UTC, and the state's name English; what is not known is left out."""
    if state.started.keeps:
        return _folder_line(state)
    total = "" if state.total_steps is None else f"/{state.total_steps}"
    name, (epoch, numbers_now) = _LINE.get(state.phase, state.phase.upper()), _counted(state)
    parts = [f"[colabkeep {utc_time(state.now, '%H:%M:%S')}]", name, f"{epoch}step {state.progress.step}{total}"]
    if state.share is not None:
        parts.append(f"{int(state.share * 100)}%")
    parts += numbers_now
    none = "unknown" if state.asking else "none"
    known = "safe" if state.lasts or state.safe_step is None else "saved"  # where nobody knows whether that lasts
    parts.append(f"{known} {none if state.safe_step is None else state.safe_step}")
    parts.append(f"unsaved {state.lost_steps} steps ({duration_text(state.lost_seconds)})")
    if state.session_left is not None and state.phase not in FINAL:
        parts.append(f"left {duration_text(state.session_left)} (estimate)")
    return f"{' '.join(parts)} | {plain(' '.join(says(state).split()))}"


def _folder_line(state: PanelState) -> str:
    """The same of another program's folder: no step, and no loss."""
    name = _FOLDER_LINE.get(state.phase, state.phase.upper())
    safe = "none" if state.safe_step is None else f"version {state.safe_step}"
    known = "safe" if state.lasts or state.safe_step is None else "saved"
    lost = "" if state.lost is None else f" would lose {state.lost or 'nothing'}"
    said = plain(" ".join(says(state).split()))
    return f"[colabkeep {utc_time(state.now, '%H:%M:%S')}] {name} {known} {safe}{lost} | {said}"


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
    words, final, started = state.words, state.phase in FINAL, state.started
    # What to click, where the check says that another machine should be had first.
    clicks = "" if state.check.verdict in ("", "keep") else " ".join(state.check.lines)
    # What a resume restores, what prevents the same bits, and what no checkpoint sees.
    promises = filter(None, (started.promise, *started.reasons, started.unseen, started.precision))
    happened = (f"{utc_time(each.at, '%H:%M:%S')} {each.text}" for each in state.happened)
    run, storage = started.run and repr(started.run), started.asked and f"storage={started.asked}"
    call = draw.escape(", ".join(filter(None, (run, storage))), 500)
    as_of = Markup(draw.escape(words["as-of"]).format(time=utc_time(state.now, "%Y-%m-%d %H:%M:%S"), call=call))
    said = draw.paragraph(draw.escape(says(state), 900), strong=state.phase in _URGENT)
    checkpoints = draw.table(
        words["checkpoints"],
        [words[f"column.{name}"] for name in ("step", "size", "level", "where")],
        _rows(state, words),
        right=(0, 1),
    )
    session = draw.paragraph(draw.escape(session_time(state), 500), quiet=True)
    parts = (
        draw.paragraph(_top(state, words)),
        said if state.phase in _URGENT else "",
        draw.paragraph(_where(state)),
        draw.paragraph(draw.escape(clicks, 900), quiet=True) if clicks else "",
        *(() if started.keeps else _training(state, None if final else stale_after)),
        draw.paragraph(safety(state), strong=True),
        "" if state.phase in _URGENT else said,
        draw.join(session, checkpoints)
        if started.keeps
        else draw.details(
            words["storage"],
            draw.join(session, draw.paragraph(draw.escape(_saving_pace(state), 700), quiet=True), checkpoints),
        ),
        draw.details(words[f"exactness.{started.exactness}"], draw.items(_fitting(promises))),
        draw.details(f"{words['events']} ({len(state.happened)})", draw.items(_fitting(happened))),
        draw.paragraph(draw.join(as_of, _status(status, words) if status and not final else ""), quiet=True),
    )
    return draw.frame(draw.join(*parts), STATES[state.phase][1])


def _status(page: str, words: Words) -> Markup:
    """For who has reloaded the page: a running cell does not come back to it in each front end, and the file does."""
    link = draw.link(page, page)
    return Markup(f" {draw.escape(words['status'], 200).format(page=link)}")


def _where(state: PanelState) -> Markup:
    if state.started.keeps:
        return draw.escape(folder_now(state), 600)
    return draw.join(draw.bar(state.share, wide=True), how_far(state))


def _saving_pace(state: PanelState) -> str:
    return "" if state.phase in FINAL else how_it_saves(state)


def _training(state: PanelState, stale_after: float | None) -> Iterator[Markup | str]:
    """What is measured of it: the numbers of now, the losses, the other metrics, the epochs."""
    said = numbers(state)
    yield draw.paragraph(draw.escape(said, 500), strong=True) if said else ""
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
        words=state.words,
        stale_after=stale_after,
    )
    if len(state.epochs) > 1:
        yield curve.small_multiples(curve.grouped({name: state.series(name) for name in names}), words=state.words)
    if state.epochs:
        yield _epochs(state, list(names))


def _epochs(state: PanelState, names: Sequence[str]) -> Markup:
    """The last ones, and the best one, which is marked."""
    words, best, (judge, _) = state.words, state.best_epoch, state.judged_by
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
    caption = words["epochs"]
    if best is not None:
        value = f"{best.metrics[judge]:.4g}"
        caption = words["epochs.best"].format(name=plain(judge, limit=40), value=value, epoch=best.epoch + 1)
    columns = [words["column.epoch"], *(draw.escape(name, 60) for name in shown), words["column.seconds"]]
    return draw.table(caption, columns, cells, right=range(len(columns)))


def _top(state: PanelState, words: Words) -> Markup:
    name = "unsaved" if state.phase == "degraded" and state.failing else state.phase
    names, kind = state.machine.accelerators, state.machine.kind
    counted = ((each, names.count(each)) for each in dict.fromkeys(names))
    cards = ", ".join(f"{each} x{count}" if count > 1 else each for each, count in counted)
    if state.check.verdict:
        cards = words[f"verdict.{state.check.verdict}"].format(cards=cards or "CPU")
    facts = (" ".join(filter(None, (state.platform, kind and f"({kind})"))), cards, state.started.run)
    badges = (draw.badge(draw.escape(fact, 120)) for fact in facts if fact)
    return draw.join(state_chip(name, words, loss=_nan_value(state)), *badges)


def _rows(state: PanelState, words: Words) -> list[Sequence[object]]:
    shown = [saved for saved in state.saves if not saved.gone][:_ROWS]
    rows: list[Sequence[object]] = []
    for saved in shown:
        arrived = state.place is not None and state.has_arrived(saved)
        sign, where = ("✔", _place(state)) if arrived else ("↑", words["where.here"])
        level = f"{sign} {words[f'level.{saved.level}']}"
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
