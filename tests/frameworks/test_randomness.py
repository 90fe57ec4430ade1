"""Random states that somebody made up are told as damage, and never end in a traceback."""

from __future__ import annotations

import random

import pytest

from colabkeep.core.errors import CheckpointDamaged
from colabkeep.frameworks.shared.rng import GlobalStreams, PythonStream


@pytest.mark.parametrize(
    "change",
    [{"version": 2**62}, {"version": None}, {"words": b"\xff" * 2500}, {"words": b""}, {"words": 5}],
    ids=str,
)
def test_a_random_state_that_cannot_be_is_damage(change):
    """Whatever stands in a checkpoint for the state of a generator: it is taken, or refused in words."""
    streams, before = GlobalStreams([PythonStream()]), random.getstate()
    try:
        state = {"python": {**streams.state_dict()["python"], **change}}
        with pytest.raises(CheckpointDamaged, match="python"):
            streams.load_state_dict(state)
    finally:
        random.setstate(before)


@pytest.mark.parametrize("state", [-1, None, "python", ["python"]], ids=str)
def test_what_is_no_state_of_streams_at_all_is_damage(state):
    """Nothing is touched then."""
    before = random.getstate()
    with pytest.raises(CheckpointDamaged, match="random generators"):
        GlobalStreams([PythonStream()]).load_state_dict(state)
    assert random.getstate() == before
