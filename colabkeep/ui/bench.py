"""`colabkeep bench`: what saving costs on this machine and with this storage, measured in less than a minute; a
table, HTML, and a record for machines.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, TextIO

from colabkeep.checkpoint.codec import encode_parts
from colabkeep.checkpoint.inspect import checkpoints, find_run
from colabkeep.checkpoint.repository import Repository
from colabkeep.core.arguments import duration_text, public, read_size
from colabkeep.core.errors import CheckpointNotFound, StoreError, UsageError
from colabkeep.core.language import said
from colabkeep.core.policies import OVERHEAD, Cadence, Measures, SessionLifetime, choose, cost_text, read_overhead
from colabkeep.core.rate_limits import budget_of
from colabkeep.core.system import Clock, Environment, SystemClock
from colabkeep.frameworks import find_framework
from colabkeep.platforms import find_platform
from colabkeep.session.machine import usual_lifetime
from colabkeep.session.open import find_store, state_parts
from colabkeep.session.scheduler import Sessions, earlier_lifetimes
from colabkeep.stores import Storage
from colabkeep.stores.base import BytesSource, Store, sides
from colabkeep.ui.drawing import Markup, join, paragraph, table
from colabkeep.ui.terminal import MovingLine
from colabkeep.ui.text import Record, Report, aligned, plain, size_text

_SIZE = "500MB"


@public()
def bench(
    model: Any = None,
    optimizer: Any = None,
    *,
    state: Mapping[str, Any] | None = None,
    run_name: str | None = None,
    size: Any = None,
    storage: Storage = "auto",
    overhead: float = OVERHEAD,
) -> BenchReport:
    """Measure, in less than a minute, what saves cost on this machine with this storage, and how often that lets
    `save_every="auto"` save.

    Probe objects (up to 400 MiB in all on this machine's disk, 24 MiB over a network) are put into the storage and
    deleted again; nothing else is touched. (A folder that does not exist yet is made for them.)

    Args:
        model, optimizer, state: what is to be saved, as in `Run`; best after a first step, for an optimizer has no
            state before. Without any of them:
        run_name: as much as the newest checkpoint of that run; or
        size: so many bytes: "500MB" (the default), "1.5 GiB", a number.
        storage: where it is to be kept, as in `resumable_fit`.
        overhead: the share of training time that saves may cost.

    Returns:
        BenchReport: shown as the last line of a cell; ``print`` it elsewhere; ``to_dict()`` for programs.

    Raises:
        UsageError: an argument is invalid.
        NotStorable: something in these objects cannot be kept.
        CheckpointNotFound: there is no such run, or it has no checkpoint.
        StoreError: the storage takes nothing.
    """
    parts = {"model": model, "optimizer": optimizer, **state_parts(state)}
    live = {name: part for name, part in parts.items() if part is not None}
    if sum((bool(live), run_name is not None, size is not None)) > 1:
        raise UsageError(
            problem="What is to be saved is said twice.", remedy="Pass objects, or run_name=…, or size=…, one of them."
        )
    return bench_saves(live, run_name, size, storage, overhead, sys.stdout)


def bench_saves(
    live: Mapping[str, Any], run: str | None, size: Any, storage: Any, overhead: float, stream: TextIO | None
) -> BenchReport:
    """As `bench`: of `live` objects, if there are any, else of a run, else of a size. Progress goes to `stream`."""
    overhead = read_overhead(overhead)
    clock, moving = SystemClock(), None if stream is None else MovingLine(stream)

    def watch(doing: str) -> None:
        if moving is not None:
            moving.show(said(f"measuring: {plain(doing, limit=100)} …"))

    load = None
    if size is not None:
        load = Load(bytes=read_size("size", size), source="as you said")
    elif run is None:
        load = Load(bytes=read_size("size", _SIZE), source="an example: say how large yours is, or name its run")
    if live:
        watch("copying these objects")
        load = live_load(live, clock)
    store = find_store(storage)
    try:
        platform, lives = find_platform(Environment.here()), tuple[SessionLifetime, ...]()
        if load is None:
            watch(f"looking at {run}")
            repository = find_run(store, str(run))
            lives, load = earlier_lifetimes(repository, "", platform.name), _newest(repository)
        sessions = Sessions(usual=usual_lifetime(platform.limits(Environment.here())), lives=lives)
        return measure(store, load, sessions, overhead, clock, watch)
    finally:
        if moving is not None:
            moving.end()
        if store is not storage:
            store.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is to be saved: its bytes, and where that figure is from. `stall`: seconds that training stood still for
    the copy, measured on live objects; None: not measured. `grows`: it will be larger, for the optimizer has no state
    before its first step."""

    bytes: int
    source: str
    stall: float | None = None
    grows: bool = False


def _newest(repository: Repository) -> Load:
    for info in checkpoints(repository):
        if info.bytes is not None:
            return Load(bytes=info.bytes, source=f"as checkpoint {info.id}")
    raise CheckpointNotFound(
        problem=f"The run {repository.run!r} has no checkpoint to measure by.", remedy='Say how large: size="500MB".'
    )


_CAPTURES = 5


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


# -- this machine --------------------------------------------------------------------------------------

_PIECE = 64 * 2**20  # bytes; more than the caches of the machines that notebooks get
_SECONDS = 1.0  # for each measurement
_CHUNK = 2**20  # bytes that are hashed at once, as a save does


def copy_rate(clock: Clock) -> float:
    """Bytes a second, copied within memory into a buffer that was used before, on one thread."""
    source, target = bytes(_PIECE), bytearray(_PIECE)
    return _rate(clock, lambda: target.__setitem__(slice(None), source))


def hash_rate(clock: Clock) -> float:
    """Bytes a second, by SHA-256, which names every file of a checkpoint."""
    data = memoryview(bytes(_PIECE))

    def once() -> None:
        digest = hashlib.sha256()
        for begin in range(0, len(data), _CHUNK):
            digest.update(data[begin : begin + _CHUNK])

    return _rate(clock, once)


def _rate(clock: Clock, once: Callable[[], None]) -> float:
    once()  # warm: pages are there, and the processor is awake
    taken: list[float] = []
    while len(taken) < 3 or sum(taken) < _SECONDS:
        began = clock.monotonic()
        once()
        taken.append(clock.monotonic() - began)
    return _PIECE / max(median(taken), 1e-9)


# -- the storage ---------------------------------------------------------------------------------------

PROBE = "colabkeep-bench-"
"""What the names of probe objects begin with: whoever finds one, after the power went, may delete it."""

_DELETED = 5.0  # seconds for a deletion to reach the remote side of a store that has two
_PAUSE = 0.25  # seconds between two questions whether it has arrived
_KIB, _MIB = 2**10, 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What probing may take: objects of these sizes, as many as fit into so many seconds."""

    seconds: float
    sizes: tuple[int, ...]


_ON_DISK = Budget(seconds=8.0, sizes=(64 * _KIB, _MIB, 16 * _MIB, 64 * _MIB, 64 * _MIB, 64 * _MIB))
_OVER_A_NETWORK = Budget(seconds=25.0, sizes=(64 * _KIB, 512 * _KIB, 8 * _MIB, 8 * _MIB))  # may be slow, and metered


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What a storage took: `rate` in bytes a second, and `each`, the seconds that an object takes besides.
    `confirmed`: all that was put became as durable as it can here while it was waited for. `free_bytes`: the room
    there is, None where that is not known; `disk`: it is on this machine's disk. `left`: the probes that could not be
    deleted."""

    url: str
    rate: float
    each: float
    level: str
    confirmed: bool
    bytes: int
    free_bytes: int | None = None
    disk: bool = False
    left: tuple[str, ...] = ()

    def seconds(self, size: int) -> float:
        """How long so many bytes take, in one piece."""
        return self.each + size / self.rate


def probe(store: Store, clock: Clock, budget: Budget) -> Taken:
    """Put objects of growing size while the budget lasts, at least one, and delete them, also when interrupted. No more
    than half of the free room is used.

    Raises:
        StoreError: it took nothing.
    """
    properties, end = store.properties, clock.monotonic() + budget.seconds
    top, free = properties.top_level, properties.free_bytes
    confirmed, level = True, "local"
    taken: list[tuple[int, float]] = []
    names: list[str] = []
    left: list[str] = []
    try:
        for size in budget.sizes:
            full = free is not None and sum(each for each, _ in taken) + size > free // 2
            forecast = size / taken[-1][0] * taken[-1][1] if taken else 0.0
            if taken and (full or clock.monotonic() + forecast > end):
                break
            names.append(f"{PROBE}{secrets.token_hex(6)}")
            source, began = BytesSource(os.urandom(size)), clock.monotonic()  # bytes that nobody on the way has already
            receipt = store.put(names[-1], source)
            while receipt.level != top and clock.monotonic() + _PAUSE < end:
                clock.sleep(_PAUSE)
                receipt = store.confirm(receipt)
            taken.append((size, clock.monotonic() - began))
            level, confirmed = receipt.level, confirmed and receipt.level == top
    finally:
        for name in names:
            try:
                store.delete(name)
            except StoreError:
                left.append(name)
        if properties.behind is not None:
            store.flush(_DELETED)
    rate, each = _line(taken)
    return Taken(
        url=store.url,
        rate=rate,
        each=each,
        level=level,
        confirmed=confirmed,
        bytes=sum(size for size, _ in taken),
        free_bytes=free,
        disk=properties.folder is not None,
        left=tuple(left),
    )


def _line(taken: list[tuple[int, float]]) -> tuple[float, float]:
    """Bytes a second, and the seconds that an object takes besides, from the smallest and the largest objects."""
    (small, least), size = taken[0], taken[-1][0]
    most = median(seconds for each, seconds in taken if each == size)
    if size == small or most <= least:  # noise hides the bytes, or there was no time for more of them
        return size / max(most, 1e-9), 0.0
    rate = (size - small) / (most - least)
    return rate, max(0.0, least - small / rate)


# -- both together -------------------------------------------------------------------------------------


def measure(
    store: Store, load: Load, sessions: Sessions, overhead: float, clock: Clock, watch: Callable[[str], None]
) -> BenchReport:
    """Measure everything. `watch` is told what is being measured.

    Raises:
        StoreError: the storage took nothing.
    """
    began = clock.monotonic()
    watch("copying within memory")
    copy = copy_rate(clock)
    watch("hashing")
    hashing = hash_rate(clock)
    local, *remote = sides(store)
    near = far = None
    if remote or local.properties.top_level == "local":
        watch(f"writing to {local.url}")
        near = probe(local, clock, _ON_DISK)
    last = remote[-1] if remote else local
    untried = last.url if last.properties.versions else ""
    if not untried and (remote or near is None):
        watch(f"sending to {last.url}")
        far = probe(last, clock, _OVER_A_NETWORK)
    stall = load.bytes / copy if load.stall is None else load.stall
    written = None if near is None else near.seconds(load.bytes)
    carried = written if far is None else far.seconds(load.bytes)
    budget = budget_of(last.url)
    measures = Measures(
        cost=stall,
        session=sessions.seconds,
        carried=carried or 0.0,
        budget=0.0 if budget is None else budget.interval(load.bytes),
        far=far is not None or bool(untried),
        vanishes=sessions.vanishes,
    )
    return BenchReport(
        copy=copy,
        hashing=hashing,
        near=near,
        far=far,
        untried=untried,
        load=load,
        stall=stall,
        written=written,
        arrived=None if far is None else (written or 0.0) + far.seconds(load.bytes),
        cadence=choose(measures, overhead),
        session_source=sessions.source,
        took=clock.monotonic() - began,
    )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BenchReport(Report):
    """What `colabkeep.bench()` returns: what was measured, and what follows.

    `copy`, `hashing`: bytes a second. In seconds: a save pauses training for `stall` at most, is on this machine's
    disk after `written` (None: it is not written there), and in the remote storage after `arrived` (None: there is
    none). `untried`: a place that nothing was put into, for it keeps what is put for good. `session_source`: from what
    it is known how long sessions last. `took`: the measuring itself."""

    copy: float
    hashing: float
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

    def lines(self) -> Iterator[str]:
        """The result as lines of text."""
        yield self._title()
        yield from aligned([_HEAD, *self._rows()], right=(1,))
        yield from ("", *self._sentences())

    def to_dict(self) -> Record:
        """The result for programs: rates in bytes per second, times in seconds, sizes in bytes."""
        return asdict(self)

    def _repr_html_(self) -> Markup:
        found = table(self._title(), _HEAD, self._rows(), right=(1,))
        return join(found, *map(paragraph, self._sentences()))

    def _title(self) -> str:
        return f"What saving costs here, measured in {self.took:.0f} s"

    def _rows(self) -> Iterator[tuple[str, ...]]:
        yield ("memory copy", size_text(round(self.copy)), "on one thread")
        yield ("SHA-256", size_text(round(self.hashing)), "on one thread")
        if self.near is not None:
            how = "hashed, with fsync," if self.near.disk else "hashed,"
            yield ("write", size_text(round(self.near.rate)), f"{how} to {plain(self.near.url, limit=80)}")
        if self.far is not None:
            how = "not confirmed in that time, to"
            if self.far.confirmed:
                how = f"until {self.far.level}, {_fine(self.far.each)} for a small object, to"
            yield ("send", size_text(round(self.far.rate)), f"{how} {plain(self.far.url, limit=80)}")

    def _sentences(self) -> Iterator[str]:
        load = self.load
        steps = [f"pauses training for {_fine(self.stall)}{' at most' if load.stall is None else ''}"]
        if self.near is not None and self.written is not None:
            where = "on this machine's disk" if self.near.disk else "in this process's memory"
            steps.append(f"is {where} after {_fine(self.written)}")
        if self.far is not None and self.arrived is not None:
            what = "in the remote storage" if self.far.confirmed else "sent"
            steps.append(f"is {what} after {_fine(self.arrived)}")
        yield f"A save of {size_text(load.bytes)} ({load.source}) {', '.join(steps)}."
        if load.grows:
            yield "The optimizer has no state yet: after its first step a save is larger (with Adam, three models)."
        chosen = self.cadence.sentence()
        yield f"{chosen[0].upper()}{chosen[1:]}."
        yield "A training measures this again, and adapts the interval to what it finds."
        yield f"Sessions: {self.session_source}."
        if self.untried:
            yield f"Nothing was put into {plain(self.untried)} to try it: each version that is made there stays."
        for taken in (self.near, self.far):
            if taken is not None and taken.free_bytes is not None and taken.free_bytes < load.bytes:
                room = f"only {size_text(taken.free_bytes)} are free in {plain(taken.url)}"
                yield f"SUCH A SAVE DOES NOT FIT: {room}. Make room there, or choose another storage."
            if taken is not None and taken.left:
                yield f"Could not be deleted in {plain(taken.url)}; delete them by hand: {', '.join(taken.left)}"


_HEAD = ("", "a second", "how")


def _fine(seconds: float) -> str:
    return cost_text(seconds) if seconds < 10 else duration_text(seconds)
