"""A small share of `python -m tests.long.kills`, through the very same program."""

from __future__ import annotations

import pytest

from tests.long.places import PLACES
from tests.long.running import told_by


@pytest.mark.slow
@pytest.mark.torch
def test_a_training_kept_anywhere_is_killed_and_goes_on_to_the_same_bits() -> None:
    """At each kind of place, whose service fails now and then: nothing that was called safe is lost, no start is
    refused, and in the end the place has the run that nobody disturbed."""
    told, status = told_by("kills", "--kills", "2", "--seed", "5")
    assert sorted(told) == sorted(PLACES)
    for place, what in told.items():
        assert (place, what["differing"], what["refused"], what["left behind"]) == (place, {}, [], [])
        assert what["kills"] == 2
    assert sum(what["resumes"] for what in told.values()) >= 6
    assert status == 0
