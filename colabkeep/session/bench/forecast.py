"""From what was measured to what a save will cost, and how often it will be saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from colabkeep._engine.codec import encode_parts
from colabkeep.frameworks import find_framework
from colabkeep.session.bench.probing import Budget, Taken, probe
from colabkeep.session.bench.rates import Rate, copy_rate, hash_rate
from colabkeep.session.lives import Sessions
from colabkeep.stores.base import Store, sides
from colabkeep.vocabulary.budget import budget_of
from colabkeep.vocabulary.cadence import Cadence, Measures, choose
from colabkeep.vocabulary.clock import Clock

__all__ = ["Bench", "Load", "live_load", "measure"]

_NEAR = Budget(seconds=8.0, largest=64 * 2**20, in_all=400 * 2**20)
_FAR = Budget(seconds=25.0, largest=8 * 2**20, in_all=24 * 2**20)  # the link may be slow, and metered
_CAPTURES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is to be saved: its bytes, and where that figure is from. `stall`: seconds that training stood still for
    the copy, measured on live objects; None: not measured. `grows`: it will be larger, for the optimizer has no state
    before its first step."""

    bytes: int
    source: str
    stall: float | None = None
    grows: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What was measured, and what follows. In seconds: a save stops training for `stall` at most, is on this machine's
    disk after `written` (None: there is none in front), and where it ends up after `arrived` (None: that is the disk).
    `untried`: a place that nothing was put into, for it keeps what is put for good. `session_source`: from what it is
    known how long sessions live. `took`: the measuring itself."""

    copy: Rate
    hashing: Rate
    near: Taken | None
    far: Taken | None
    untried: str
    load: Load
    stall: float
    written: float | None
    arrived: float | None
    cadence: Cadence
    session_source: str
    took: float


def live_load(parts: Mapping[str, Any], clock: Clock) -> Load:
    """Capture live objects as a save does, a few times, and let go of the copies.

    Raises:
        NotStorable: something cannot be kept; the error names its path.
        UsageError: the objects are of no framework that is known.
    """
    framework = find_framework(parts.values())
    stalls, size = [], 0
    for _ in range(_CAPTURES):
        began = clock.monotonic()
        capture = framework.capture(parts)
        stalls.append(clock.monotonic() - began)
        snapshot = capture.finish()
        try:
            size = sum(pack.size for pack in encode_parts(snapshot.parts).packs)
        finally:
            snapshot.release()
    grows = any(name == "optimizer" and not getattr(part, "state", True) for name, part in parts.items())
    # The first one makes the buffers, once per session.
    return Load(bytes=size, source="these very objects", stall=median(stalls[1:]), grows=grows)


def measure(
    store: Store, load: Load, sessions: Sessions, overhead: float, clock: Clock, watch: Callable[[str], None]
) -> Bench:
    """Measure everything. `watch` is told what is being measured.

    Raises:
        StoreError: the storage took nothing.
    """
    began = clock.monotonic()
    watch("copying within memory")
    copy = copy_rate(clock)
    watch("hashing")
    hashing = hash_rate(clock)
    near, far, untried = _storage(store, clock, watch)
    stall = load.bytes / copy.median if load.stall is None else load.stall
    written = None if near is None else near.seconds(load.bytes)
    arrived = None if far is None else (written or 0.0) + far.seconds(load.bytes)
    carried = far.seconds(load.bytes) if far is not None else written
    budget = budget_of(sides(store)[-1].url)
    measures = Measures(
        cost=stall,
        session=sessions.seconds,
        carried=carried or 0.0,
        budget=0.0 if budget is None else budget.interval(load.bytes),
        far=far is not None or bool(untried),
        vanishes=sessions.vanishes,
    )
    return Bench(
        copy=copy,
        hashing=hashing,
        near=near,
        far=far,
        untried=untried,
        load=load,
        stall=stall,
        written=written,
        arrived=arrived,
        cadence=choose(measures, overhead),
        session_source=sessions.source,
        took=clock.monotonic() - began,
    )


def _storage(store: Store, clock: Clock, watch: Callable[[str], None]) -> tuple[Taken | None, Taken | None, str]:
    """The quick side on this machine's disk, and the one that lasts, as far as there are two; or its name, where
    nothing may be put into it to try it out."""
    front, *behind = sides(store)
    near = far = None
    if behind or front.properties.top_rung == "local":
        watch(f"writing to {front.url}")
        near = probe(front, clock, _NEAR)
    last = behind[-1] if behind else front
    if last.properties.versions:
        return near, None, last.url
    if behind or near is None:
        watch(f"sending to {last.url}")
        far = probe(last, clock, _FAR)
    return near, far, ""
