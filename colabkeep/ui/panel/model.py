"""How events change what a panel shows: a pure fold, one small function per kind of event; and when to show it
again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from colabkeep.core.durability import RUNGS, RungName
from colabkeep.core.events import (
    AlreadyComplete,
    CadenceChosen,
    DeadlineNear,
    DurabilityTold,
    EpochDone,
    Event,
    LengthTold,
    LossNotFinite,
    LossRecovered,
    MachineChecked,
    MachineGiven,
    Pruned,
    Recalled,
    Restored,
    RestoredInexactly,
    RungReached,
    RunStarted,
    RunStopped,
    SaveCommitted,
    SaveFailing,
    SaveStarted,
    StepDone,
    StoreDegraded,
    UploadMeasured,
)
from colabkeep.core.manifest import Progress
from colabkeep.core.policies import Cadence, Measures, cost_text
from colabkeep.core.system import Clock
from colabkeep.session.metrics import as_number
from colabkeep.ui.panel.messages import sentence, words_of
from colabkeep.ui.panel.state import FINAL, Happened, Pace, PanelState, Phase, Saved, share_of

__all__ = [
    "Paced",
    "Panel",
    "cadence_of",
    "fold",
    "how_it_saves",
    "last_save",
]


def cadence_of(event: CadenceChosen) -> Cadence:
    """What was chosen, as far as it was told."""
    return Cadence(
        seconds=event.interval,
        least=event.interval,
        why=event.reason,
        overhead=event.overhead,
        measures=Measures(cost=event.cost, session=event.session, carried=event.carried),
    )


def how_it_saves(state: PanelState) -> str:
    """How often, where colabkeep chooses that; and what the last save cost."""
    words, last = words_of(state.language), last_save(state)
    if state.cadence is None:
        return last
    chosen = state.cadence.sentence(words)
    return words["saves"].format(chosen=f"{chosen[0].upper()}{chosen[1:]}", last=last)


def last_save(state: PanelState) -> str:
    """How long it stopped training, and what made that longer, if anything did; "" before there is one."""
    words, saved = words_of(state.language), state.newest_own
    if saved is None:
        return ""
    why = words["saves.why"].format(copy=saved.copy) if saved.copy else ""
    return words["saves.last"].format(stall=cost_text(saved.stall, words), why=why)


_WINDOW = 30.0  # seconds of training that the speed is measured over
_POINTS = 512  # of the curve; when there are more, every second one stays
_SAVES = 48  # that are remembered: as many as the curve has room to mark
_HAPPENED = 12
# Shown elsewhere in the panel, or too often for a list of the last events.
_UNTOLD = (CadenceChosen, DurabilityTold, EpochDone)


class Panel:
    """The state of a panel, kept up to date with the events of a run. Time is that of `clock`."""

    def __init__(self, clock: Clock, start: PanelState | None = None) -> None:
        self._clock = clock
        self._state = start or PanelState()

    def take(self, event: Event) -> None:
        """Let an event change what is shown."""
        self._state = fold(self._state, event, self._clock.time())

    @property
    def state(self) -> PanelState:
        """What to show at this moment."""
        return replace(self._state, now=self._clock.time())


def fold(state: PanelState, event: Event, now: float) -> PanelState:
    """The state after an event that came at `now`, in seconds since 1970 (UTC)."""
    state = replace(state, now=now)
    change = _CHANGES.get(type(event))
    if change is not None:
        state = change(state, event)
    told = None if isinstance(event, _UNTOLD) else sentence(event)
    if told is not None and (not state.happened or state.happened[0].text != told):
        state = replace(state, happened=(Happened(now, told), *state.happened)[:_HAPPENED])
    return state


def _started(state: PanelState, event: RunStarted) -> PanelState:
    return replace(
        state,
        run=event.run,
        session=event.session,
        storage=event.storage,
        ends_at=event.ends_at,
        ends_source=event.ends_source,
        exactness=event.exactness,
        promise=event.promise,
        reasons=tuple(event.reasons),
        unseen=event.unseen,
        precision=event.precision,
    )


def _length(state: PanelState, event: LengthTold) -> PanelState:
    return replace(
        state,
        max_epochs=state.max_epochs if event.max_epochs is None else event.max_epochs,
        max_steps=state.max_steps if event.max_steps is None else event.max_steps,
    )


def _machine(state: PanelState, event: MachineGiven) -> PanelState:
    return replace(
        state, platform=state.platform or event.platform, kind=event.kind, accelerators=tuple(event.accelerators)
    )


def _restored(state: PanelState, event: Restored) -> PanelState:
    # Its rung is not known before the store is asked: the lowest that a checkpoint can have is never too good.
    step, seconds = event.progress.step, event.progress.seconds
    saved = Saved(checkpoint=event.checkpoint, step=step, seconds=seconds, rung="local")
    state = replace(
        _at(state, event.progress),
        restored=event.progress,
        restored_age=event.age,
        resumed_at=tuple(sorted({*state.resumed_at, event.progress.step})),
        sessions=max(state.sessions, 2),
    )
    return _with(state, saved)


def _recalled(state: PanelState, event: Recalled) -> PanelState:
    resumed_at = tuple(sorted({*state.resumed_at, *event.resumed_at}))
    return replace(state, points=_thinned(tuple(event.points)), resumed_at=resumed_at, sessions=event.sessions)


def _complete(state: PanelState, event: AlreadyComplete) -> PanelState:
    return replace(state, complete_since=event.since)


def _inexact(state: PanelState, event: RestoredInexactly) -> PanelState:
    return replace(state, inexact=state.inexact or event.reason)


def _not_finite(state: PanelState, event: LossNotFinite) -> PanelState:
    return replace(
        state, nan_since=event.step, nan_word=event.value, finite=event.finite, good=event.checkpoint or state.good
    )


def _recovered(state: PanelState, _: LossRecovered) -> PanelState:
    return replace(state, nan_since=None, nan_word="", good=None)


def _step(state: PanelState, event: StepDone) -> PanelState:
    loss, step = _loss(event.loss), event.progress.step
    points = state.points if loss is None else _thinned((*state.points, (step, loss)))
    return replace(_at(state, event.progress, event.epoch_batches), loss=loss, points=points)


def _epoch(state: PanelState, event: EpochDone) -> PanelState:
    return _at(state, event.progress, state.epoch_batches)


def _saving(state: PanelState, event: SaveStarted) -> PanelState:
    # A display hears of few steps: without this one, more would be safe than was ever trained.
    if event.progress.step > state.progress.step:
        state = _at(state, event.progress, state.epoch_batches)
    return replace(state, saving=event.progress.step, blocked=event.blocked)


def _committed(state: PanelState, event: SaveCommitted) -> PanelState:
    saved = Saved(
        checkpoint=event.checkpoint,
        step=event.progress.step,
        seconds=event.progress.seconds,
        rung=_rung(event.rung),
        bytes=event.bytes,
        own=True,
        stall=state.blocked,
        copy=event.copy,
    )
    if state.nan_since is not None and event.progress.step < (state.finite or 0):  # it was on its way when it broke
        state = replace(state, good=event.checkpoint)
    return _safer(_with(replace(state, saving=None, failing=""), saved))


def _failing(state: PanelState, event: SaveFailing) -> PanelState:
    since = state.trouble_since if state.failing or state.degraded else state.now
    return replace(state, saving=None, failing=event.error, trouble_since=since)


def _degraded(state: PanelState, event: StoreDegraded) -> PanelState:
    if event.healed:
        return replace(state, degraded="")
    since = state.trouble_since if state.failing or state.degraded else state.now
    return replace(state, degraded=event.detail, trouble_since=since)


def _reached(state: PanelState, event: RungReached) -> PanelState:
    saves = tuple(
        replace(saved, rung=_rung(event.rung)) if saved.checkpoint == event.checkpoint else saved
        for saved in state.saves
    )
    return _safer(replace(state, saves=saves))


def _safer(state: PanelState) -> PanelState:
    """The state where a checkpoint has become safe: what would be lost is told some seconds later (`Ledger`), and until
    then the panel would say that a checkpoint is safe and that everything since the one before would be lost."""
    place = state.place
    if place is None or place.persists is False:
        return state
    at_top = (each for each in state.saves if each.own and not each.gone and each.rung == place.top)
    newest = next(at_top, None)
    if newest is None or newest.step <= (state.safe_step or 0):
        return state
    return replace(state, safe_step=newest.step, safe_seconds=newest.seconds)


def _durability(state: PanelState, event: DurabilityTold) -> PanelState:
    told = event.durability
    safe = next((each for each in told.standings if each.checkpoint == told.checkpoint and each.checkpoint), None)
    state = replace(
        state,
        place=told.place,
        safe_step=None if safe is None else safe.step,
        safe_seconds=0.0 if safe is None else safe.seconds,
    )
    known = {saved.checkpoint: saved for saved in state.saves}
    for standing in told.standings:
        if standing.checkpoint is not None:
            fresh = Saved(
                checkpoint=standing.checkpoint, step=standing.step, seconds=standing.seconds, rung=standing.rung
            )
            state = _with(state, replace(known.get(standing.checkpoint, fresh), rung=standing.rung))
    return state


def _cadence(state: PanelState, event: CadenceChosen) -> PanelState:
    return replace(state, cadence=cadence_of(event))


def _upload(state: PanelState, event: UploadMeasured) -> PanelState:
    return replace(state, waiting_bytes=event.waiting_bytes, bytes_per_second=event.bytes_per_second)


def _pruned(state: PanelState, event: Pruned) -> PanelState:
    return replace(
        state,
        saves=tuple(replace(each, gone=each.gone or each.checkpoint in event.checkpoints) for each in state.saves),
    )


def _near(state: PanelState, event: DeadlineNear) -> PanelState:
    return replace(state, ending=True, ends_at=state.now + event.seconds, ends_by_itself=event.ends)


def _stopped(state: PanelState, event: RunStopped) -> PanelState:
    state = replace(_at(state, event.progress, state.epoch_batches), saving=None)
    return replace(state, stopped=event.reason, error=event.error)


def _checked(state: PanelState, event: MachineChecked) -> PanelState:
    return replace(state, verdict=event.verdict, advice=event.lines)


_CHANGES: Mapping[type, Callable[[PanelState, Any], PanelState]] = {
    RunStarted: _started,
    LengthTold: _length,
    MachineChecked: _checked,
    MachineGiven: _machine,
    Restored: _restored,
    Recalled: _recalled,
    AlreadyComplete: _complete,
    RestoredInexactly: _inexact,
    LossNotFinite: _not_finite,
    LossRecovered: _recovered,
    StepDone: _step,
    EpochDone: _epoch,
    SaveStarted: _saving,
    SaveCommitted: _committed,
    SaveFailing: _failing,
    StoreDegraded: _degraded,
    RungReached: _reached,
    DurabilityTold: _durability,
    CadenceChosen: _cadence,
    UploadMeasured: _upload,
    Pruned: _pruned,
    DeadlineNear: _near,
    RunStopped: _stopped,
}


def _at(state: PanelState, progress: Progress, epoch_batches: int | None = None) -> PanelState:
    """The state at another step; the speed is measured over the last half minute of training."""
    share = share_of(progress, epoch_batches, state.max_epochs, state.max_steps)
    recent = [pace for pace in state.paces if pace.seconds >= progress.seconds - _WINDOW]
    paces = (*recent[-64:], Pace(progress.step, share, progress.seconds))
    return replace(state, progress=progress, epoch_batches=epoch_batches or state.epoch_batches, paces=paces)


def _with(state: PanelState, saved: Saved) -> PanelState:
    """The state with a checkpoint, or with what is known of it now; the newest ones stay."""
    others = (each for each in state.saves if each.checkpoint != saved.checkpoint)
    saves = sorted((*others, saved), key=lambda each: (each.step, each.checkpoint), reverse=True)
    return replace(state, saves=tuple(saves[:_SAVES]))


def _thinned(points: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
    while len(points) > _POINTS:
        points = points[::2]
    return points


def _rung(name: str) -> RungName:
    return next((rung for rung in RUNGS if rung == name), "unknown")


def _loss(value: object) -> float | None:
    """The loss as a number; None for what is not one, such as a tensor of many: it is not drawn then."""
    if value is None:
        return None
    try:
        return as_number(value)
    except (TypeError, ValueError, RuntimeError):
        return None


_RUSH = 0.25  # seconds between two showings at least, also where the state changes with every step


class Paced:
    """A panel that is shown every `pause` seconds. By the clock's `monotonic`, `next` is the time when it is due, and
    `steps_from` the one from which a step is wanted again: a showing between, for a save, does not put that off."""

    def __init__(self, clock: Clock, start: PanelState, pause: float) -> None:
        self.panel = Panel(clock, start)
        self.next = self.steps_from = clock.monotonic()
        self._clock = clock
        self._pause = pause
        self._shown: Phase | None = None

    def due(self, event: Event) -> PanelState | None:
        """Take an event; the state, if it is to be shown now."""
        self.panel.take(event)
        now, state = self._clock.monotonic(), self.panel.state
        if isinstance(event, StepDone):
            self.steps_from = now + self._pause
        changed = state.phase != self._shown
        rushed = now < self.next - self._pause + _RUSH
        if not (state.phase in FINAL or now >= self.next or (changed and not rushed)):
            return None
        self.next, self._shown = now + self._pause, state.phase
        return state
