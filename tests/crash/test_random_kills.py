"""A small share of `python -m tests.long.crashes`, through the very same program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CRASHES = Path(__file__).parents[1] / "long" / "crashes.py"


@pytest.mark.slow
def test_a_training_killed_anywhere_ends_with_the_bits_of_one_left_alone(framework_name: str) -> None:
    """Workers change, saves are torn, validations cut short: weights, samples and all other state are the same."""
    # A process of its own: it forks, which wants one thread and one thread only.
    done = subprocess.run(
        [sys.executable, CRASHES, "--framework", framework_name, "--kills", "12", "--seed", "7", "--json"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    told = json.loads(done.stdout)
    assert told["differing"] == {}
    assert told["left behind"] == []
    assert (done.returncode, told["kills"]) == (0, 12)
    assert told["resumes"] > 0
