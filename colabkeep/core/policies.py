"""When to save and what to keep: pure decisions, composed from small ones; and the interval that loses the least
time, from what was measured.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeAlias

from colabkeep.core.arguments import interval_text, parse_duration, span_text
from colabkeep.core.errors import UsageError
from colabkeep.core.manifest import Progress

# A save costs training some seconds, and a machine that vanishes takes half an interval with it on average. With `cost`
# seconds for a save and `session` seconds between two disconnects, ``cost / T + T / (2 * session)`` is the share of
# time that is lost at an interval of T seconds, and is least at ``T = sqrt(2 * cost * session)`` (J. W. Young,
# Communications of the ACM 17(9), 1974; J. T. Daly, Future Generation Computer Systems 22(3), 2006, whose corrections
# matter only where a save takes a good part of a session).
#
# Around that are bounds: `overhead`, the share of time that saves may cost; what storage takes, for a save that is
# overtaken by the next is of no use; and a floor and a ceiling.


OVERHEAD = 0.01
"""The share of time that saves may cost, unless the user says another."""

FIRST_SECONDS, FIRST_STEPS = 120.0, 20
"""The first save of a session comes after so many seconds or so many steps, whichever is sooner: early enough that a
storage that does not work is seen while somebody still looks, and after the first steps, which are slower than others
(compiling, choosing kernels, making the optimizer's state)."""

_FLOOR = 15.0  # seconds; each save leaves some small files, and half of this is all that sooner ones could win
_FLOOR_FAR = 60.0  # where each of these files is a request to a service that counts requests
_CEILING = 600.0  # on machines that vanish: what is measured may be wrong, and this is all that it can cost
_LONGEST = 1800.0  # on others; and on all, where a save costs so much that more would exceed the overhead
_HEADROOM = 1.25  # links are slower at times
_SHORTEST = 600.0  # seconds; a mean session is not taken to be shorter, whatever a few bad starts say
_BOUND = 2.0  # the interval changes by so much at most from save to save
_STEADY = 4 / 3  # and by less than this not at all
_ATTRACTS = 2 / 3  # of an interval: the end of an epoch that comes after so much of it takes the save

Why: TypeAlias = Literal["loss", "overhead", "storage", "budget", "floor", "ceiling"]
"""What decided: the least loss, or the bound that moved it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLifetime:
    """An earlier session: how many `seconds` it is known to have lived, and whether it vanished without a goodbye."""

    seconds: float
    vanished: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """What is chosen from, in seconds. `cost`: what a save costs training; `session`: the mean time between two
    disconnects; `carried`: how long storage takes for a save, in the background. `budget`: how far apart saves are at
    least so that the place never refuses one. `far`: a save goes over a network. `vanishes`: machines of this kind
    do."""

    cost: float
    session: float
    carried: float = 0.0
    budget: float = 0.0
    far: bool = False
    vanishes: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Cadence:
    """A save every `seconds`. `least`: the seconds that lie between two saves at least, also where the end of an epoch
    takes one that is nearly due. `overhead`: the share of time that saves may cost; `why`: what decided."""

    seconds: float
    least: float
    why: Why
    overhead: float
    measures: Measures

    @property
    def epoch_seconds(self) -> float:
        """So many seconds after a save, the end of an epoch takes the next one: it is as good there as it is later."""
        return min(self.seconds, max(self.least, _ATTRACTS * self.seconds))

    def sentence(self) -> str:
        """What was chosen and from what, for people."""
        measures, then = self.measures, self._then()
        every, cost, session = interval_text(self.seconds), cost_text(measures.cost), span_text(measures.session)
        if measures.carried >= 1.0:
            return (
                f"saving every {every}: a save costs {cost} here, assuming sessions of about {session}, storage takes "
                f"one per {span_text(measures.carried)}{then}"
            )
        return f"saving every {every}: a save costs {cost} here, assuming sessions of about {session}{then}"

    def _then(self) -> str:
        """What moved the choice, or what it means, where that is worth a word."""
        spent = self.measures.cost / self.seconds
        if spent > self.overhead * 1.05:
            share = f"{100 * spent:.2g}"
            if self.why == "ceiling":
                return f"; that is {share} % of the time, but a longer interval would risk too much"
            return f"; that is {share} % of the time, and becomes less"
        if self.measures.carried > self.seconds:
            return "; uploads are slower than saves, so the newest waiting checkpoint is uploaded next"
        if self.why == "overhead":
            return f"; more often would cost more than {100 * self.overhead:.3g} % of the time (overhead=…)"
        if self.why == "storage":
            return "; saves come no faster than the storage can take them"
        if self.why == "budget":
            return "; the service limits how often you can save (colabkeep doctor --storage=… shows the limits)"
        return ""


def choose(measures: Measures, overhead: float = OVERHEAD, before: Cadence | None = None) -> Cadence:
    """The cadence to go on with. `before`: the one so far, from which it departs in bounded steps, and not for
    trifles."""
    floor = max(_FLOOR_FAR if measures.far else _FLOOR, measures.budget)
    affordable, carried = measures.cost / overhead, measures.carried * _HEADROOM
    longest = max(_LONGEST, measures.budget)
    ceiling = min(longest, max(_ceiling(measures), affordable, measures.budget))
    bounds: list[tuple[float, Why]] = [
        (math.sqrt(2.0 * measures.cost * measures.session), "loss"),
        (floor, "budget" if floor == measures.budget else "floor"),
        (affordable, "overhead"),
        (carried, "storage"),
    ]
    best, why = max(bounds, key=lambda bound: bound[0])
    if best > ceiling:
        best, why = ceiling, "overhead" if ceiling == affordable else "ceiling"
    seconds = min(longest, _neat(best))
    if before is not None:
        if 1 / _STEADY < seconds / before.seconds < _STEADY:
            seconds = before.seconds
        seconds = min(max(seconds, floor, before.seconds / _BOUND), longest, max(floor, before.seconds * _BOUND))
    return Cadence(
        seconds=seconds,
        least=min(seconds, max(floor, affordable, carried)),
        why=why,
        overhead=overhead,
        measures=measures,
    )


def mean_session(usual: float, lives: Sequence[SessionLifetime]) -> float:
    """The mean time between two disconnects, in seconds: all time that was lived, by the number of disconnects. What
    is `usual` on such a machine counts as one session that vanished, so that nothing is concluded from nothing."""
    lived = usual + sum(life.seconds for life in lives)
    return max(_SHORTEST, lived / (1 + sum(life.vanished for life in lives)))


def read_overhead(value: object) -> float:
    """The argument `overhead`.

    Raises:
        UsageError: it is no share that saves could be kept to.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 0.5:
        return float(value)
    raise UsageError(
        problem=f"overhead={value!r} is not a valid share of the time.",
        remedy="Pass 0.01 for 1 % (the default), at most 0.5; or say yourself when to save: save_every=…",
    )


def cost_text(seconds: float) -> str:
    """Seconds as people say what a save costs: "1.3 s", "0.4 s", "20 ms", "less than 1 ms"."""
    if seconds < 0.0005:
        return "less than 1 ms"
    if seconds < 0.0995:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds >= 0.95 else f"{seconds:.2g} s"


def improved(cadence: Cadence, told: Cadence | None) -> bool:
    """Is it so different from what the user was `told` that it is to be told again?"""
    if told is None:
        return True
    return not 1 / _BOUND < cadence.seconds / told.seconds < _BOUND


def unmeasured(measures: Measures, overhead: float) -> Cadence:
    """The cadence while the first save of a session is on its way: nothing is known, so nothing is hurried."""
    calm, ceiling = replace(measures, carried=0.0), _ceiling(measures)
    return Cadence(seconds=ceiling, least=ceiling, why="ceiling", overhead=overhead, measures=calm)


def _ceiling(measures: Measures) -> float:
    return _CEILING if measures.vanishes else _LONGEST


def _neat(seconds: float) -> float:
    """A round number, not less: 45 s, 1 min 40 s, 4 min 30 s."""
    unit = 5 if seconds <= 60 else 10 if seconds <= 300 else 30
    return float(unit * math.ceil(seconds / unit - 1e-9))


# A save policy answers ``due(progress, last, now)`` with a reason or None; ``a | b`` is due when either is. A retention
# policy answers ``doomed(manifests)``; ``a + b`` keeps what either keeps.


Mode: TypeAlias = Literal["min", "max"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveMark:
    """The last save (or the start of the session): where, and when in seconds of `Clock.monotonic`."""

    progress: Progress
    at: float


class SavePolicy(Protocol):
    """Decides at step boundaries and ends of epochs whether a save is due. A policy of the user's own needs this method
    and no more; it composes by ``|`` with the policies below, on either side of them."""

    def due(self, progress: Progress, last: SaveMark, now: float) -> str | None:
        """The reason to save now, in a word or two, or None. `now` in seconds, as `SaveMark.at`."""
        ...


class _Composable:
    __slots__ = ()

    def __or__(self: SavePolicy, other: SavePolicy) -> SavePolicy:
        return _Either(policies=(self, other)) if _is_policy(other) else NotImplemented

    def __ror__(self: SavePolicy, other: SavePolicy) -> SavePolicy:
        return _Either(policies=(other, self)) if _is_policy(other) else NotImplemented


def _is_policy(value: object) -> bool:
    return callable(getattr(value, "due", None))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Either(_Composable):
    policies: tuple[SavePolicy, ...]

    def due(self, progress: Progress, last: SaveMark, now: float) -> str | None:
        for policy in self.policies:
            reason = policy.due(progress, last, now)
            if reason is not None:
                return reason
        return None


@dataclass(frozen=True, slots=True)
class Never(_Composable):
    """Only when asked, and at the end."""

    def due(self, progress: Progress, last: SaveMark, now: float) -> str | None:
        return None


@dataclass(frozen=True, slots=True)
class EveryEpochs(_Composable):
    """At the end of every `n`-th epoch."""

    n: int

    def due(self, progress: Progress, last: SaveMark, now: float) -> str | None:
        if progress.batches or progress.epoch % self.n or progress.epoch == 0:
            return None
        at_mark = last.progress.epoch == progress.epoch and not last.progress.batches
        return None if at_mark else "epoch"


@dataclass(frozen=True, slots=True)
class EverySteps(_Composable):
    """When the count of optimizer steps has passed a multiple of `n`."""

    n: int

    def due(self, progress: Progress, last: SaveMark, now: float) -> str | None:
        return "steps" if progress.step // self.n > last.progress.step // self.n else None


@dataclass(frozen=True, slots=True)
class EveryMinutes(_Composable):
    """When that many minutes have passed since the last save."""

    minutes: float

    def due(self, progress: Progress, last: SaveMark, now: float) -> str | None:
        return "minutes" if now - last.at >= self.minutes * 60 and progress != last.progress else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Auto(_Composable):
    """As often as `cadence` says, from what was measured; the end of an epoch takes a save that is nearly due. Without
    one, before the first save of a session: soon, to prove that saving works here."""

    cadence: Cadence | None = None

    def due(self, progress: Progress, last: SaveMark, now: float) -> str | None:
        since, cadence = now - last.at, self.cadence
        if cadence is None:
            soon = since >= FIRST_SECONDS or progress.step - last.progress.step >= FIRST_STEPS
            return "first" if soon and progress != last.progress else None
        if since >= cadence.seconds:
            return "auto" if progress != last.progress else None
        ended = not progress.batches and progress.epoch > last.progress.epoch
        return "epoch" if ended and since >= cadence.epoch_seconds else None


def steps_until_due(policy: SavePolicy, progress: Progress, last: SaveMark, now: float, most: int) -> int:
    """After how many more steps of this epoch `policy` may be due at the earliest if no time passes, `most` if not
    sooner. A policy of the user's own may be due at each."""
    if not _is_ours(policy):
        return 1
    ahead = (progress._replace(step=progress.step + n, batches=progress.batches + n) for n in range(1, most))
    return next((n for n, each in enumerate(ahead, 1) if policy.due(each, last, now) is not None), most)


def _is_ours(policy: SavePolicy) -> bool:
    ours = (Never, EveryEpochs, EverySteps, EveryMinutes, Auto)
    return all(map(_is_ours, policy.policies)) if isinstance(policy, _Either) else type(policy) in ours


def is_auto(policy: SavePolicy) -> bool:
    """Does colabkeep choose the cadence, at least among others?"""
    return isinstance(policy, Auto) or (isinstance(policy, _Either) and any(map(is_auto, policy.policies)))


def counts_epochs_only(policy: SavePolicy) -> bool:
    """Is it never due in a loop that has no epochs?"""
    members = policy.policies if isinstance(policy, _Either) else (policy,)
    return all(isinstance(member, EveryEpochs) for member in members)


def adapt(policy: SavePolicy, cadence: Cadence) -> SavePolicy:
    """The policy with another cadence where colabkeep chooses it; what the user said stays as it is."""
    if isinstance(policy, Auto):
        return Auto(cadence=cadence)
    if isinstance(policy, _Either):
        return _Either(policies=tuple(adapt(member, cadence) for member in policy.policies))
    return policy


_COUNTED = re.compile(r"(\d+)\s*(step|epoch)s?")


SaveEvery: TypeAlias = int | str | SavePolicy | Sequence[int | str | SavePolicy] | None
"""When to save, as `parse_save_every` reads it."""


def parse_save_every(value: object) -> SavePolicy:
    """Turn the argument `save_every` into a policy.

    A bare integer counts epochs; "500 steps", "2 epochs", "10 min", "1 h", "30 sec" say their unit; "auto"
    is `Auto`, which measures; a list is due when any of its members is; a policy object stays itself; None is `Never`.

    Raises:
        UsageError: none of these.
    """
    if value is None:
        return Never()
    if value == "auto":
        return Auto()
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return EveryEpochs(value)
    if isinstance(value, str):
        counted = _COUNTED.fullmatch(value.strip().lower())
        if counted and int(counted[1]):
            return EverySteps(int(counted[1])) if counted[2] == "step" else EveryEpochs(int(counted[1]))
        seconds = parse_duration(value)
        if seconds is not None:
            return EveryMinutes(seconds / 60)
    if isinstance(value, (list, tuple)) and value:
        return _Either(policies=tuple(parse_save_every(member) for member in value))
    if _is_policy(value):
        return value  # type: ignore[return-value]  # a policy of the user's own
    raise UsageError(
        problem=f"save_every={value!r} does not say when to save.",
        remedy='Pass a number of epochs (1), "500 steps", "10 min", "auto", or a list of these.',
    )
