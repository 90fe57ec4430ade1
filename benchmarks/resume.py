"""Time to the first step in a fresh process, against importing torch, reading the files and hashing them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from measuring import Figure, Setting, figure


def run(setting: Setting) -> list[Figure]:
    """Fresh interpreters in turn: one that only reads, one that resumes in the middle of an epoch."""
    megabytes = 1 if setting.quick else 500
    storage = setting.folder / "run"
    _train(storage, megabytes)
    bare, ratios, building = [], [], []
    for warm in range(setting.rounds(9) + 1):
        read, _ = _seconds("read", storage, megabytes)
        resumed, built = _seconds("resume", storage, megabytes)
        if warm:
            bare.append(read)
            ratios.append((resumed - built) / read)
            building.append(built)
    shutil.rmtree(storage)
    return [
        figure(f"{megabytes} MB: import torch, read and hash the files", "s", bare),
        figure(f"{megabytes} MB: from the start of Python to the first step done", "times that", ratios, goal=1.3),
        figure("not counted there: building model and optimizer, which makes torch import more", "s", building),
    ]


def _train(storage: Path, megabytes: float) -> None:
    from states import trained

    import colabkeep

    model, optimizer = trained(megabytes)
    with colabkeep.Run("r", model=model, optimizer=optimizer, storage=storage, progress=False) as kept:
        for _ in kept.epochs(1):
            for _ in kept.batches([0, 1]):
                kept.step()
                kept.save(wait=True)
                kept.stop()


def _seconds(what: str, storage: Path, megabytes: float) -> tuple[float, float]:
    """From the start of the process to its end of work, and of that, building the user's own objects."""
    start = time.monotonic()
    child = subprocess.run(
        [sys.executable, __file__, what, str(storage), str(megabytes)], check=True, capture_output=True, text=True
    )
    end, built = json.loads(child.stdout.splitlines()[-1])
    return end - start, built


def _read(storage: Path) -> None:
    import torch

    torch.set_num_threads(1)
    for path in sorted(storage.glob("*/blobs/*")):
        buffer = memoryview(bytearray(path.stat().st_size))
        with path.open("rb", buffering=0) as file:
            filled = 0
            while n := file.readinto(buffer[filled : filled + 2**20]):
                filled += n
        if hashlib.sha256(buffer).hexdigest() != path.name.partition(".")[0]:
            raise ValueError(path)


def _resume(storage: Path, megabytes: float) -> float:
    import torch

    start = time.monotonic()
    from states import built

    torch.set_num_threads(1)
    model, optimizer = built(megabytes)
    taken = time.monotonic() - start

    import colabkeep

    kept = colabkeep.Run("r", model=model, optimizer=optimizer, storage=storage, resume="must", progress=False)
    kept.__enter__()  # and no exit: what a session does at its end is not asked here
    for _ in kept.epochs(1):
        for _ in kept.batches([0, 1]):
            kept.step()  # the arithmetic of a step is not asked either
            return taken
    raise RuntimeError("there was no step left")


if __name__ == "__main__":
    _, what, storage, megabytes = sys.argv
    own = 0.0
    if what == "resume":
        own = _resume(Path(storage), float(megabytes))
    else:
        _read(Path(storage))
    print(json.dumps([time.monotonic(), own]), flush=True)
    os._exit(0)
