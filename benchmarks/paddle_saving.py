"""How long a save holds a Paddle training up, against a bare copy of the state into ready buffers."""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from batches import Batches
from measuring import Figure, Setting, figure

import colabkeep

Save = Callable[[Path], Callable[[], object]]
"""Saves into a folder; returns what waits until all is written."""


def saves(setting: Setting) -> list[Figure]:
    """Each contestant directly after a bare copy of its own."""
    megabytes, rounds = (1, 2) if setting.quick else (100, 24)
    model, optimizer = _trained(megabytes)
    state = [*model.parameters(), *(one for one in optimizer.state_dict().values() if isinstance(one, paddle.Tensor))]
    buffers = [np.ones(_bytes(tensor), "u1") for tensor in state]
    ratios: dict[str, list[float]] = {}
    bare: list[float] = []
    storage = setting.folder / "run"
    with colabkeep.Run("r", model=model, optimizer=optimizer, storage=storage, save_every=None, progress=False) as kept:
        contestants = {"colabkeep, Run.save": _ours(kept), **_peers(model, optimizer)}
        for number in range(rounds + 1):
            for name, save in contestants.items():
                _stir(state)
                kept.step()
                copy = _copy(buffers, state)
                with tempfile.TemporaryDirectory(dir=setting.folder) as place:
                    start = time.perf_counter()
                    wait = save(Path(place))
                    blocked = time.perf_counter() - start
                    wait()
                    os.sync()  # what one leaves to the kernel must not slow down the next
                if number:  # the first save allocates
                    bare.append(copy * 1e3)
                    ratios.setdefault(name, []).append(blocked / copy)
    shutil.rmtree(storage)
    label = f"{sum(map(_bytes, state)) / 1e6:.0f} MB"
    return [
        figure(f"{label}: bare copy into ready buffers, one thread", "ms", bare),
        *(
            figure(f"{label}: {name}", "times the copy", values, goal=1.15 if "colabkeep" in name else None)
            for name, values in ratios.items()
        ),
    ]


def _trained(megabytes: float) -> tuple[paddle.nn.Layer, paddle.optimizer.Optimizer]:
    """Linear layers and Adam after one step: weights and two moments, of that size together."""
    width = 1024 if megabytes > 50 else 128
    layers = max(1, round(megabytes * 1e6 / (12 * width * (width + 1))))
    paddle.seed(0)
    model = paddle.nn.Sequential(*(paddle.nn.Linear(width, width) for _ in range(layers)))
    optimizer = paddle.optimizer.Adam(1e-3, parameters=model.parameters())
    model(paddle.randn([1, width])).sum().backward()
    optimizer.step()
    optimizer.clear_grad(set_to_zero=False)
    return model, optimizer


def _bytes(tensor: paddle.Tensor) -> int:
    return int(tensor.size) * int(tensor.element_size())


def _copy(buffers: Sequence[np.ndarray[Any, Any]], state: Sequence[paddle.Tensor]) -> float:
    start = time.perf_counter()
    for buffer, tensor in zip(buffers, state, strict=True):
        ctypes.memmove(buffer.ctypes.data, tensor.data_ptr(), buffer.nbytes)
    return time.perf_counter() - start


def _stir(state: Sequence[paddle.Tensor]) -> None:
    """Change every tensor a little, so that nothing can be stored by reference to what was stored before."""
    for tensor in state:
        ctypes.c_float.from_address(tensor.data_ptr()).value += 1


def _ours(kept: Any) -> Save:
    batches = Batches(kept)

    def save(_: Path) -> Callable[[], object]:
        batches.save()
        return batches.committed

    return save


def _peers(model: paddle.nn.Layer, optimizer: paddle.optimizer.Optimizer) -> dict[str, Save]:
    """The same state saved by others, as their own pages show it."""
    from safetensors.paddle import save_file

    def pickled(folder: Path) -> Callable[[], object]:
        paddle.save(model.state_dict(), str(folder / "state.pdparams"))
        paddle.save(optimizer.state_dict(), str(folder / "state.pdopt"))
        return lambda: None

    def safe(folder: Path) -> Callable[[], object]:
        moments = {name: one for name, one in optimizer.state_dict().items() if isinstance(one, paddle.Tensor)}
        save_file({**model.state_dict(), **moments}, str(folder / "state.safetensors"))
        return lambda: None

    return {"paddle.save": pickled, "safetensors.paddle save_file": safe}
