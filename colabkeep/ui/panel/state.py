"""What a panel shows, as one frozen record. Nothing here knows how it is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from colabkeep.core.durability import Place, RungName, has_arrived
from colabkeep.core.manifest import Progress
from colabkeep.core.policies import Cadence

__all__ = ["FINAL", "Happened", "Pace", "PanelState", "Phase", "Saved"]

Phase: TypeAlias = Literal[
    "starting",
    "fresh",
    "resumed",
    "saving",
    "uploading",
    "saved",
    "durable",
    "degraded",
    "ending",
    "nan",
    "interrupted",
    "finished",
    "diverged",
    "failed",
]
"""The one state that the panel is in. "starting" is before the run is opened; "nan": the loss is no finite number, and
it trains; the last four are final, "diverged": it ended so."""

FINAL: tuple[Phase, ...] = ("interrupted", "finished", "diverged", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint and its rung. `seconds`: how long the run had been trained then. `bytes`: None where not known.
    `own`: this session wrote it; training stood still for `stall` seconds then, and `copy` says what
    made that longer, if anything did. `gone`: it was deleted since, to make room for newer ones."""

    checkpoint: str
    step: int
    rung: RungName
    seconds: float = 0.0
    bytes: int | None = None
    own: bool = False
    stall: float = 0.0
    copy: str = ""
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Happened:
    """Something told at a time, in seconds since 1970 (UTC)."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Pace:
    """How far the run was (a share from 0 to 1, None if its length is not known) at a step, `seconds` into training."""

    step: int
    share: float | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelState:
    """All that is known of a run as of `now` (seconds since 1970, UTC). None, "" and () are what is not known.

    `platform` is a title. `verdict` and `advice` are the check's. `paces` are of the last half minute. `points`: the
    loss of the whole run, by step. `saving`: the step whose state is being saved; training stood still for `blocked`
    seconds when that began. `saves`: newest first; `place`: where they end up; `safe_*`: the one to go on from if the
    machine vanished now. `cadence`: how often it is saved, and why, where colabkeep chooses that. `failing` and
    `degraded`: what is out of order with saving and with the storage. `complete_since`: when a run was complete that
    this session was asked to train no further. `stopped`: why the session ended. `nan_since`: the step since which the
    loss is not finite, as `nan_word` says; the one of step `finite` was, and `good` is the checkpoint to go back to.
    `exactness`, `promise`, `reasons`, `unseen`, `precision`: as `RunStarted` has them.
    """

    now: float = 0.0
    language: str = "en"
    run: str = ""
    session: str = ""
    storage: str = ""
    platform: str = ""
    kind: str = ""
    accelerators: tuple[str, ...] = ()
    verdict: str = ""
    advice: tuple[str, ...] = ()
    progress: Progress = field(default_factory=Progress)
    epoch_batches: int | None = None
    max_epochs: int | None = None
    max_steps: int | None = None
    loss: float | None = None
    paces: tuple[Pace, ...] = ()
    points: tuple[tuple[int, float], ...] = ()
    resumed_at: tuple[int, ...] = ()
    sessions: int = 1
    restored: Progress | None = None
    restored_age: float = 0.0
    inexact: str = ""
    saving: int | None = None
    blocked: float = 0.0
    saves: tuple[Saved, ...] = ()
    place: Place | None = None
    safe_step: int | None = None
    safe_seconds: float = 0.0
    waiting_bytes: int = 0
    bytes_per_second: float | None = None
    failing: str = ""
    degraded: str = ""
    trouble_since: float = 0.0
    cadence: Cadence | None = None
    ends_at: float | None = None
    ends_source: str = ""
    ending: bool = False
    ends_by_itself: bool = False
    happened: tuple[Happened, ...] = ()
    complete_since: float | None = None
    stopped: str = ""
    error: str = ""
    nan_since: int | None = None
    nan_word: str = ""
    finite: int | None = None
    good: str | None = None
    exactness: str = ""
    promise: str = ""
    reasons: tuple[str, ...] = ()
    unseen: str = ""
    precision: str = ""

    @property
    def phase(self) -> Phase:
        """The state that matters most of those that hold."""
        if self.stopped:
            return self._end
        if not self.session:
            return "starting"
        if self.nan_since is not None:
            return "nan"
        if self.ending:
            return "ending"
        own = self.newest_own
        lost_with_machine = own is not None and self.place is not None and self.place.persists is False
        if self.failing or self.degraded or lost_with_machine:
            return "degraded"
        if self.saving is not None:
            return "saving"
        if own is not None and self.place is not None:
            arrived: Phase = "durable" if self.lasts else "saved"
            return arrived if self.has_arrived(own) else "uploading"
        return "fresh" if self.restored is None else "resumed"

    @property
    def _end(self) -> Phase:
        if self.stopped != "error" and self.nan_since is not None:
            return "diverged"
        known: dict[str, Phase] = {"error": "failed", "finished": "finished", "max_steps": "finished"}
        return known.get(self.stopped, "interrupted")

    @property
    def newest_own(self) -> Saved | None:
        """The newest checkpoint that this session wrote."""
        return next((saved for saved in self.saves if saved.own and not saved.gone), None)

    @property
    def lasts(self) -> bool:
        """Is it known that what has arrived in the run's place outlives this machine?"""
        return self.place is not None and self.place.lasts

    def has_arrived(self, saved: Saved) -> bool:
        """Is it as durable as it can become?"""
        return self.place is not None and has_arrived(saved.rung, self.place.top)

    @property
    def share(self) -> float | None:
        """How much of the run is done, from 0 to 1; None if its length is not known."""
        return share_of(self.progress, self.epoch_batches, self.max_epochs, self.max_steps)

    @property
    def total_steps(self) -> int | None:
        """How many steps the run will have, where that is certain: by epochs, if each batch was a step so far."""
        if self.max_steps is not None and self.max_epochs is None:
            return self.max_steps
        if self.max_epochs is None or self.epoch_batches is None:
            return None
        batches = self.progress.epoch * self.epoch_batches + self.progress.batches
        if batches != self.progress.step:
            return None
        total = self.max_epochs * self.epoch_batches
        return total if self.max_steps is None else min(total, self.max_steps)

    @property
    def steps_per_second(self) -> float | None:
        """The speed of the last half minute of training, saves and validation included."""
        first, last = _ends(self.paces)
        return None if first is None or last is None else (last.step - first.step) / (last.seconds - first.seconds)

    @property
    def seconds_left(self) -> float | None:
        """Until the end of the run, at that speed."""
        first, last = _ends(self.paces)
        if first is None or last is None or first.share is None or last.share is None or last.share <= first.share:
            return None
        return (1.0 - last.share) * (last.seconds - first.seconds) / (last.share - first.share)

    @property
    def asking(self) -> bool:
        """Has the storage not said yet whether it has the checkpoint that training went on from?"""
        return self.restored is not None and self.place is None

    @property
    def lost_steps(self) -> int:
        """Steps that would have to be done again if the machine vanished now."""
        return max(0, self.progress.step - (self.safe_step or 0))

    @property
    def lost_seconds(self) -> float:
        """Seconds of training that would have to be done again."""
        return max(0.0, self.progress.seconds - (self.safe_seconds if self.safe_step is not None else 0.0))

    @property
    def session_left(self) -> float | None:
        """Seconds until the machine goes, at most; None where nothing is known of it."""
        return None if self.ends_at is None else max(0.0, self.ends_at - self.now)


def share_of(
    progress: Progress, epoch_batches: int | None, max_epochs: int | None, max_steps: int | None
) -> float | None:
    """How much of a run of that length is done, from 0 to 1; None where it is not known."""
    shares = []
    if max_steps is not None:
        shares.append(progress.step / max_steps)
    if max_epochs is not None and (epoch_batches or not progress.batches):
        within = progress.batches / epoch_batches if epoch_batches else 0.0
        shares.append((progress.epoch + within) / max_epochs)
    return min(1.0, max(shares)) if shares else None


def _ends(paces: Sequence[Pace]) -> tuple[Pace | None, Pace | None]:
    """The first and the last; None where they do not tell a speed."""
    if len(paces) < 2 or paces[-1].seconds <= paces[0].seconds:
        return None, None
    return paces[0], paces[-1]
