"""What `save_every="auto"` is fed with: what saves cost here, what storage takes, how long sessions live."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from colabkeep.session.lives import Sessions, Usual
from colabkeep.vocabulary.budget import Budget
from colabkeep.vocabulary.cadence import Cadence, Life, Measures, choose, improved, unmeasured
from colabkeep.vocabulary.clock import Clock
from colabkeep.vocabulary.events import (
    CadenceChosen,
    EpochDone,
    Event,
    Noted,
    SaveCommitted,
    SaveFailing,
    SaveStarted,
    UploadMeasured,
)
from colabkeep.vocabulary.policies import SavePolicy, adapt, is_auto

__all__ = ["Circumstances", "Pacemaker", "Tempo"]

_REMEMBERED = 9  # saves, and stretches between them: the median of so many is not moved by a few that were disturbed
_FEWEST = 3  # steps that make a stretch worth comparing with


class Tempo:
    """How much slower steps are while a save is in the background, by comparison with those before it: seconds of a
    stretch with a save, less what its steps take otherwise. Nothing is measured at each step: only where stretches
    begin and end, so it costs training nothing.

    A stretch in which an epoch ended is left out, for there is a validation in it; and so is the one before the first
    save, for the first steps are slower than all others."""

    def __init__(self) -> None:
        self._paces: deque[float] = deque(maxlen=_REMEMBERED)  # seconds of a step, without a save
        self._since: tuple[int, float] | None = None  # the step and the time at which this stretch began

    def begin(self, step: int, now: float) -> None:
        """A stretch begins here."""
        self._since = step, now

    def spoil(self) -> None:
        """This stretch is not comparable."""
        self._since = None

    def quiet(self, step: int, now: float) -> None:
        """The stretch without a save ends here."""
        steps, seconds = self._length(step, now)
        if steps >= _FEWEST:
            self._paces.append(seconds / steps)

    def slowed(self, step: int, now: float) -> float | None:
        """The stretch with a save ends here: how many seconds it took longer; less than 0 is noise. None: not known."""
        steps, seconds = self._length(step, now)
        return seconds - steps * median(self._paces) if steps and self._paces else None

    def _length(self, step: int, now: float) -> tuple[int, float]:
        return (0, 0.0) if self._since is None else (step - self._since[0], now - self._since[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What does not change within a session. `overhead`: the share of time that saves may cost. `far`: a save goes
    over a network. `past`: reads how long earlier sessions lived; called on a thread of its own, for it may ask a
    service. `step`: the last step that is done. `arrival`: seconds from a commit until the save is safe, at a time.
    `budget`: what the place takes for a time, where that is known."""

    overhead: float
    usual: Usual
    far: bool
    past: Callable[[], Sequence[Life]]
    step: Callable[[], int]
    arrival: Callable[[float], float]
    budget: Budget | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spent:
    """One save. Seconds that training was `blocked`, and by which the steps beside it were `slowed` (None: not known);
    `seconds` of the background, and the new `written` bytes."""

    blocked: float
    slowed: float | None
    seconds: float
    written: int


class Pacemaker:
    """Measures, and adapts the policy: `policy` is the one to ask now. An observer of a run's events, on the training
    thread; `say` tells an event of its own, also from the thread that reads the past. Where the user said when to save,
    it does nothing.
    """

    steps_from = math.inf  # wants to hear of no step

    def __init__(
        self, policy: SavePolicy, circumstances: Circumstances, clock: Clock, say: Callable[[Event], None]
    ) -> None:
        self.policy = policy
        self.chooses = is_auto(policy)
        self._here = circumstances
        self._clock = clock
        self._say = say
        self._tempo = Tempo()
        self._blocked: float | None = None  # seconds, of the save in flight
        self._saves: deque[_Spent] = deque(maxlen=_REMEMBERED)
        self._speed: float | None = None  # bytes per second of the link to the slower side
        self._lives: Sequence[Life] = ()
        self._reader: threading.Thread | None = None
        self._cadence: Cadence | None = None
        self._told: Cadence | None = None

    def __call__(self, event: Event) -> None:
        """Take what an event tells of saving."""
        if not self.chooses:
            return
        if isinstance(event, SaveStarted):
            self._started(event)
        elif isinstance(event, SaveCommitted):
            self._committed(event)
        elif isinstance(event, (EpochDone, SaveFailing)):
            self._tempo.spoil()
        elif isinstance(event, UploadMeasured) and event.bytes_per_second > 0:
            self._speed = event.bytes_per_second

    def close(self, patience: float = 2.0) -> None:
        """Wait for the past to be read, for so many seconds at most: the store is closed next."""
        if self._reader is not None:
            self._reader.join(patience)

    def _started(self, event: SaveStarted) -> None:
        now = self._clock.monotonic()
        if self._blocked is not None:  # the one before came to nothing: there was a save in this stretch all the same
            self._tempo.spoil()
        self._tempo.quiet(event.progress.step, now - event.blocked)
        self._tempo.begin(event.progress.step, now)
        self._blocked = event.blocked
        if self._cadence is None:  # the next save waits for what this one shows
            self.policy = adapt(self.policy, unmeasured(self._measures(self._sessions()), self._here.overhead))
        if self._reader is None:  # not sooner: a session begins without these requests
            self._reader = threading.Thread(target=self._read, name="colabkeep-past", daemon=True)
            self._reader.start()

    def _committed(self, event: SaveCommitted) -> None:
        now, step = self._clock.monotonic(), self._here.step()
        spent = _Spent(
            blocked=self._blocked or 0.0,
            slowed=self._tempo.slowed(step, now),
            seconds=event.seconds,
            written=event.written,
        )
        self._saves.append(spent)
        self._blocked = None
        self._tempo.begin(step, now)
        sessions = self._sessions()  # once: the past may be read at any moment
        cadence = choose(self._measures(sessions), self._here.overhead, self._cadence)
        self._cadence, self.policy = cadence, adapt(self.policy, cadence)
        if improved(cadence, self._told):
            self._told = cadence
            self._say(_chosen(cadence, sessions.source))

    def _sessions(self) -> Sessions:
        return Sessions(usual=self._here.usual, lives=self._lives)

    def _measures(self, sessions: Sessions) -> Measures:
        here = self._here
        return Measures(
            cost=_cost(self._saves),
            session=sessions.seconds,
            carried=max(_carried(self._saves, self._speed), here.arrival(self._clock.monotonic())),
            budget=_apart(self._saves, here.budget),
            far=here.far,
            vanishes=sessions.vanishes,
        )

    def _read(self) -> None:
        try:
            self._lives = self._here.past()
        except Exception as error:  # noqa: BLE001  # a thread has no caller; told
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            text = f"The past of this run could not be read ({why}): how often it is saved goes by what is usual here."
            self._say(Noted(text=text))


def _chosen(cadence: Cadence, source: str) -> CadenceChosen:
    measures = cadence.measures
    return CadenceChosen(
        interval=cadence.seconds,
        cost=measures.cost,
        session=measures.session,
        overhead=cadence.overhead,
        reason=cadence.why,
        text=cadence.sentence(),
        source=source,
        carried=measures.carried,
    )


def _cost(saves: Sequence[_Spent]) -> float:
    """Seconds that a save costs training: waiting, and slower steps as far as these are known. A single save may be
    disturbed by anything; steps that seem quicker beside a save are noise."""
    if not saves:
        return 0.0
    stall = median(each.blocked for each in saves)
    known = [each.blocked + each.slowed for each in saves if each.slowed is not None]
    return max(stall, median(known)) if known else stall


def _carried(saves: Sequence[_Spent], speed: float | None) -> float:
    """Seconds that storage takes for a save: the background's, or those of the link where that is slower."""
    if not saves:
        return 0.0
    sending = 0.0 if speed is None else median(each.written for each in saves) / speed
    return max(median(each.seconds for each in saves), sending)


def _apart(saves: Sequence[_Spent], budget: Budget | None) -> float:
    """Seconds between two saves like these that the place's budget allows for."""
    return 0.0 if budget is None or not saves else budget.interval(round(median(each.written for each in saves)))
