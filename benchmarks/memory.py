"""How much memory saving takes beside the state, also when saves are asked for faster than they are written."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from measuring import Figure, Setting, figure

SAVES, PAUSE = 8, 0.05


def run(setting: Setting) -> list[Figure]:
    """Each contestant in a process of its own."""
    megabytes = 2 if setting.quick else 500
    found = []
    for name, title in (("ours", "colabkeep, Run.save"), ("dcp", "torch.distributed.checkpoint async_save")):
        copies = []
        for _ in range(setting.rounds(3)):
            child = subprocess.run(
                [sys.executable, __file__, name, str(megabytes), str(setting.folder)],
                check=True,
                capture_output=True,
                text=True,
            )
            copies.append(json.loads(child.stdout.splitlines()[-1]))
        # The interpreter, torch and the file buffers have sizes of their own; 5 % of 500 MB is allowed for them.
        goal = 1.05 if name == "ours" else None
        found.append(
            figure(f"{megabytes} MB, {SAVES} saves {PAUSE * 1e3:.0f} ms apart: {title}", "copies more", copies, goal)
        )
    return found


def _child(name: str, megabytes: float, folder: Path) -> float:
    """Copies of the state that the memory in use grew by, at its peak."""
    import torch
    from batches import Batches
    from saving import peers
    from states import size, stirred, tensors, trained

    import colabkeep

    torch.set_num_threads(1)
    model, optimizer = trained(megabytes)
    state = tensors(model, optimizer)
    others = peers(model, optimizer)
    before = _resident()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    waits: list[Callable[[], object]] = []
    with tempfile.TemporaryDirectory(dir=folder) as place:
        if name == "ours":
            with colabkeep.Run(
                "r", model=model, optimizer=optimizer, storage=place, save_every=None, progress=False
            ) as r:
                batches = Batches(r)
                for _ in range(SAVES):
                    stirred(state)
                    r.step()
                    batches.save()
                    time.sleep(PAUSE)
                r.step()
                batches.save(wait=True)  # those before it may have been skipped, the one before it still under way
        else:
            for number in range(SAVES):
                stirred(state)
                waits.append(others["torch.distributed.checkpoint async_save"](Path(place) / str(number)))
                time.sleep(PAUSE)
            for wait in waits:
                wait()
    return (_peak() - before) / size(state)


def _resident() -> int:
    return _field("VmRSS")


def _peak() -> int:
    return _field("VmHWM")


def _field(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


if __name__ == "__main__":
    print(json.dumps(_child(sys.argv[1], float(sys.argv[2]), Path(sys.argv[3]))), flush=True)
    import os

    os._exit(0)  # a process group of a peer's would wait for nobody
