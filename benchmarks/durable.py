"""How long until a save is safe on disk, against hashing and writing the same bytes."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from batches import Batches
from measuring import Figure, Setting, figure
from states import copied, size, stirred, tensors, trained

import colabkeep

CHUNK = 2**20


def run(setting: Setting) -> list[Figure]:
    """From asking for a save to its manifest flushed to disk."""
    torch.set_num_threads(1)
    model, optimizer = trained(1 if setting.quick else 500)
    state = tensors(model, optimizer)
    buffers = views(copied(state))
    storage = setting.folder / "run"
    bare, ratios = [], []
    with colabkeep.Run("r", model=model, optimizer=optimizer, storage=storage, save_every=None, progress=False) as kept:
        batches = Batches(kept)
        for number in range(setting.rounds(10) + 1):
            stirred(state)
            one = hash_and_write(buffers, setting.folder / f"bare-{number}")
            os.sync()
            kept.step()
            start = time.perf_counter()
            batches.save(wait=True)
            ours = time.perf_counter() - start
            batches.committed()
            os.sync()
            if number:
                bare.append(one * 1e3)
                ratios.append(ours / one)
    shutil.rmtree(storage)
    label = f"{size(state) / 1e6:.0f} MB"
    return [
        figure(f"{label}: hash, write, flush to disk", "ms", bare),
        figure(f"{label}: Run.save(wait=True), copy and all", "times that", ratios, goal=1.3),
    ]


def views(tensors: Sequence[torch.Tensor]) -> list[memoryview]:
    """The bytes of tensors."""
    return [memoryview(tensor.reshape(-1).view(torch.uint8).numpy()) for tensor in tensors]


def hash_and_write(pieces: Sequence[memoryview], path: Path) -> float:
    """Seconds to hash, write and flush them, by the plainest loop there is."""
    start = time.perf_counter()
    digest = hashlib.sha256()
    for chunk in chunks(pieces):
        digest.update(chunk)
    written(pieces, path)
    taken = time.perf_counter() - start
    path.unlink()
    return taken


def written(pieces: Sequence[memoryview], path: Path) -> None:
    """Write and flush to disk."""
    with path.open("wb", buffering=0) as file:
        for chunk in chunks(pieces):
            file.write(chunk)
        os.fsync(file.fileno())


def chunks(pieces: Sequence[memoryview]) -> list[memoryview]:
    """In pieces of a MiB at most."""
    return [piece[at : at + CHUNK] for piece in pieces for at in range(0, piece.nbytes, CHUNK)]
