"""How long sessions live until they vanish: what is usual on a platform, and what became of this run's earlier ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from colabkeep._engine.lease import fences
from colabkeep._engine.repository import Repository
from colabkeep.platforms.base import SessionLimits
from colabkeep.session.diary import Line, read_diary
from colabkeep.vocabulary.cadence import Life, mean_session

__all__ = ["UNKNOWN", "Sessions", "Usual", "earlier_lives", "usual_session"]

_LOOKED_AT = 8  # sessions; the first and the last part of the journal of each is a request
_GUESS_LEFT = 4 * 3600.0  # seconds; a machine that stops some time after its page was left
_LONGEST = 7 * 24 * 3600.0  # seconds; what claims more had its clock set meanwhile, as machines do when they boot
_GUESS_OWN = 24 * 3600.0  # seconds; of a machine that nothing is known to end: updates, power, whoever else uses it


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """How many `seconds` a session lives on such a machine, until this run's own past tells more; `source` says from
    what. `vanishes`: machines of this kind are taken away."""

    seconds: float
    source: str
    vanishes: bool


UNKNOWN = Usual(seconds=_GUESS_OWN, source="a guess: nothing is known that ends this machine", vanishes=False)
"""Of a machine of which nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """How long sessions live here: what is `usual`, and the `lives` of the run's earlier ones."""

    usual: Usual
    lives: Sequence[Life] = ()

    @property
    def seconds(self) -> float:
        """The mean time between two disconnects."""
        return mean_session(self.usual.seconds, self.lives)

    @property
    def vanishes(self) -> bool:
        """Machines of this kind do, or one of this run's did."""
        return self.usual.vanishes or any(life.vanished for life in self.lives)

    @property
    def source(self) -> str:
        """From what that is known, for people."""
        past = f"{len(self.lives)} earlier session(s) of this run, and " if self.lives else ""
        return f"{past}{self.usual.source}"


def usual_session(limits: SessionLimits) -> Usual:
    """What is usual under these limits. Where users report nothing, sessions are taken to end anywhere before their
    limit, so in the middle of it on average."""
    if limits.usual_seconds is not None:
        return Usual(seconds=limits.usual_seconds, source=limits.usual_source, vanishes=True)
    if limits.max_seconds is not None:
        return Usual(seconds=limits.max_seconds / 2, source=f"half of the limit: {limits.source}", vanishes=True)
    if limits.idle_seconds is not None:
        return Usual(seconds=_GUESS_LEFT, source=f"a guess: {limits.source}", vanishes=True)
    return UNKNOWN


def earlier_lives(repository: Repository, session: str, platform: str) -> tuple[Life, ...]:
    """The last sessions of the run on this platform, without `session` itself, by their parts of the journal.

    Raises:
        StoreError: the store cannot be listed.
    """
    fence_of = fences(repository)
    order = sorted((each for each in fence_of if each != session), key=lambda each: fence_of[each], reverse=True)
    files = repository.files("journal")
    diary = read_diary(repository, files, order[:_LOOKED_AT], 2 * _LOOKED_AT)
    return tuple(life for lines in diary.lines.values() for life in _life(lines, platform))


def _life(lines: Sequence[Line], platform: str) -> Iterator[Life]:
    """A session that said when it began and where it ran; else nothing. A lost one lived to its last word at least."""
    times = [line.at for line in lines if line.at is not None]
    here = any(line.event == "MachineGiven" and line.text("platform") == platform for line in lines)
    if times and here:
        seconds = min(_LONGEST, max(times) - min(times))
        yield Life(seconds=seconds, vanished=all(line.event != "RunStopped" for line in lines))
