"""colabkeep and its peers on the same training, in turn: what a save costs it, when it is safe, and the way back."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from measuring import Figure, Setting, figure
from peers_chart import draw

HERE = Path(__file__).parent
NEEDS = {
    "colabkeep": "torch",
    "torch.save": "torch",
    "safetensors": "safetensors",
    "DCP save": "torch",
    "DCP async_save, thread": "torch",
    "DCP async_save, process": "torch",
    "DCP async_save, DefaultStager": "torch",
    "Lightning": "lightning",
    "Lightning, AsyncCheckpointIO": "lightning",
    "Transformers Trainer": "transformers",
    "ignite": "ignite",
}
"""The contestants of `peers_savers`, and the package that each needs."""

QUICK = ("colabkeep", "torch.save", "DCP async_save, thread")
REMOTE = ("colabkeep", "torch.save")
"""Those that are measured with a remote too: the other peers leave the copying to the user, as `torch.save` does."""

_RATES = (50, 5)  # megabytes a second of the remotes
_PATIENCE = 60.0  # seconds for one save to arrive; where it takes longer, that is not measured

MEASURES = {
    "stall": ("a save holds training up", "times a bare copy of the state"),
    "all": ("all steps up to the next save together, more than undisturbed ones", "times a bare copy of the state"),
    "gap": ("longest time between two steps, over the median step", "ms"),
    "slower": ("a step while a save goes on behind it", "times an undisturbed one"),
    "durable": ("from the call until all is flushed to disk", "times hashing and writing the same bytes"),
    "written": ("bytes written", "times the state"),
    "memory": ("peak of the memory beside the state", "copies of it"),
    "resume": ("from the start of Python to the first step, less building the model", "s"),
}
GOALS = {"stall": 1.1, "all": 2.0, "durable": 1.3}
"""For colabkeep. Memory has its goal in `memory`; here it counts what steps need too."""


def run(setting: Setting) -> list[Figure]:
    """In each round all contestants in turn, in another order each time, each in processes of its own."""
    missing = {package for package in NEEDS.values() if find_spec(package) is None}
    if missing:
        print(f"not installed, so left out: {', '.join(sorted(missing))} (see benchmarks/peers.txt)", flush=True)
    names = [name for name, package in NEEDS.items() if package not in missing and (not setting.quick or name in QUICK)]
    if not _chooses_stagers():
        print("left out: DCP async_save, for this torch does not let it be chosen how to stage", flush=True)
        names = [name for name in names if not name.startswith("DCP async_save")]
    sizes = (2,) if setting.quick else setting.megabytes or (100, 500, 1500)
    rates = () if setting.quick else _RATES
    found: list[Figure] = []
    for megabytes in sizes:
        found += _at(megabytes, names, setting)
        for rate in rates:
            if megabytes / rate <= _PATIENCE:
                found += _remote(megabytes, rate, setting)
    if not setting.quick:
        draw(found, [f"{megabytes} MB" for megabytes in sizes], names, setting.results)
    return found


def _chooses_stagers() -> bool:
    """Has async_save of this torch a choice of thread, process and stager? (2.13 has, 2.4 has not.)"""
    from torch.distributed.checkpoint import staging, state_dict_saver

    return hasattr(state_dict_saver, "AsyncCheckpointerType") and hasattr(staging, "DefaultStager")


def _at(megabytes: int, names: list[str], setting: Setting) -> list[Figure]:
    values: dict[tuple[str, str], list[float]] = {}
    order = list(names)
    rounds = 1 if setting.quick else setting.repeat or 5
    for number in range(rounds):
        random.shuffle(order)
        for name in order:
            print(f"{megabytes} MB, round {number + 1} of {rounds}: {name}", file=sys.stderr, flush=True)
            folder = setting.folder / "peer"
            found = _child("train", name, megabytes, folder)
            found["resume"] = [_child("resume", name, megabytes, folder)["seconds"]]
            shutil.rmtree(folder)
            os.sync()  # what one leaves to the kernel must not slow down the next
            for measure, some in found.items():
                values.setdefault((name, measure), []).extend(some)
    return [
        *(figure(f"{megabytes} MB: {what}", "ms", _all(values, what)) for what in ("bare copy", "step")),
        *(
            figure(
                f"{megabytes} MB: {title}: {name}",
                unit,
                values[name, measure],
                GOALS.get(measure) if name == "colabkeep" else None,
            )
            for measure, (title, unit) in MEASURES.items()
            for name in names
        ),
    ]


def _remote(megabytes: int, rate: int, setting: Setting) -> list[Figure]:
    values: dict[tuple[str, str], list[float]] = {}
    for _ in range(1 if rate * 60 < megabytes else 2):
        for name in REMOTE:
            folder = setting.folder / "peer"
            for measure, some in _child("remote", name, megabytes, folder, rate).items():
                values.setdefault((name, measure), []).extend(some)
            shutil.rmtree(folder)
    where = f"{megabytes} MB, remote at {rate} MB/s"
    titles = {name: MEASURES[name] for name in ("stall", "all", "slower")}
    titles["remote"] = "until the remote has all", "s"
    return [
        figure(f"{where}: {title}: {name}", unit, values[name, measure])
        for measure, (title, unit) in titles.items()
        for name in REMOTE
    ]


def _all(values: dict[tuple[str, str], list[float]], what: str) -> list[float]:
    return [value for (_, measure), some in values.items() if measure == what for value in some]


def _child(what: str, name: str, megabytes: int, folder: Path, rate: int = 0) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    command = [sys.executable, str(HERE / "peers_child.py"), what, name, str(megabytes), str(folder), str(rate)]
    child = subprocess.run(command, check=False, capture_output=True, text=True)
    if child.returncode:
        raise RuntimeError(f"{name} ({what}) failed:\n{child.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return found
