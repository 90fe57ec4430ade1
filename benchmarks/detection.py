"""How long it takes to know which service this is."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from measuring import Figure, Setting, figure

from colabkeep.core.system import Environment
from colabkeep.platforms import find_platform

_FIRST = (
    "import time\n"
    "from colabkeep.core.system import Environment\n"
    "here = Environment.here()\n"
    "start = time.perf_counter()\n"
    "from colabkeep.platforms import find_platform\n"
    "find_platform(here)\n"
    "print(time.perf_counter() - start)\n"
)


def run(setting: Setting) -> list[Figure]:
    """A plain machine, where every platform is asked; a machine of each of three services; and a first time."""
    (setting.folder / "home" / "aistudio" / "work").mkdir(parents=True)
    (setting.folder / "home" / "aistudio" / "data").mkdir()
    plain = replace(Environment.here(), root=setting.folder / "nothing", shell="")
    machines = {
        "a plain machine": replace(plain, environ={}),
        "Kaggle": replace(plain, environ={"KAGGLE_KERNEL_RUN_TYPE": "Batch"}),
        "AI Studio": replace(plain, environ={}, root=setting.folder),
        "RunPod": replace(plain, environ={"RUNPOD_POD_ID": "x"}),
    }
    figures = [
        figure(f"find_platform on {name}", "µs", [_again(machine) * 1e6 for _ in range(setting.rounds(200))], goal=5000)
        for name, machine in machines.items()
    ]
    first = [_first() * 1e3 for _ in range(setting.rounds(31))]
    return [*figures, figure("the first call in a new Python, loading what it needs", "ms", first)]


def _again(machine: Environment) -> float:
    start = time.perf_counter()
    find_platform(machine)
    return time.perf_counter() - start


def _first() -> float:
    done = subprocess.run([sys.executable, "-c", _FIRST], check=True, capture_output=True, text=True, cwd=Path.cwd())
    return float(done.stdout)
