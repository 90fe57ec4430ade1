"""How long a save holds training up, against a bare copy of the state into ready buffers."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from batches import Batches
from measuring import Figure, Setting, figure
from states import copied, size, stirred, tensors, trained

import colabkeep

Save = Callable[[Path], Callable[[], object]]
"""Saves into a folder; returns what waits until all is written."""


def run(setting: Setting) -> list[Figure]:
    """At three sizes. Each round begins with a bare copy, into memory that has lain idle as long as a contestant's:
    while the others write gigabytes, a machine that is short of memory takes what nobody uses."""
    torch.set_num_threads(1)
    found: list[Figure] = []
    for megabytes, rounds in ((1, 2),) if setting.quick else ((100, 24), (500, 12), (1500, 6)):
        found += _at(megabytes, rounds, setting.folder)
    return found


def _at(megabytes: float, rounds: int, folder: Path) -> list[Figure]:
    model, optimizer = trained(megabytes)
    state = tensors(model, optimizer)
    buffers = copied(state)
    ratios: dict[str, list[float]] = {}
    bare: list[float] = []
    storage = folder / "run"
    with colabkeep.Run("r", model=model, optimizer=optimizer, storage=storage, save_every=None, progress=False) as kept:
        contestants = {"colabkeep, Run.save": _ours(kept), **peers(model, optimizer)}
        for number in range(rounds + 1):
            stirred(state)
            copy = _copy(buffers, state)
            for name, save in contestants.items():
                stirred(state)
                kept.step()
                with tempfile.TemporaryDirectory(dir=folder) as place:
                    start = time.perf_counter()
                    wait = save(Path(place))
                    blocked = time.perf_counter() - start
                    wait()
                    os.sync()  # what one leaves to the kernel must not slow down the next
                if number:  # the first save allocates
                    ratios.setdefault(name, []).append(blocked / copy)
            if number:
                bare.append(copy * 1e3)
    shutil.rmtree(storage)
    label = f"{size(state) / 1e6:.0f} MB"
    return [
        figure(f"{label}: bare copy into ready buffers, one thread", "ms", bare),
        *(
            figure(f"{label}: {name}", "times the copy", values, goal=1.1 if "colabkeep" in name else None)
            for name, values in ratios.items()
        ),
    ]


def _copy(buffers: Sequence[torch.Tensor], state: Sequence[torch.Tensor]) -> float:
    start = time.perf_counter()
    torch._foreach_copy_(list(buffers), list(state))
    return time.perf_counter() - start


def _ours(kept: Any) -> Save:
    batches = Batches(kept)

    def save(_: Path) -> Callable[[], object]:
        batches.save()
        return batches.committed

    return save


def peers(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Save]:
    """The same state saved by others, as their own pages show it."""
    from safetensors.torch import save_file
    from torch.distributed import checkpoint as dcp

    def state() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def flat() -> dict[str, torch.Tensor]:
        moments = optimizer.state_dict()["state"]
        named = {f"{i}.{name}": value for i, entry in moments.items() for name, value in entry.items()}
        return {**model.state_dict(), **named}

    def pickled(folder: Path) -> Callable[[], object]:
        torch.save(state(), folder / "state.pt")
        return lambda: None

    def safe(folder: Path) -> Callable[[], object]:
        save_file(flat(), folder / "state.safetensors")
        return lambda: None

    def distributed(folder: Path) -> Callable[[], object]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is one process only
            dcp.save(state(), checkpoint_id=folder)
        return lambda: None

    def asynchronous(folder: Path) -> Callable[[], object]:
        _process_group()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            future: Any = dcp.async_save(state(), checkpoint_id=folder)
        wait: Callable[[], object] = future.result
        return wait

    return {
        "torch.save": pickled,
        "safetensors save_file": safe,
        "torch.distributed.checkpoint save": distributed,
        "torch.distributed.checkpoint async_save": asynchronous,
    }


def _process_group() -> None:
    if not torch.distributed.is_initialized():
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
