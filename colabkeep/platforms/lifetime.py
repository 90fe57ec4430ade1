"""How long this session has lasted, and how long it can last at most.

No service tells a program how much time is left (googlecolab/colabtools issue 676, asked in 2019, never answered). What
can be seen is how old the machine is, and that from inside a container is not always its own age: /proc/uptime may be
the host's. So several witnesses are asked, what cannot be true is left out, and the rest is "at least".
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import NamedTuple

from colabkeep.core.arguments import parse_duration, read_duration
from colabkeep.core.system import Environment
from colabkeep.platforms.base import Confidence, Platform, SessionLimits

_VARIABLE = "COLABKEEP_SESSION_LIMIT"
_OLDEST = 26 * 3600.0  # seconds; the longest session of any service is 24 h, so what is older is another machine's
_TICK = 1 / 100  # seconds; USER_HZ of Linux on x86-64 and arm64, in which /proc/<pid>/stat counts (proc(5))
_SURENESS: tuple[Confidence, ...] = ("low", "medium", "high")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionTime:
    """Seconds, None where unknown. `used_seconds`: at least so many. `limit_seconds`: of the whole session.
    `left_seconds`: at most so many. `source`: where the figures come from, in a sentence for the user. `idle_seconds`:
    after so long without anybody at the page it ends earlier; `idle_confidence` is of that figure alone. `usual`: how
    long sessions really live, by what users report; "" where nobody does, or the user said how long this one does."""

    used_seconds: float | None
    limit_seconds: float | None
    left_seconds: float | None
    confidence: Confidence
    source: str
    idle_seconds: float | None = None
    idle_confidence: Confidence = "low"
    usual: str = ""


class _Limit(NamedTuple):
    """How long a session lasts at most, in seconds; `by_user`: the user said so."""

    seconds: float | None
    source: str
    confidence: Confidence
    by_user: bool = False


class _Age(NamedTuple):
    """How long something has existed, in seconds; NaN for what cannot be told."""

    seconds: float
    what: str
    confidence: Confidence


def session_time(
    platform: Platform, environment: Environment, now: float, *, limit: float | None = None
) -> SessionTime:
    """The time of this session as things stand. `now`: seconds since 1970, UTC.

    `limit`: the user's own figure, in seconds; without it the variable COLABKEEP_SESSION_LIMIT ("24 h"), and
    without that what is known of the platform.

    Raises:
        UsageError: `limit` is not a duration. (A variable that is not one is only mentioned in `source`.)
    """
    limits, job = platform.limits(environment), _slurm(environment)
    most = _limit(limits, environment, job, limit)
    age = _age(environment, most) if job is None else _Age(max(0.0, now - job[0]), "since Slurm started it", "high")
    used = None if age is None else age.seconds
    confidence = min("low" if age is None else age.confidence, most.confidence, key=_SURENESS.index)
    source = [
        f"Limit: {most.source}." if most.seconds is not None else f"No limit is known: {most.source}.",
        "Time used: not known." if age is None else f"Time used: {age.what}, so at least that.",
    ]
    left = None if most.seconds is None else max(0.0, most.seconds - (used or 0.0))
    if left == 0.0 and not most.by_user:
        # A session that lives has not reached its limit. Nobody's training is stopped by a figure that is wrong.
        left, confidence = None, "low"
        source.append(f'One of the two must be wrong; say how long a session lasts with {_VARIABLE}="24 h".')
    usual = "" if most.by_user else limits.usual_source
    if usual:
        source.append(f"Often it is less: {usual}.")
    return SessionTime(
        usual=usual,
        used_seconds=used,
        limit_seconds=most.seconds,
        left_seconds=left,
        confidence=confidence,
        source=" ".join(source),
        idle_seconds=limits.idle_seconds,
        idle_confidence=limits.idle_confidence,
    )


def _limit(
    limits: SessionLimits, environment: Environment, job: tuple[float, float] | None, limit: float | None
) -> _Limit:
    if limit is not None:
        return _Limit(read_duration("limit", limit), "as you said", "high", by_user=True)
    told = environment.environ.get(_VARIABLE, "").strip()
    if (seconds := parse_duration(told)) is not None:
        return _Limit(seconds, f"as {_VARIABLE} says", "high", by_user=True)
    if job is not None:
        return _Limit(job[1] - job[0], "Slurm's end of this job (SLURM_JOB_END_TIME)", "high")
    ignored = f' ({_VARIABLE}={told[:40]!a} is not a duration and is ignored: write "24 h")' if told else ""
    return _Limit(limits.max_seconds, f"{limits.source}{ignored}", limits.confidence)


def _slurm(environment: Environment) -> tuple[float, float] | None:
    """Start and end of the job, in seconds since 1970, as Slurm tells its programs (sbatch(1), output environment
    variables); None where this is no job of Slurm's, or one without an end."""
    told = [environment.environ.get(f"SLURM_JOB_{name}_TIME", "") for name in ("START", "END")]
    if not environment.environ.get("SLURM_JOB_ID") or not all(re.fullmatch(r"[0-9]{9,11}", each) for each in told):
        return None
    start, end = map(float, told)
    return (start, end) if start < end else None


def _age(environment: Environment, most: _Limit) -> _Age | None:
    """How long the machine has been ours at least; None where nothing believable tells it."""
    booted = _number(environment.text("/proc/uptime", 200).split(), 0)
    first, own = (booted - _start(environment, process) for process in ("1", "self"))
    ages = (
        _Age(own, "the age of this process", "low"),
        # In a container this is the container's age whether or not the uptime is the host's: both count from there.
        _Age(first, "the age of the machine's first process", "medium"),
        _Age(booted, "the uptime, which may be another machine's", "low"),
    )
    if most.seconds is not None and not most.by_user:
        # A session that lives has not outlived the service's limit, so what is older is likely the host's.
        younger = _believed(ages, math.nextafter(most.seconds, 0.0))
        if younger is not None:
            return younger
    return _believed(ages, _OLDEST)


def _believed(ages: tuple[_Age, ...], oldest: float) -> _Age | None:
    """Of what is no older than `oldest` seconds, the best witness that is not younger than this process."""
    own, *machine = ages
    believable = [age for age in machine if 0.0 <= age.seconds <= oldest]
    if believable and believable[0].seconds >= own.seconds:
        return believable[0]
    return own if 0.0 <= own.seconds <= oldest else next(iter(believable), None)


def _start(environment: Environment, process: str) -> float:
    """When a process started, in seconds after the boot."""
    # The name of the program, in brackets, may hold anything; the 22nd field is the 20th after it (proc(5)).
    fields = environment.text(f"/proc/{process}/stat", 4096).rpartition(")")[2].split()
    return _number(fields, 19) * _TICK


def _number(fields: list[str], position: int) -> float:
    """The number at a position; NaN if there is none. Neither NaN nor infinity is in any range that is asked for."""
    try:
        return float(fields[position])
    except (IndexError, ValueError):
        return math.nan
