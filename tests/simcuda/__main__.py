"""The tests that need a CUDA device, on a simulated one: `python -m tests.simcuda [--few] [arguments of pytest]`.

All of them under the first schedule, those marked `orders` under each of the five, two processes at a time. With
`--few`, under the first one and another, drawn by lot: CI's share. Where
the simulation cannot be had, it says why: that is a failure where CI=true is set, and elsewhere only a sentence.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.environments import TESTS, needs
from tests.simcuda import building
from tests.simcuda.device import SCHEDULES

_PYTEST = (
    Path(sysconfig.get_path("scripts")) / "pytest"
)  # `python -m pytest` would test the source, not what is installed
_AT_ONCE = 2
_MARKS = re.compile(r"\bpytest\.mark\.(cuda|simulated)\b")
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # of tiny arithmetic: more only wait for each other


def files() -> list[Path]:
    """Those with a test that needs a CUDA device and no framework but torch. Nobody keeps a list."""
    marked = (file for file in sorted(TESTS.rglob("test_*.py")) if _MARKS.search(file.read_text()))
    return [file for file in marked if "paddle" not in needs(file)]


def suites(drawn: random.Random, few: bool) -> list[tuple[str, str]]:
    """The schedule and the marks of each process, the longest first."""
    seed = drawn.randrange(10**6)
    first, *others = (f"chaos:{seed}" if word == "chaos" else word for word in SCHEDULES)
    if few:
        others = [drawn.choice(others)]
    return [
        (first, "simulated and not orders"),
        (first, "cuda and not simulated and not orders"),
        (first, "(cuda or simulated) and orders"),
        *((schedule, "(cuda or simulated) and orders") for schedule in others),
    ]


def run(schedule: str, marks: str, more: list[str]) -> bool:
    """One process; its output when it has ended."""
    command = [_PYTEST, f"--simulated-gpu={schedule}", "--no-skips", "-n0", "-q", "-m", marks, *more, *files()]
    began = time.monotonic()
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        cwd=TESTS.parent,
        env={**os.environ, **_ONE_THREAD},
    )
    told = done.stdout if done.returncode else done.stdout.rstrip().rpartition("\n")[2]
    print(f"{schedule}, {marks}: {told} ({time.monotonic() - began:.0f} s)", flush=True)
    return done.returncode == 0


def main(more: list[str]) -> int:
    """The status of the whole."""
    try:
        building.library()
    except RuntimeError as reason:
        print(f"NOT RUN: the tests that need a CUDA device. {reason}")
        return 1 if os.environ.get("CI") else 0
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        few = "--few" in more
        more = [each for each in more if each != "--few"]
        passed = list(pool.map(lambda suite: run(*suite, more), suites(random.Random(), few)))
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
