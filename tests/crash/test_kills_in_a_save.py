"""A kill at every point between two actions of a save, with only one checkpoint kept."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
Records = list[dict[str, Any]]


@pytest.fixture(scope="module")
def records(framework_name: str) -> Records:
    """One per named point: see the program. Each resumed run came to its end."""
    command = [sys.executable, "-m", "tests.crash.points", framework_name]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    found: Records = json.loads(done.stdout)
    unfinished = [record for record in found if record["ended"] != 0]
    assert unfinished == [], done.stderr[-9000:]
    return found


def test_every_point_of_a_save_was_killed_at(records: Records) -> None:
    """The kills came where they were aimed, and none of the actions of a save was left out."""
    assert all(record["killed"] for record in records)
    actions = {"lock lease", "put run", "put lease", "put blobs", "put checkpoints", "put journal"}
    actions |= {"delete checkpoints", "delete blobs", "list blobs", "list checkpoints"}
    assert {f"{when} {action}" for action in actions for when in ("before", "after")} <= {r["name"] for r in records}


def test_after_a_kill_a_verified_checkpoint_loads(records: Records) -> None:
    """There is no moment without one, once the first was committed; and never an older one than that."""
    for record in records:
        assert (record["loaded"] or 0) >= (record["committed"] or 0), record
        assert record["loaded"] in (None, 4, 8, 11), record


def test_the_run_ends_with_the_same_bits_after_a_kill_at_any_point(records: Records) -> None:
    """A new session goes on from it, is not held up by what lies about, and loses nothing."""
    assert [record for record in records if record["unequal"]] == []
