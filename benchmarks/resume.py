"""Time to the first step in a fresh process, against importing torch, reading the files and hashing them."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import time
from pathlib import Path

from measuring import Figure, Setting, figure


def run(setting: Setting) -> list[Figure]:
    """Fresh interpreters in turn: one that only reads, one that resumes."""
    from states import trained

    import colabkeep

    megabytes = 1 if setting.quick else 500
    storage = setting.folder / "run"
    model, optimizer = trained(megabytes)
    with colabkeep.Run("r", model=model, optimizer=optimizer, storage=storage, progress=False) as kept:
        for _ in kept.epochs(2):
            for _ in kept.batches([0]):
                kept.step()
            kept.save(wait=True)
            break
    del model, optimizer
    bare, ratios = [], []
    for _ in range(setting.rounds(9) + 1):
        read = _seconds("read", storage, megabytes)
        resumed = _seconds("resume", storage, megabytes)
        bare.append(read)
        ratios.append(resumed / read)
    shutil.rmtree(storage)
    return [
        figure(f"{megabytes} MB: import torch, read and hash the files", "s", bare[1:]),
        figure(f"{megabytes} MB: from the start of Python to the first step done", "times that", ratios[1:], goal=1.3),
    ]


def _seconds(what: str, storage: Path, megabytes: float) -> float:
    start = time.monotonic()
    child = subprocess.run(
        [sys.executable, __file__, what, str(storage), str(megabytes)], check=True, capture_output=True, text=True
    )
    return float(child.stdout.splitlines()[-1]) - start


def _read(storage: Path) -> None:
    import torch

    torch.set_num_threads(1)
    for path in sorted(storage.glob("*/blobs/*")):
        digest = hashlib.sha256()
        buffer = bytearray(path.stat().st_size)
        with path.open("rb", buffering=0) as file:
            filled = 0
            while n := file.readinto(memoryview(buffer)[filled : filled + 2**20]):
                filled += n
        for at in range(0, len(buffer), 2**20):
            digest.update(memoryview(buffer)[at : at + 2**20])
        if digest.hexdigest() != path.name.partition(".")[0]:
            raise ValueError(path)


def _resume(storage: Path, megabytes: float) -> None:
    import torch
    from states import built

    import colabkeep

    torch.set_num_threads(1)
    model, optimizer = built(megabytes)
    before = next(model.parameters()).detach()
    with colabkeep.Run("r", model=model, optimizer=optimizer, storage=storage, resume="must", progress=False) as kept:
        for _ in kept.epochs(3):
            for _ in kept.batches([0]):
                (before.view(-1)[:8].sum()).item()  # a step that costs nothing itself
                kept.step()
                print(time.monotonic(), flush=True)
                import os

                os._exit(0)  # what a session does at its end is not asked here


if __name__ == "__main__":
    if sys.argv[1] == "read":
        _read(Path(sys.argv[2]))
        print(time.monotonic(), flush=True)
    else:
        _resume(Path(sys.argv[2]), float(sys.argv[3]))
