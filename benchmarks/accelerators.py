"""What finding the accelerators costs, over the tool that is asked."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from measuring import Figure, Setting, figure

from colabkeep.core.system import Environment
from colabkeep.hardware import find_accelerators

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where `tests` is; last: what is installed comes first

from tests.fakes.devices import fake_nvidia_smi

_QUERY = ("--query-gpu=uuid,name,memory.total", "--format=csv,noheader,nounits")


def run(setting: Setting) -> list[Figure]:
    """Pairs: the program `nvidia-smi` started and read bare, and `find_accelerators` on a machine that has it."""
    asked, silent = setting.folder / "asked", setting.folder / "silent"
    program = fake_nvidia_smi(asked / "usr/bin", ["Tesla T4", "Tesla T4"])
    silent.mkdir()
    bare, added, nothing = [], [], []
    _find(asked)  # the first call imports the finders; that is counted by `doctor`
    for _ in range(setting.rounds(51)):
        start = time.perf_counter()
        subprocess.run([program, *_QUERY], check=True, capture_output=True)
        bare.append((time.perf_counter() - start) * 1e3)
        added.append(_find(asked) - bare[-1])
        nothing.append(_find(silent))
    return [
        figure("the program, started and read bare (a stand-in for nvidia-smi)", "ms", bare),
        figure("find_accelerators through it, over that", "ms", added, goal=5),
        figure("find_accelerators on a machine with nothing", "ms", nothing, goal=5),
    ]


def _find(root: Path) -> float:
    environment = Environment(environ={"PATH": "/usr/bin"}, root=root, folder=root)
    start = time.perf_counter()
    find_accelerators(environment)
    return (time.perf_counter() - start) * 1e3
