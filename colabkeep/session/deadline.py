"""When the machine goes, as far as that is known, and when the last save before it must begin."""

from __future__ import annotations

from dataclasses import dataclass

from colabkeep.platforms import find_platform
from colabkeep.platforms.lifetime import session_time
from colabkeep.vocabulary.clock import Clock
from colabkeep.vocabulary.durations import duration_text
from colabkeep.vocabulary.environment import Environment

__all__ = ["Deadline", "find_deadline"]

_MARGIN = 120.0  # seconds that the last save is early: the session's age is known to a minute or so
_SHARE = 1 / 12  # of a session that must end by itself: of twelve, an hour for the notebook's other cells and output
_SLOWER = 2.0  # the last save may take so many times as long: links are slow at times, and one may be on its way


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """`at`: when the machine goes at the latest, in seconds of the run's clock. `reserve`: seconds before that in which
    nothing is to be written any more. `ends`: training ends then by itself, because what a session made is kept only if
    it ends in time; else it is saved and goes on, since the figure may be wrong. `text` tells the user; `source` says
    where the figure is from."""

    at: float
    reserve: float
    ends: bool
    text: str
    source: str = ""

    def last_call(self, seconds: float) -> float:
        """When the last save must begin to be safe in time, if that takes `seconds`: from the copy until the place
        where it ends up had it and said so."""
        return self.at - self.reserve - _SLOWER * seconds


def find_deadline(
    environment: Environment, clock: Clock, *, limit: float | None = None, may_end: bool = True
) -> Deadline | None:
    """The end of this session; None where nothing is known of it.

    `limit`: the user's own figure for the whole session, in seconds. `may_end`: False where the user said himself when
    training ends.
    """
    platform = find_platform(environment)
    time = session_time(platform, environment, clock.time(), limit=limit)
    if time.left_seconds is None or time.limit_seconds is None:
        return None
    ends = may_end and platform.limits(environment).ends_cleanly
    reserve = time.limit_seconds * _SHARE if ends else _MARGIN
    then = (
        f"Training ends by itself {duration_text(reserve)} before that, so that this version's output is kept "
        "(max_time=… sets another time)."
        if ends
        else f"The last save is {duration_text(reserve)} before that."
    )
    return Deadline(
        at=clock.monotonic() + time.left_seconds,
        reserve=reserve,
        ends=ends,
        text=f"This session lasts {duration_text(time.left_seconds)} more at most. {time.source} {then}",
        source=time.source,
    )
