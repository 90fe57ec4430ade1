"""How long `colabkeep doctor` takes in all, over a bare interpreter beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from measuring import Figure, Setting, figure

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where `tests` is; last: what is installed comes first

from tests.fakes.devices import fake_nvidia_smi

_HEAVY = ("torch", "paddle", "numpy", "google", "requests", "ipywidgets")
_LOADED = """
import sys
from colabkeep.ui.cli import main
main(["doctor", "--json"])
print(*sys.modules)
"""


def run(setting: Setting) -> list[Figure]:
    """Fresh processes, on this machine with a stand-in for nvidia-smi that tells a T4."""
    fake_nvidia_smi(setting.folder, ["Tesla T4"])
    environ = {**os.environ, "PATH": f"{setting.folder}{os.pathsep}{os.environ['PATH']}"}
    whole, bare = [], []
    for _ in range(setting.rounds(21)):
        bare.append(_seconds([sys.executable, "-c", "pass"], environ, setting.folder))
        whole.append(_seconds([sys.executable, "-m", "colabkeep", "doctor"], environ, setting.folder))
    answer, modules = _output([sys.executable, "-c", _LOADED], environ, setting.folder).splitlines()
    heavy = {name.partition(".")[0] for name in modules.split()} & set(_HEAVY)
    return [
        figure("colabkeep doctor, in all", "s", whole, goal=0.5),
        figure("a bare Python", "s", bare),
        figure("accelerators that it told", "accelerators", [len(json.loads(answer)["accelerators"])]),
        figure("heavy modules that it loaded", "modules", [len(heavy)], goal=0),
    ]


def _seconds(command: list[str], environ: dict[str, str], folder: Path) -> float:
    start = time.perf_counter()
    _output(command, environ, folder)
    return time.perf_counter() - start


def _output(command: list[str], environ: dict[str, str], folder: Path) -> str:
    return subprocess.run(command, env=environ, cwd=folder, check=True, capture_output=True, text=True).stdout
