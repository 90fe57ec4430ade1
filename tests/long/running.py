"""The long programs, run by the tests of their small shares."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["told_by", "with_modules"]

_ROOT = Path(__file__).parents[2]


def with_modules() -> dict[str, str]:
    """The environment in which another Python finds the modules of this one, wherever that was started."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [*sys.path, str(_ROOT)]))}


def told_by(name: str, *words: str) -> tuple[Any, int]:
    """What `python -m tests.long.NAME … --json` prints, and its exit status."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.long.{name}", "--json", *words],
        env=with_modules(),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return json.loads(done.stdout), done.returncode
