"""What a save costs when six of eight layers are frozen, against the same model with nothing frozen.

Frozen layers have no state in the optimizer. Each pair of figures is of one round: a save of the one, then of the
other, from the second save on; what does not change was written by the first.

And what a run's first save costs on a pretrained base that is named by checksums, against one that is stored.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from batches import Batches
from measuring import Figure, Setting, figure
from torch import nn

import colabkeep
from colabkeep.session.frozen_base import Base

LAYERS, FROZEN = 8, 6
_BYTES, _SECONDS = "bytes written", "seconds until it is on disk"
_GOALS = {_BYTES: 0.3, _SECONDS: 0.3}
_OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]] = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=1e-4),
    "SGD with momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-4, momentum=0.9),
}


def run(setting: Setting) -> list[Figure]:
    """Two optimizers: of a trained layer, one saves three times the weights, the other twice."""
    torch.set_num_threads(1)
    return [*(each for name in _OPTIMIZERS for each in _with(name, setting)), *_on_a_base(setting)]


def _with(name: str, setting: Setting) -> list[Figure]:
    width = 64 if setting.quick else 2048
    found: dict[str, list[float]] = defaultdict(list)
    with ExitStack() as stack:
        whole, part = (
            stack.enter_context(_Trained(name, width, frozen, setting.folder / f"{frozen}")) for frozen in (0, FROZEN)
        )
        for number in range(setting.rounds(10) + 1):
            one, other = whole.saved(), part.saved()
            if number:  # the first writes everything, and allocates
                for what, (more, less) in {what: (one[what], other[what]) for what in one}.items():
                    found[what].append(less / more)
    for frozen in (0, FROZEN):
        shutil.rmtree(setting.folder / f"{frozen}")
    megabytes = LAYERS * (width * width + width) * 4 / 1e6
    title = f"{megabytes:.0f} MB of weights, {name}, {FROZEN} of {LAYERS} layers frozen"
    return [
        figure(f"{title}: {what}", "times nothing frozen", values, goal=_GOALS.get(what))
        for what, values in found.items()
    ]


def _on_a_base(setting: Setting) -> list[Figure]:
    width, found = 64 if setting.quick else 3000, defaultdict[str, list[float]](list)
    for _ in range(setting.rounds(5)):
        stored, named = (_first_save(width, setting.folder / "base", refer=refer) for refer in (False, True))
        for what in stored:
            found[f"stored: {what}"].append(stored[what])
            found[f"named by checksums: {what}"].append(named[what])
    title = f"a frozen base of {LAYERS * width * width * 4 / 1e6:.0f} MB, a run's first save"
    return [figure(f"{title}, {what}", what.rpartition(": ")[2], values) for what, values in found.items()]


def _first_save(width: int, storage: Path, *, refer: bool) -> dict[str, float]:
    model = nn.Sequential(*(nn.Linear(width, width, bias=False).requires_grad_(False) for _ in range(LAYERS)))
    model.append(nn.Linear(width, 8))
    optimizer = torch.optim.AdamW(model[-1].parameters())
    words: Any = {"storage": storage, "save_every": None, "progress": False}
    run = colabkeep.Run("r", model=model, optimizer=optimizer, **words)
    names = [name for name, each in model.named_parameters() if not each.requires_grad]
    run.knows(Base(names=names, name="base", refer=refer))
    os.sync()
    start = time.perf_counter()
    with run:
        model(torch.randn(1, width)).mean().backward()
        optimizer.step()
        run.step()
        run.save(wait=True)
        seconds = time.perf_counter() - start
    size = sum(path.stat().st_size for path in (storage / "r" / "blobs").iterdir())
    shutil.rmtree(storage)
    return {"MB": size / 1e6, "s": seconds}


class _Trained:
    """A model in training that is saved on demand."""

    def __init__(self, optimizer: str, width: int, frozen: int, storage: Path) -> None:
        torch.manual_seed(0)
        self._model = nn.Sequential(*(nn.Linear(width, width) for _ in range(LAYERS)))
        for layer in list(self._model)[:frozen]:
            layer.requires_grad_(False)
        self._optimizer = _OPTIMIZERS[optimizer](p for p in self._model.parameters() if p.requires_grad)
        self._x = torch.randn(1, width)
        self._blobs = storage / "r" / "blobs"
        self._run: Any = colabkeep.Run(
            "r",
            model=self._model,
            optimizer=self._optimizer,
            storage=storage,
            save_every=None,
            progress=False,
        )

    def __enter__(self) -> _Trained:
        self._run.__enter__()
        self._batches = Batches(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self._run.__exit__(None, None, None)

    def saved(self) -> dict[str, float]:
        """What one save costs, after a step: the bytes, and the seconds."""
        self._step()
        before, newest = set(self._blobs.glob("*")), self._run.checkpoint
        os.sync()
        start, cpu = time.perf_counter(), time.process_time()
        self._batches.save()
        stall = time.perf_counter() - start
        while self._run.checkpoint == newest and self._run._saver.busy:  # deleting what is not kept comes after
            time.sleep(0.001)
        seconds = time.perf_counter() - start
        self._batches.committed()
        busy = time.process_time() - cpu
        return {
            _BYTES: sum(path.stat().st_size for path in set(self._blobs.glob("*")) - before),
            _SECONDS: seconds,
            "CPU time of the process": busy,
            "seconds that the call takes": stall,
        }

    def _step(self) -> None:
        self._model(self._x).square().mean().backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._run.step()
