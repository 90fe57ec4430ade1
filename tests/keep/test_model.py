"""A small share of the programs of `python -m tests.keep.model`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.keep.model import play, programs


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs)
def test_what_comes_back_existed_at_rest(program: list[tuple[str, Any]]) -> None:
    """Whatever a program does, and whenever it is looked at; also over new sessions and machines."""
    play(program)


def test_one_changed_file_does_not_hold_up_those_that_were_to_be_stored_with_it() -> None:
    """A version that was not made because of it leaves nothing behind that the next one needs."""
    world = play([("meddling", ("write", "last.bin", "n", 1)), ("pause", None), ("rest", None)])
    assert world.void == 1


def test_a_file_that_is_cut_before_its_holes_are_looked_for_is_not_kept_as_one() -> None:
    """All of it would be a hole, and the digests of nothing would be right."""
    world = play([("meddling", ("truncate", "n", "n", 0)), ("pause", None), ("rest", None)])
    assert world.void == 1
