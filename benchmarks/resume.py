"""Time to the first step in a fresh process, against importing torch, reading the files and hashing them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from measuring import Figure, Setting, compiling, figure

BATCHES = range(3)  # one is trained before; one after the first step of a resumed session

_PARTS = {
    "door": "importing colabkeep",
    "import": "importing its part for torch",
    "read": "reading and hashing",
    "restore": "restoring: copying what is not kept where it was read to",
}


def run(setting: Setting) -> list[Figure]:
    """For each size, fresh interpreters in turn: one that only reads, one that resumes in the middle of an epoch."""
    sizes = (1,) if setting.quick else setting.megabytes or (100, 500)
    return [figure for megabytes in sizes for figure in _of_size(setting, megabytes)]


def _of_size(setting: Setting, megabytes: float) -> list[Figure]:
    storage = setting.folder / "run"
    _train(storage, megabytes)
    bare, ratios, building, laps = [], [], [], list[dict[str, float]]()
    for warm in range((setting.repeat or setting.rounds(9)) + 1):
        read, _ = _seconds("read", storage, megabytes)
        resumed, told = _seconds("resume", storage, megabytes)
        if warm:
            own = resumed - told["building"]
            bare.append(read)
            ratios.append(own / read)
            building.append(told["building"])
            laps.append({**told, "rest": own - sum(told[name] for name in ("torch", *_PARTS))})
    shutil.rmtree(storage)
    return [
        figure(f"{megabytes} MB: import torch, read and hash the files", "s", bare),
        figure(f"{megabytes} MB: from the start of Python to the first step done", "times that", ratios, goal=1.15),
        figure("… starting Python and importing torch", "s", [one["torch"] for one in laps]),
        *(figure(f"… {words}", "s", [one[name] for one in laps]) for name, words in _PARTS.items()),
        figure("… the rest, with the loader and the first step", "s", [one["rest"] for one in laps]),
        figure("not counted there: building model and optimizer, which makes torch import more", "s", building),
    ]


def _train(storage: Path, megabytes: float) -> None:
    from states import trained

    import colabkeep

    model, optimizer = trained(megabytes)
    with colabkeep.Run("r", model=model, optimizer=optimizer, storage=storage, progress=False) as kept:
        for _ in kept.epochs(1):
            for _ in kept.batches(BATCHES):
                kept.step()
                kept.save(wait=True)
                kept.stop()


def _seconds(what: str, storage: Path, megabytes: float) -> tuple[float, dict[str, float]]:
    """From the start of the process to its end of work, and what parts of that took."""
    start = time.monotonic()
    command = [sys.executable, __file__, what, str(storage), str(megabytes)]
    child = subprocess.run(command, check=True, capture_output=True, text=True, env=compiling())
    end, told = json.loads(child.stdout.splitlines()[-1])
    if "torch" in told:
        told["torch"] -= start
    return end - start, told


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


def _resume(storage: Path, megabytes: float) -> tuple[float, dict[str, float]]:
    """When the first step was done, and what parts of that took."""
    import torch

    imported = time.monotonic()
    from states import built

    torch.set_num_threads(1)
    model, optimizer = built(megabytes)
    taken = time.monotonic()

    import colabkeep
    from colabkeep.core.events import FirstStepDone

    told = {"torch": imported, "building": taken - imported}
    door, heard = colabkeep.Run, list[Mapping[str, float]]()
    told["door"] = time.monotonic() - taken
    kept = door(
        "r",
        model=model,
        optimizer=optimizer,
        storage=storage,
        resume="must",
        progress=False,
        callbacks=[lambda event: heard.append(event.laps) if isinstance(event, FirstStepDone) else None],
    )
    kept.__enter__()  # and no exit: what a session does at its end is not asked here
    done = 0.0
    for _ in kept.epochs(1):
        for _ in kept.batches(BATCHES):
            if heard:  # it is told when the loop asks for its next batch
                return done, {**told, **heard[0]}
            kept.step()  # the arithmetic of a step is not asked either
            done = time.monotonic()
    raise RuntimeError("there was no step left")


if __name__ == "__main__":
    _, what, storage, megabytes = sys.argv
    if what == "resume":
        told = _resume(Path(storage), float(megabytes))
    else:
        _read(Path(storage))
        told = time.monotonic(), {}
    print(json.dumps(told), flush=True)
    os._exit(0)
