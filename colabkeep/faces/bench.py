"""`colabkeep bench`: what saving costs here, as people see it: a table, HTML, and a record for machines."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from html import escape
from typing import Any, TextIO

from colabkeep._engine.repository import Repository
from colabkeep.faces.tables import Record, aligned, html_table, plain, size_text
from colabkeep.platforms import find_platform
from colabkeep.session.bench.forecast import Bench, Load, live_load, measure
from colabkeep.session.bench.probing import Taken
from colabkeep.session.bench.rates import Rate
from colabkeep.session.catalogue import checkpoints, find_run
from colabkeep.session.clock import SystemClock
from colabkeep.session.lives import Sessions, earlier_lives, usual_session
from colabkeep.session.wiring import find_store, state_parts
from colabkeep.stores import Storage
from colabkeep.vocabulary.cadence import OVERHEAD, Life, cost_text, read_overhead
from colabkeep.vocabulary.door import door
from colabkeep.vocabulary.durations import duration_text
from colabkeep.vocabulary.environment import Environment
from colabkeep.vocabulary.errors import CheckpointNotFound, UsageError
from colabkeep.vocabulary.sizes import read_size

__all__ = ["BenchReport", "Watch", "bench", "bench_command"]

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
        here, lives = Environment.here(), tuple[Life, ...]()
        platform = find_platform(here)
        if isinstance(what, str):
            watch(f"looking at {what}")
            repository = find_run(store, what)
            lives, what = earlier_lives(repository, "", platform.name), _newest(repository)
        sessions = Sessions(usual=usual_session(platform.limits(here)), lives=lives)
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
