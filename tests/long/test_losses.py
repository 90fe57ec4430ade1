"""A small share of `python -m tests.long.losses` and `python -m tests.long.quota`, through the very same programs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def run(program: str, *words: str) -> tuple[int, dict]:
    """A process of its own: one of them forks, which wants one thread and one thread only."""
    command = [sys.executable, Path(__file__).with_name(program), *words, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.slow
def test_what_was_called_safe_is_there_after_every_loss() -> None:
    """A drive of which 30 % of the operations fail, kills anywhere, machines that are given away: what was called
    confirmed is there and whole, and nobody would have lost more than the ledger said."""
    status, told = run("losses.py", "--saves", "120", "--seed", "4")
    assert told["wrong"] == []
    assert status == 0
    assert told["saves"] >= 120
    assert told["lost_machines"] > 1
    assert told["confirmed"] > 0  # how many, is a matter of the machine's speed
    assert told["checked"] > 0


@pytest.mark.slow
def test_a_thousand_saves_into_fifteen_gigabytes_are_never_full() -> None:
    """Trash that counts, other people's files, more to be kept than fits: no save was ever refused. A gigabyte is
    smaller here, so that it takes seconds; the decisions are the same."""
    status, told = run("quota.py", "--saves", "1000", "--gigabyte", "150000")
    assert told["wrong"] == []
    assert (status, told["saves"], told["refused"]) == (0, 1000, 0)
    assert told["least_free"] > 0
    assert told["kept_at_the_end"] >= 1
