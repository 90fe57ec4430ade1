"""How much training is slowed while a save is written behind it, against bare writes of the same bytes.

One of these writes at the priority that a writer behind a training has (nice 5): it is what the goals are set by. The
other writes as a thread does that nobody has told to give way. Both flush what they wrote at the end.

Rented machines take all cores away for some 30 ms now and then, mostly when both have been busy for a while. The
longest step is that of those in which nothing was stolen, as Linux counts it.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from batches import Batches
from durable import views, written
from measuring import Figure, Setting, figure
from states import copied, size, stirred, tensors, trained
from torch import nn

import colabkeep
from colabkeep.core.system import give_way

Busy = Callable[[], bool]
_Writing = Callable[[], AbstractContextManager[Busy]]
_ALL = _BARE, _NICED, _OURS = "a bare write", "a bare, niced write", "a save of colabkeep"
_LOOK = 0.01  # seconds between two looks at what was stolen; Linux counts in ticks as long


def run(setting: Setting) -> list[Figure]:
    """Two kinds of steps: many tiny ones on one thread, and large products on all cores."""
    found = _with("tiny steps", _tiny(), 1, setting)
    found += _with("large steps on all cores", _large(setting.quick), os.cpu_count() or 1, setting)
    torch.set_num_threads(1)
    return found


def _with(name: str, step: Callable[[], object], threads: int, setting: Setting) -> list[Figure]:
    torch.set_num_threads(threads)
    model, optimizer = trained(2 if setting.quick else 500)
    state = tensors(model, optimizer)
    pieces = views(copied(state))
    slower: dict[str, list[float]] = {}
    worst: dict[str, list[float]] = {}
    lost: dict[str, list[float]] = {}
    ratios, longer = list[float](), list[float]()
    storage = setting.folder / "run"
    with colabkeep.Run("r", model=model, optimizer=optimizer, storage=storage, save_every=None, progress=False) as kept:
        batches = Batches(kept)
        for number in range(setting.rounds(8) + 1):
            stirred(state)
            idle = _steps(step, _for(0.02 if setting.quick else 0.7))
            usual = fmean(idle.times)
            took = {}
            contestants: list[tuple[str, _Writing]] = [
                (_BARE, lambda: _bare(pieces, setting.folder / "bare", gives_way=False)),
                (_NICED, lambda: _bare(pieces, setting.folder / "bare", gives_way=True)),
                (_OURS, lambda: _saved(kept, batches)),
            ]
            random.shuffle(contestants)  # memory and disk are not the same after each of them
            for who, writing in contestants:
                with writing() as busy:
                    took[who] = _steps(step, busy)
                os.sync()
            if number:
                for who, steps in took.items():
                    slower.setdefault(who, []).append(fmean(steps.times) / usual)
                    worst.setdefault(who, []).append((steps.longest - idle.longest) * 1e3)
                    lost.setdefault(who, []).append((sum(steps.times) - len(steps.times) * usual) * 1e3)
                ratios.append(fmean(took[_OURS].times) / fmean(took[_NICED].times))
                longer.append((took[_OURS].longest - took[_NICED].longest) * 1e3)
    shutil.rmtree(storage)
    title = f"{name}, {size(state) / 1e6:.0f} MB"
    found = [figure(f"{title}: a step during {who}", "times an undisturbed one", slower[who]) for who in _ALL]
    found += [figure(f"{title}: longest step during {who}, over the longest before", "ms", worst[who]) for who in _ALL]
    found += [figure(f"{title}: {who} takes from training in all", "ms", lost[who]) for who in _ALL]
    return [
        *found,
        figure(f"{title}: a step during {_OURS} against {_NICED}", "times", ratios, goal=1.0),
        figure(f"{title}: longest step during {_OURS}, over that of {_NICED}", "ms", longer, goal=5),
    ]


class _Steps(NamedTuple):
    """Seconds of each step, and of the longest of those in which no core was stolen."""

    times: list[float]
    longest: float


def _steps(step: Callable[[], object], busy: Busy) -> _Steps:
    times: list[float] = []
    longest, stolen, looked = 0.0, _stolen(), time.perf_counter()
    while True:
        start = time.perf_counter()
        if start - looked > _LOOK:  # not at each step: a look takes a good part of a tiny one
            stolen, looked = _stolen(), start
            start = time.perf_counter()
        step()
        took = time.perf_counter() - start
        times.append(took)
        if took > longest and _stolen() == stolen:
            longest = took
        if not busy():
            return _Steps(times, longest)


def _stolen() -> str:
    """Time that all cores were somebody else's, in ticks: the eighth number of /proc/stat's first line, proc(5)."""
    return Path("/proc/stat").read_text().split(maxsplit=9)[8]


def _for(seconds: float) -> Busy:
    end = time.perf_counter() + seconds
    return lambda: time.perf_counter() < end


@contextmanager
def _saved(kept: Any, batches: Batches) -> Iterator[Busy]:
    kept.step()
    batches.save()
    yield lambda: kept._saver.busy
    batches.committed()


@contextmanager
def _bare(pieces: Sequence[memoryview], path: Path, *, gives_way: bool) -> Iterator[Busy]:
    def work() -> None:
        if gives_way:
            give_way()
        written(pieces, path)

    thread = threading.Thread(target=work)
    thread.start()
    yield thread.is_alive
    thread.join()
    path.unlink()


def _tiny() -> Callable[[], object]:
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(8, 16)

    def step() -> None:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _large(quick: bool) -> Callable[[], object]:
    a = torch.randn(64, 64) if quick else torch.randn(700, 700)
    return lambda: a @ a
