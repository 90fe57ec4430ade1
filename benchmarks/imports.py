"""What `import colabkeep` costs over a bare interpreter."""

from __future__ import annotations

import subprocess
import sys
import time

from measuring import Figure, Setting, compiling, figure

_HEAVY = ("torch", "numpy", "safetensors", "ipywidgets", "google", "requests", "paddle", "cloudpickle", "asyncio")
_COUNT = "import sys; before = set(sys.modules); import colabkeep; print(*(set(sys.modules) - before))"


def run(setting: Setting) -> list[Figure]:
    """Pairs of fresh interpreters, one bare and one that imports."""
    added, door = [], []
    _seconds("import colabkeep; colabkeep.resumable_fit")  # compiles what is not compiled yet
    for _ in range(setting.rounds(31)):
        bare = _seconds("pass")
        added.append((_seconds("import colabkeep") - bare) * 1e3)
        door.append((_seconds("import colabkeep; colabkeep.resumable_fit") - bare) * 1e3)
    loaded = subprocess.run([sys.executable, "-c", _COUNT], check=True, capture_output=True, text=True).stdout.split()
    heavy = [name for name in loaded if name.partition(".")[0] in _HEAVY]
    return [
        figure("import colabkeep, over a bare Python", "ms", added, goal=50),
        figure("modules that it loads", "modules", [len(loaded)]),
        figure("heavy ones among them", "modules", [len(heavy)], goal=0),
        figure("first use of resumable_fit, over a bare Python", "ms", door),
    ]


def _seconds(program: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True, env=compiling())
    return time.perf_counter() - start
