"""What would be lost if this machine vanished now: each checkpoint on its rung, and one figure, never too small.

Only what outlives the machine counts. Where the place itself can state the digests it holds, only what it has
stated counts ("confirmed"): what was merely handed to it may still be on this machine. Where it cannot, what it was
given counts as long as it is seen there, and the sentence says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from colabkeep.core.arguments import duration_text

__all__ = ["RUNGS", "Durability", "Place", "RungName", "Standing", "assess", "has_arrived", "lowest"]

RungName: TypeAlias = Literal["captured", "local", "unknown", "sent", "confirmed"]
"""captured: in host memory; local: on this machine's disk; unknown: it is there as it was put, and the place, which
says nothing of anything it holds, may have it beyond this machine; sent: handed to the place; confirmed: the place
itself stated the right digest. What is not there, or not as it was put, is local at most, and so is what a place that
does speak has not spoken of yet."""

RUNGS: tuple[RungName, ...] = ("captured", "local", "unknown", "sent", "confirmed")
"""From the least durable to the most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One checkpoint and its rung: the lowest of its objects'. `checkpoint` is None for what is in memory only.

    `seconds`: how long the run had been trained at that step, over all its sessions.
    """

    checkpoint: str | None
    step: int
    seconds: float
    rung: RungName


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where checkpoints end up. `top`: the highest rung there; `persists`: does it outlive the machine (None: cannot
    be told)."""

    url: str
    top: RungName
    persists: bool | None

    @property
    def lasts(self) -> bool:
        """Is it known that what has arrived there outlives the machine?"""
        return self.persists is True or (self.persists is None and self.top in ("sent", "confirmed"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Durability:
    """If this machine vanished now: training would go on from `checkpoint` at `step` (None and 0: from the beginning),
    and `lost_seconds` of training would have to be done again.

    `rung` is that of the checkpoint. `standings` are all that this session knows of, newest first.
    """

    place: Place
    lost_seconds: float
    step: int
    checkpoint: str | None
    rung: RungName | None
    standings: tuple[Standing, ...]

    @property
    def sentence(self) -> str:
        """For people, complete, and no more than what is known."""
        lost = duration_text(self.lost_seconds)
        if self.place.persists is False:
            return (
                f"If this machine vanished now, you would lose all {lost} of this training: {self.place.url} goes "
                "with it."
            )
        if self.rung is None:
            return (
                f"If this machine vanished now, you would lose all {lost} of this training: no checkpoint is known "
                f"to be safe in {self.place.url} yet."
            )
        return f"If this machine vanished now, you would lose {lost} (back to step {self.step}{self._proof()})."

    def _proof(self) -> str:
        if self.rung == "confirmed":
            return f", confirmed by {self.place.url}"
        if self.rung == "local":
            if self.place.persists:
                return f", in {self.place.url}"
            return f", if {self.place.url} outlives the machine, which cannot be told from here"
        return f", if {self.place.url} has what it was given, which it cannot say"


def assess(standings: Sequence[Standing], place: Place, seconds: float) -> Durability:
    """The figure. `seconds`: how long the run has been trained by now."""
    newest_first = sorted(standings, key=lambda each: (each.step, each.seconds), reverse=True)
    safe = None if place.persists is False else _newest_safe(newest_first, place)
    return Durability(
        place=place,
        lost_seconds=max(0.0, seconds - (safe.seconds if safe is not None else 0.0)),
        step=0 if safe is None else safe.step,
        checkpoint=None if safe is None else safe.checkpoint,
        rung=None if safe is None else safe.rung,
        standings=tuple(newest_first),
    )


def lowest(rungs: Iterable[RungName]) -> RungName:
    """The least durable of them: a checkpoint is as safe as the worst of its objects."""
    return min(rungs, key=RUNGS.index)


def has_arrived(rung: str, top: RungName) -> bool:
    """Is it as durable as it can become where `top` is the highest rung? A place that says "unknown" of what is there
    may never say more."""
    return rung == "unknown" or (rung in RUNGS and RUNGS.index(rung) >= RUNGS.index(top))


def _newest_safe(newest_first: Sequence[Standing], place: Place) -> Standing | None:
    at_top = (each for each in newest_first if RUNGS.index(each.rung) >= RUNGS.index(place.top))
    # What the place says nothing of counts where nothing else does, and is called what it is.
    return next(at_top, None) or next((each for each in newest_first if each.rung == "unknown"), None)
