"""`colabkeep bench`: what saving costs on this machine and with this storage, measured in less than a minute; a
table, HTML, and a record for machines.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from html import escape
from statistics import median
from typing import Any, TextIO

from colabkeep.checkpoint.codec import encode_parts
from colabkeep.checkpoint.inspect import checkpoints, find_run
from colabkeep.checkpoint.repository import Repository
from colabkeep.core.arguments import door, duration_text, read_size
from colabkeep.core.errors import CheckpointNotFound, StoreError, UsageError
from colabkeep.core.policies import OVERHEAD, Cadence, Measures, SessionLifetime, choose, cost_text, read_overhead
from colabkeep.core.rate_limits import budget_of
from colabkeep.core.system import Clock, Environment, SystemClock
from colabkeep.frameworks import find_framework
from colabkeep.platforms import find_platform
from colabkeep.session.machine import Sessions, earlier_lifetimes, usual_lifetime
from colabkeep.session.wiring import find_store, state_parts
from colabkeep.stores import Storage
from colabkeep.stores.base import BytesSource, Receipt, Store, sides
from colabkeep.ui.text import Record, aligned, html_table, plain, size_text

__all__ = [
    "PROBE",
    "Bench",
    "BenchReport",
    "Budget",
    "Load",
    "Rate",
    "Taken",
    "Watch",
    "bench",
    "bench_command",
    "copy_rate",
    "hash_rate",
    "live_load",
    "measure",
    "probe",
    "rate_of",
]

_PIECE = 64 * 2**20  # bytes; more than the caches of the machines that notebooks get
_SECONDS = 2.0  # for each measurement
_RUNS = (3, 15)  # at least, at most
_CHUNK = 2**20  # bytes that are hashed at once, as a save does


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Bytes per second: the median of `runs`, with the slowest and the fastest, for pieces of `piece` bytes."""

    median: float
    slowest: float
    fastest: float
    runs: int
    piece: int


def rate_of(piece: int, seconds: Sequence[float]) -> Rate:
    """From the seconds that each run took for a piece."""
    rates = [piece / max(each, 1e-9) for each in seconds]
    return Rate(median=median(rates), slowest=min(rates), fastest=max(rates), runs=len(rates), piece=piece)


def copy_rate(clock: Clock) -> Rate:
    """Copying within memory, into a buffer that was used before, on one thread. Frameworks may use several."""
    source, target = bytes(_PIECE), bytearray(_PIECE)
    return rate_of(_PIECE, _runs(clock, lambda: target.__setitem__(slice(None), source)))


def hash_rate(clock: Clock) -> Rate:
    """SHA-256, which names every file of a checkpoint."""
    data = memoryview(bytes(_PIECE // 2))

    def once() -> None:
        digest = hashlib.sha256()
        for begin in range(0, len(data), _CHUNK):
            digest.update(data[begin : begin + _CHUNK])

    return rate_of(len(data), _runs(clock, once))


def _runs(clock: Clock, once: Callable[[], None]) -> list[float]:
    once()  # warm: pages are there, and the processor is awake
    least, most = _RUNS
    taken: list[float] = []
    while len(taken) < least or (len(taken) < most and sum(taken) < _SECONDS):
        began = clock.monotonic()
        once()
        taken.append(clock.monotonic() - began)
    return taken


PROBE = "colabkeep-bench-"
"""What the names of probe objects begin with: whoever finds one, after the power went, may delete it."""

_SMALLEST = 64 * 2**10  # bytes; the first probe, which shows what an object costs beside its bytes
_GROWS = 4  # times the size of the one before
_LARGEST_RUNS = 3  # of the largest size
_GOODBYE = 5.0  # seconds for a deletion to reach the slower side of a store that has two
_PAUSE = 0.25  # seconds between two questions whether it has arrived


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a probing may take: so many seconds, and so many bytes for the largest object and in all."""

    seconds: float
    largest: int
    in_all: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What a storage took. `each`: seconds that an object takes beside its bytes, at most. `confirmed`: all that was
    put reached the highest rung that there is here while it was waited for. `free_bytes`: the room there is, None where
    that is not known; `disk`: it is on this machine's disk. `left`: the probes that could not be deleted."""

    url: str
    rate: Rate
    each: float
    rung: str
    confirmed: bool
    bytes: int
    free_bytes: int | None = None
    disk: bool = False
    left: tuple[str, ...] = ()

    def seconds(self, size: int) -> float:
        """How long so many bytes take, in one piece."""
        return self.each + size / self.rate.median


def probe(store: Store, clock: Clock, budget: Budget) -> Taken:
    """Put objects of growing size while the budget lasts, at least one, and delete them, also when interrupted. No more
    than half of the room that there is gets used.

    Raises:
        StoreError: it took nothing.
    """
    properties = store.properties
    end, top, free = clock.monotonic() + budget.seconds, properties.top_rung, properties.free_bytes
    in_all = budget.in_all if free is None else min(budget.in_all, free // 2)
    size, runs, total, confirmed, rung = _SMALLEST, 0, 0, True, "local"
    taken: list[tuple[int, float]] = []
    with _cleaned(store) as (names, left):
        while runs < _LARGEST_RUNS:
            source = BytesSource(os.urandom(size))  # nothing on the way can have these already
            names.append(f"{PROBE}{secrets.token_hex(6)}")
            began = clock.monotonic()
            receipt = _arrived(store, clock, store.put(names[-1], source), top, end)
            seconds, rung = clock.monotonic() - began, receipt.rung
            confirmed &= rung == top
            taken.append((size, seconds))
            total += size
            largest = min(budget.largest, size * _GROWS)
            fits = clock.monotonic() + largest / size * seconds <= end and total + largest <= in_all
            if size == budget.largest or not fits:
                runs += 1
            else:
                size = largest
            if clock.monotonic() + seconds > end or total + size > in_all:
                break
    rate, each = _line(taken)
    return Taken(
        url=store.url,
        rate=rate,
        each=each,
        rung=rung,
        confirmed=confirmed,
        bytes=total,
        free_bytes=free,
        disk=properties.folder is not None,
        left=tuple(left),
    )


def _line(taken: Sequence[tuple[int, float]]) -> tuple[Rate, float]:
    """From sizes and their seconds: the rate of the bytes, and the seconds that an object takes beside them."""
    piece = taken[-1][0]
    small = median(seconds for size, seconds in taken if size == _SMALLEST)
    large = [seconds for size, seconds in taken if size == piece]
    if piece == _SMALLEST or median(large) <= small:  # noise hides the bytes, or there was no time for more of them
        return rate_of(piece, large), 0.0
    rate = rate_of(piece, [max(seconds - small, seconds / 10) * piece / (piece - _SMALLEST) for seconds in large])
    return rate, max(0.0, small - _SMALLEST / rate.median)


@contextmanager
def _cleaned(store: Store) -> Iterator[tuple[list[str], list[str]]]:
    """Names to be deleted at the end, whatever happens, and those that could not be."""
    names: list[str] = []
    left: list[str] = []
    try:
        yield names, left
    finally:
        for name in names:
            try:
                store.delete(name)
            except StoreError:
                left.append(name)
        if store.properties.behind is not None:
            store.flush(_GOODBYE)


def _arrived(store: Store, clock: Clock, receipt: Receipt, top: str, end: float) -> Receipt:
    """The receipt once it is on the top rung, or at the end of the time."""
    while receipt.rung != top and clock.monotonic() + _PAUSE < end:
        clock.sleep(_PAUSE)
        receipt = store.confirm(receipt)
    return receipt


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


_SIZE = "500MB"


@door()
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
        UsageError: an argument cannot be meant so.
        NotStorable: something in these objects cannot be kept.
        CheckpointNotFound: there is no such run, or it has no checkpoint.
        StoreError: the storage takes nothing.
    """
    share, watch = read_overhead(overhead), Watch(sys.stdout)
    parts = {"model": model, "optimizer": optimizer, **state_parts(state)}
    live = {name: part for name, part in parts.items() if part is not None}
    if sum((bool(live), run_name is not None, size is not None)) > 1:
        raise UsageError(
            problem="What is to be saved is said twice.", remedy="Pass objects, or run_name=…, or size=…, one of them."
        )
    if live:
        watch("copying these objects")
        return _measured(storage, live_load(live, SystemClock()), share, watch)
    return _measured(storage, _said(size) if run_name is None else run_name, share, watch)


def bench_command(words: Namespace, stream: TextIO | None) -> BenchReport:
    """What the command line asks for: `words` has storage, run, size and overhead. Progress goes to `stream`."""
    what = _said(words.size) if words.run is None else words.run
    return _measured(words.storage, what, read_overhead(words.overhead), Watch(stream))


def _measured(storage: Any, what: Load | str, overhead: float, watch: Watch) -> BenchReport:
    """`what`: a load, or the name of a run: as much as its newest checkpoint."""
    store = find_store(storage)
    try:
        here, lives = Environment.here(), tuple[SessionLifetime, ...]()
        platform = find_platform(here)
        if isinstance(what, str):
            watch(f"looking at {what}")
            repository = find_run(store, what)
            lives, what = earlier_lifetimes(repository, "", platform.name), _newest(repository)
        sessions = Sessions(usual=usual_lifetime(platform.limits(here)), lives=lives)
        return BenchReport(measure(store, what, sessions, overhead, SystemClock(), watch))
    finally:
        watch.end()
        if store is not storage:
            store.close()


class Watch:
    """Says what is being measured: on a terminal in one line that moves, elsewhere a line for each."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._moving = stream is not None and stream.isatty()
        self._width = 0

    def __call__(self, doing: str) -> None:
        """The next measurement begins."""
        if self._stream is None:
            return
        text = f"measuring: {plain(doing, limit=100)} …"
        self._stream.write("\r" + text.ljust(self._width) if self._moving else f"{text}\n")
        self._stream.flush()
        self._width = len(text)

    def end(self) -> None:
        """Remove the line that moves."""
        if self._stream is not None and self._moving and self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
        self._width = 0


class BenchReport:
    """What `colabkeep.bench()` returns. `bench` holds the figures themselves."""

    def __init__(self, found: Bench) -> None:
        self.bench = found

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """The result as lines of text."""
        yield _title(self.bench)
        yield from aligned([_HEAD, *_rows(self.bench)], right=(1,))
        yield from ("", *_sentences(self.bench))

    def to_dict(self) -> Record:
        """The result for programs: rates in bytes per second, times in seconds, sizes in bytes."""
        return asdict(self.bench)

    def to_json(self) -> str:
        """`to_dict` as one line of strict JSON."""
        return json.dumps(self.to_dict(), allow_nan=False)

    def _repr_html_(self) -> str:
        told = "<br>".join(map(escape, _sentences(self.bench)))
        return f"<b>{escape(_title(self.bench))}</b>{html_table([_HEAD, *_rows(self.bench)])}<p>{told}</p>"


_HEAD = ("", "a second", "slowest to fastest", "how")


def _title(found: Bench) -> str:
    return f"What saving costs here, measured in {found.took:.0f} s"


def _rows(found: Bench) -> Iterator[tuple[str, ...]]:
    yield ("memory copy", *_rate(found.copy), "on one thread")
    yield ("SHA-256", *_rate(found.hashing), "on one thread")
    if found.near is not None:
        how = "hashed, with fsync," if found.near.disk else "hashed,"
        yield ("write", *_rate(found.near.rate), f"{how} to {plain(found.near.url, limit=80)}")
    if found.far is not None:
        yield ("send", *_rate(found.far.rate), f"{_proof(found.far)} {plain(found.far.url, limit=80)}")


def _sentences(found: Bench) -> Iterator[str]:
    load = found.load
    steps = [f"stops training for {_fine(found.stall)}{' at most' if load.stall is None else ''}"]
    if found.near is not None and found.written is not None:
        where = "on this machine's disk" if found.near.disk else "in this process's memory"
        steps.append(f"is {where} after {_fine(found.written)}")
    if found.far is not None and found.arrived is not None:
        steps.append(f"{'there' if found.far.confirmed else 'sent'} after {_fine(found.arrived)}")
    yield f"A save of {size_text(load.bytes)} ({load.source}) {', '.join(steps)}."
    if load.grows:
        yield "The optimizer has no state yet: after its first step a save is larger (with Adam, three models)."
    chosen = found.cadence.sentence()
    yield f"{chosen[0].upper()}{chosen[1:]}."
    yield "A training measures anew: the copy may hide behind its next step, and saves may slow its steps a little."
    yield f"Sessions: {found.session_source}."
    if found.untried:
        yield f"Nothing was put into {plain(found.untried)} to try it: each version that is made there stays."
    for taken in (found.near, found.far):
        if taken is not None and taken.free_bytes is not None and taken.free_bytes < load.bytes:
            room = f"only {size_text(taken.free_bytes)} are free in {plain(taken.url)}"
            yield f"SUCH A SAVE DOES NOT FIT: {room}. Make room there, or choose another storage."
        if taken is not None and taken.left:
            yield f"Could not be deleted in {plain(taken.url)}, and may be, by hand: {', '.join(taken.left)}"


def _rate(rate: Rate) -> tuple[str, str]:
    median, slowest, fastest = (size_text(round(each)) for each in (rate.median, rate.slowest, rate.fastest))
    return median, f"{slowest} to {fastest} ({rate.runs} x {size_text(rate.piece)})"


def _fine(seconds: float) -> str:
    return cost_text(seconds) if seconds < 10 else duration_text(seconds)


def _proof(taken: Taken) -> str:
    if taken.confirmed:
        return f"until {taken.rung}, {_fine(taken.each)} for a small object, to"
    return "not confirmed while it was waited for, to"


def _said(size: Any) -> Load:
    if size is None:
        return Load(bytes=read_size("size", _SIZE), source="an example: say how large yours is, or name its run")
    return Load(bytes=read_size("size", size), source="as you said")


def _newest(repository: Repository) -> Load:
    for info in checkpoints(repository):
        if info.bytes is not None:
            return Load(bytes=info.bytes, source=f"as checkpoint {info.id}")
    raise CheckpointNotFound(
        problem=f"The run {repository.run!r} has no checkpoint to go by.", remedy='Say how large: size="500MB".'
    )
