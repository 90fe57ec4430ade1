"""The cells of docs/live-checks.md, which people paste into notebooks of their own, as one process runs them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import colabkeep

_PAGE = Path(__file__).resolve().parents[2] / "docs/live-checks.md"
_TOKENS = dict.fromkeys(("HF_TOKEN", "COLABKEEP_DRIVE", "KAGGLE_API_TOKEN", "KAGGLE_KEY"), "SESAME")


def check_cells(training: str, folder: Path) -> None:
    """Paste cell A, the cell `training` and cell C twice, and see that what they print is what the page says."""
    cells = "\n".join(map(_cell, ("A", training, "C")))
    package = str(Path(colabkeep.__file__).resolve().parents[1])
    machine = {"HOME": str(folder), "PATH": "/usr/bin:/bin", "PYTHONPATH": package, "OMP_NUM_THREADS": "1"}
    steps: list[int] = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", cells],
            cwd=folder,
            env={**machine, **_TOKENS},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert "SESAME" not in done.stdout + done.stderr
        sent = dict(re.findall(r"^LIVE ([AC]) (.*)$", done.stdout, re.MULTILINE))
        assert json.loads(sent["A"])["machine"]["python"] in sys.version
        run_history = json.loads(sent["C"])
        assert len(run_history["sessions"]) == len(steps) + 1
        assert {save["level"] for save in run_history["sessions"][-1]["saves"]} <= {"local", "unknown"}
        said = re.search(r"resumed from epoch \d+, step (\d+)", done.stdout)
        assert (int(said[1]) if said else None) == (steps[-1] if steps else None)
        steps.append(run_history["totals"]["steps"])


def _cell(letter: str) -> str:
    """One cell, without the installing, and for a second."""
    text = _PAGE.read_text()
    block = re.search(r"```python\n(.*?)```", text[text.index(f"**Cell {letter}**") :], re.DOTALL)
    assert block is not None
    lines = [line for line in block[1].splitlines() if not line.startswith("%")]
    return "\n".join(lines).replace("3 min", "1 s")
