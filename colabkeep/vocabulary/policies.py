"""When to save and what to keep: pure decisions, composed from small ones.

A save policy answers ``due(progress, last, now)`` with a reason or None; ``a | b`` is due when either
is. A retention policy answers ``doomed(manifests)``; ``a + b`` keeps what either keeps.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from colabkeep.vocabulary.cadence import FIRST_SECONDS, FIRST_STEPS, Cadence
from colabkeep.vocabulary.durations import parse_duration
from colabkeep.vocabulary.errors import UsageError
from colabkeep.vocabulary.manifest import Manifest
from colabkeep.vocabulary.progress import Progress

__all__ = [
    "Auto",
    "EveryEpochs",
    "EveryMinutes",
    "EverySteps",
    "KeepBest",
    "KeepLast",
    "Mode",
    "Never",
    "OnNan",
    "RetentionPolicy",
    "SaveEvery",
    "SaveMark",
    "SavePolicy",
    "adapt",
    "counts_epochs_only",
    "is_auto",
    "parse_save_every",
]

Mode: TypeAlias = Literal["min", "max"]

OnNan: TypeAlias = Literal["warn", "stop"]
"""What is done when a loss is no finite number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveMark:
    """The last save (or the start of the session): where, and when in seconds of `Clock.monotonic`."""

    progress: Progress
    at: float


class SavePolicy(Protocol):
    """Decides at step boundaries and ends of epochs whether a save is due."""

    def due(self, progress: Progress, last: SaveMark, now: float) -> str | None:
        """The reason to save now, in a word or two, or None. `now` in seconds, as `SaveMark.at`."""
        ...

    def __or__(self, other: SavePolicy) -> SavePolicy: ...


class _Composable:
    __slots__ = ()

    def __or__(self: SavePolicy, other: SavePolicy) -> SavePolicy:
        return _Either(policies=(self, other))


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
    if callable(getattr(value, "due", None)):
        return value  # type: ignore[return-value]  # a policy of the user's own
    raise UsageError(
        problem=f"save_every={value!r} does not say when to save.",
        remedy='Pass a number of epochs (1), "500 steps", "10 min", "auto", or a list of these.',
    )


class RetentionPolicy(Protocol):
    """Decides which committed checkpoints may go. Sees manifests only; never the unfinished."""

    def keeps(self, manifests: Sequence[Manifest]) -> set[str]:
        """The ids to keep, of manifests in the order of their age, oldest first."""
        ...

    def doomed(self, manifests: Sequence[Manifest]) -> list[Manifest]:
        """The others."""
        ...

    @property
    def most(self) -> int | None:
        """How many it keeps at most; None where there is no limit."""
        ...

    @property
    def keeps_all(self) -> bool:
        """Does it keep every one, whatever room there is? Then nobody needs to ask it."""
        ...

    def fewer(self) -> RetentionPolicy | None:
        """The next stricter one, for a place that is too small for this one; None if this cannot be made stricter."""
        ...

    def __add__(self, other: RetentionPolicy) -> RetentionPolicy: ...


class _Keeping:
    __slots__ = ()

    def doomed(self: RetentionPolicy, manifests: Sequence[Manifest]) -> list[Manifest]:
        kept = self.keeps(manifests)
        return [manifest for manifest in manifests if manifest.id not in kept]

    def __add__(self: RetentionPolicy, other: RetentionPolicy) -> RetentionPolicy:
        return _Union(policies=(self, other))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Union(_Keeping):
    policies: tuple[RetentionPolicy, ...]

    def keeps(self, manifests: Sequence[Manifest]) -> set[str]:
        return set().union(*(policy.keeps(manifests) for policy in self.policies))

    @property
    def most(self) -> int | None:
        counts = [policy.most for policy in self.policies]
        return None if None in counts else sum(count or 0 for count in counts)

    @property
    def keeps_all(self) -> bool:
        return any(policy.keeps_all for policy in self.policies)

    def fewer(self) -> RetentionPolicy | None:
        """The member that keeps the most is made stricter first."""
        for policy in sorted(self.policies, key=lambda each: each.most or 0, reverse=True):
            stricter = policy.fewer()
            if stricter is not None:
                return _Union(policies=tuple(stricter if each is policy else each for each in self.policies))
        return None


@dataclass(frozen=True, slots=True)
class KeepLast(_Keeping):
    """The newest `n`; None keeps all, whatever room there is."""

    n: int | None

    @property
    def most(self) -> int | None:
        return self.n

    @property
    def keeps_all(self) -> bool:
        return self.n is None

    def fewer(self) -> RetentionPolicy | None:
        return KeepLast(self.n - 1) if self.n is not None and self.n > 1 else None

    def keeps(self, manifests: Sequence[Manifest]) -> set[str]:
        kept = manifests if self.n is None else manifests[max(0, len(manifests) - self.n) :]
        return {manifest.id for manifest in kept}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepBest(_Keeping):
    """The `n` best by a metric that was measured at that very step; of equals, the older ones."""

    n: int
    monitor: str
    mode: Mode

    @property
    def most(self) -> int | None:
        return self.n

    @property
    def keeps_all(self) -> bool:
        return False

    def fewer(self) -> RetentionPolicy | None:
        return KeepBest(n=self.n - 1, monitor=self.monitor, mode=self.mode) if self.n > 1 else None

    def keeps(self, manifests: Sequence[Manifest]) -> set[str]:
        return {manifest.id for manifest in self.ranked(manifests)[: self.n]}

    def ranked(self, manifests: Iterable[Manifest]) -> list[Manifest]:
        """Those that have the metric (a number, not NaN), best first."""
        sign = 1 if self.mode == "min" else -1
        measured = [m for m in manifests if not math.isnan(m.metrics.get(self.monitor, math.nan))]
        return sorted(measured, key=lambda manifest: sign * manifest.metrics[self.monitor])

    def among_best(self, value: float, values: Iterable[float]) -> bool:
        """Is `value` one of the `n` best of `values` (which include it)?"""
        sign = 1 if self.mode == "min" else -1
        better = sum(1 for other in values if sign * other < sign * value)
        return not math.isnan(value) and better < self.n
