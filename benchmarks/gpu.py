"""What a save costs a training on an NVIDIA GPU, against the bare copy of its state into page-locked memory.

With `--quick` and no GPU, the same is done on the CPU, to see that it runs.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from batches import Batches
from measuring import Figure, Setting, figure
from states import size, tensors

import colabkeep
from colabkeep.frameworks.torch.adapter import TorchFramework

NO_GPU = (
    "gpu: this machine has no NVIDIA GPU, so nothing was measured. On Colab: Runtime → Change runtime type → T4 GPU."
)

_STEPS = 10  # after each save, so that a copy that makes them slower shows
_ROWS = 2048  # of a batch: the next step takes longer than the copy


def run(setting: Setting) -> list[Figure]:
    """At three sizes: the stall, the delay of the steps after it, and whether what was kept is what was there."""
    if not torch.cuda.is_available() and not setting.quick:
        raise SystemExit(NO_GPU)
    torch.set_num_threads(1)
    found: list[Figure] = []
    for megabytes, rounds in ((1, 2),) if setting.quick else ((100, 24), (500, 12), (1500, 6)):
        work = _Work(megabytes)
        found += _costs(work, rounds, setting.folder)
        found.append(_differing(work, rounds))
    return found


class _Work:
    """Layers with the state of AdamW, trained where there is a GPU on it."""

    def __init__(self, megabytes: float) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        width = 1024 if megabytes > 50 else 128
        layers = max(1, round(megabytes * 1e6 / (12 * width * (width + 1))))
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers))).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self._batch = torch.randn(_ROWS if self.device.type == "cuda" else 4, width, device=self.device)
        self.step()
        self.state = tensors(self.model, self.optimizer)
        pinned = self.device.type == "cuda"
        self._buffers = [torch.empty_like(one, device="cpu", pin_memory=pinned) for one in self.state]
        card = torch.cuda.get_device_name() if self.device.type == "cuda" else "on the CPU"
        self.label = f"{card}, {size(self.state) / 1e6:.0f} MB"

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(self._batch).square().mean().backward()
        self.optimizer.step()

    def settle(self) -> None:
        """Return when the GPU has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def copy(self) -> float:
        """Seconds of the bare copy."""
        self.settle()
        start = time.perf_counter()
        for buffer, tensor in zip(self._buffers, self.state, strict=True):
            buffer.copy_(tensor, non_blocking=True)
        self.settle()
        return time.perf_counter() - start


def _costs(work: _Work, rounds: int, folder: Path) -> list[Figure]:
    """Steps with a save before them and steps without, in turn, each round directly after a bare copy."""
    bare, stalls, delays = list[float](), list[float](), list[float]()
    storage = folder / "run"
    run: Any = colabkeep.Run(
        "r", model=work.model, optimizer=work.optimizer, storage=storage, save_every=None, progress=False,
    )  # fmt: skip
    with run as kept:
        batches = Batches(kept)
        for round in range(rounds + 2):  # the first saves allocate
            copy = work.copy()
            plain, _ = _timed(work, kept, batches, batches.next)
            saved, call = _timed(work, kept, batches, batches.save)
            batches.committed()
            _step(work, kept)
            batches.next()  # hands out the events
            if round > 1:
                bare.append(copy * 1e3)
                stalls.append(call / copy)
                delays.append((saved - plain) / copy)
    shutil.rmtree(storage)
    return [
        figure(f"{work.label}: bare copy into page-locked memory", "ms", bare),
        figure(f"{work.label}: a save holds the training thread up", "times the copy", stalls, goal=0.1),
        figure(f"{work.label}: {_STEPS} steps and a save take longer than without it", "times the copy", delays),
    ]


def _timed(work: _Work, kept: Any, batches: Batches, end: Callable[[], object]) -> tuple[float, float]:
    """Seconds of a step that ends in `end` and the steps after it, and of `end` alone, with the GPU busy as in a
    training."""
    work.settle()
    start = time.perf_counter()
    _step(work, kept)
    ending = time.perf_counter()
    end()
    took = time.perf_counter() - ending
    for _ in range(_STEPS):
        _step(work, kept)
        batches.next()
    work.settle()
    return time.perf_counter() - start, took


def _step(work: _Work, kept: Any) -> None:
    work.step()
    kept.step()


def _differing(work: _Work, rounds: int) -> Figure:
    """Captures that a step follows at once, held against copies made with everything stopped."""
    framework = TorchFramework()
    parts = {"model": work.model, "optimizer": work.optimizer}
    boundary = framework.boundary(parts)
    boundary.mark()
    wrong = []
    for _ in range(2 * rounds):
        work.step()
        boundary.mark()
        reference = [one.detach().cpu().clone() for one in tensors(work.model, work.optimizer)]
        capture = framework.capture(parts)
        work.step()
        boundary.mark()
        snapshot = capture.finish()
        trees = {name: framework.native(tree) for name, tree in snapshot.parts.items()}
        weights, entries = trees["model"]["weights"].values(), trees["optimizer"]["state"].values()
        kept = [*weights, *(value for entry in entries for value in entry.values())]
        same = len(kept) == len(reference) and all(map(torch.equal, kept, reference))
        wrong.append(float(not same))
        snapshot.release()
    boundary.close()
    return Figure(
        what=f"{work.label}: of {len(wrong)} captures, those that are not bit for bit the state at their save",
        unit="captures", median=sum(wrong), low=sum(wrong), high=sum(wrong), n=1, goal=0,
    )  # fmt: skip
