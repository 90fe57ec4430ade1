"""One contestant in one process: `peers_child.py train|resume|remote NAME MEGABYTES FOLDER RATE` prints measures."""

from __future__ import annotations

import time

BEGAN = time.monotonic()

import json  # noqa: E402  # the clock comes first
import os  # noqa: E402
import sys  # noqa: E402
import warnings  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from pathlib import Path  # noqa: E402
from statistics import fmean, median  # noqa: E402
from typing import Any  # noqa: E402

SAVES = 3  # within a training, after the first, which allocates
IDLE = 6  # steps before each of them
FEWEST = 4  # steps after one, also when it is done at once


def train(contestant: Any, megabytes: float, folder: Path) -> dict[str, list[float]]:
    """Stall, gaps and slow-down while training; then one save that is waited for until it is on disk."""
    from durable import hash_and_write, views
    from peers_state import Work

    work = Work(megabytes)
    found: dict[str, list[float]] = {"bare copy": [work.copy() * 1e3 for _ in range(5)]}
    bare = median(found["bare copy"]) / 1e3
    steps = _Steps(work)

    def script(saver: Any) -> Iterator[None]:
        before = _memory("VmRSS")  # not later: memory for a copy may be touched before the first save
        for _ in range(2):
            yield
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        saver.save(folder / "0")
        yield
        saver.wait()
        for number in range(1, SAVES + 1):
            yield from steps.save(saver, folder / str(number))
            _flush(folder)
        found["memory"] = [(_memory("VmHWM") - before) / work.size]
        plain = hash_and_write(views(work.buffers), folder / "bare")
        yield  # other bytes than those that were saved last
        start, there = time.perf_counter(), _bytes(folder)
        saver.save(folder / "last")
        saver.wait()
        _flush(folder)
        found["durable"] = [(time.perf_counter() - start) / plain]
        found["written"] = [(_bytes(folder) - there) / work.size]

    contestant.train(work, script, folder)
    return {**found, **steps.found(bare)}


def remote(contestant: Any, megabytes: float, folder: Path, rate: float) -> dict[str, list[float]]:
    """The same with a place behind the disk that takes `rate` megabytes a second; one save, until all has arrived."""
    from peers_state import Work

    work = Work(megabytes)
    bare = median(work.copy() for _ in range(5))
    steps = _Steps(work)
    found: dict[str, list[float]] = {}

    def script(saver: Any) -> Iterator[None]:
        for _ in range(2):
            yield
        saver.save(folder / "0")
        saver.wait()
        saver.arrived()
        start = time.perf_counter()
        yield from steps.save(saver, folder / "1")
        saver.arrived()
        found["remote"] = [time.perf_counter() - start - steps.idling]

    contestant.train(work, script, folder, rate=rate * 1e6)
    told = steps.found(bare)
    return {**found, **{name: told[name] for name in ("stall", "all", "slower")}}


def resume(contestant: Any, megabytes: float, folder: Path) -> dict[str, float]:
    """From the start of the process to the state in its place."""
    from peers_state import Work

    start = time.monotonic()
    work = Work(megabytes, fresh=True)
    built = time.monotonic() - start
    contestant.load(work, folder)
    return {"seconds": time.monotonic() - BEGAN - built}


class _Steps:
    """The times of steps before a save, with it and behind it. One step is what lies between two `yield`s."""

    def __init__(self, work: Any) -> None:
        self._work = work
        self._idle: list[float] = []
        self._stalls: list[float] = []
        self._all: list[float] = []
        self._gaps: list[float] = []
        self._slower: list[float] = []
        self.idling = 0.0

    def save(self, saver: Any, folder: Path) -> Iterator[None]:
        began = time.perf_counter()
        yield  # what was flushed for the save before is not counted
        idle = []
        for _ in range(IDLE):
            start = time.perf_counter()
            yield
            idle.append(time.perf_counter() - start)
        self.idling = time.perf_counter() - began
        self._work.waited = 0.0
        start = called = time.perf_counter()
        saver.save(folder)
        stall = time.perf_counter() - called
        behind, gaps = [], []
        while len(gaps) < FEWEST or saver.busy():
            stepping = time.perf_counter()
            yield
            end = time.perf_counter()
            behind.append(end - stepping)
            gaps.append(end - start)
            start = end
        saver.wait()
        step = median(idle)
        self._idle += idle
        self._stalls.append(stall + self._work.waited)
        self._all.append(sum(gaps) - len(gaps) * step)
        self._gaps.append((max(gaps) - step) * 1e3)
        self._slower.append(fmean(behind[1:]) / step)

    def found(self, bare: float) -> dict[str, list[float]]:
        return {
            "step": [one * 1e3 for one in self._idle],
            "stall": [stall / bare for stall in self._stalls],
            "all": [more / bare for more in self._all],
            "gap": self._gaps,
            "slower": self._slower,
        }


def _flush(folder: Path) -> None:
    """What was left to the kernel is on disk."""
    for path in (folder, *folder.rglob("*")):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _memory(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(field)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # peers warn that there is one process only, or no GPU
    _, _what, _name, _size, _folder, _rate = sys.argv
    from peers_savers import CONTESTANTS

    _one = CONTESTANTS[_name]()
    _found: Any
    if _what == "train":
        _found = train(_one, float(_size), Path(_folder))
    elif _what == "resume":
        _found = resume(_one, float(_size), Path(_folder))
    else:
        _found = remote(_one, float(_size), Path(_folder), float(_rate))
    print(f"\n{json.dumps(_found)}", flush=True)
    os._exit(0)  # a process group of a peer's would wait for nobody
