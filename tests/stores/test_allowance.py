"""A place that counts is never given more than it takes, and never left alone for long."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from colabkeep.core.rate_limits import HUB_COMMITS
from colabkeep.stores.hub.store import Allowance
from colabkeep.testing.clock import FakeClock

HOUR = HUB_COMMITS.seconds


def spend(wishes):
    """When each of these went, (seconds after the one before, does somebody wait for it?)."""
    clock, times = FakeClock(), []
    allowance = Allowance(HUB_COMMITS, clock.monotonic)
    for seconds, urgent in wishes:
        clock.advance(seconds)
        clock.advance(allowance.rest(urgent=urgent))
        assert allowance.rest(urgent=urgent) <= 1e-6
        allowance.spent()
        times.append(clock.monotonic())
    return times


@settings(max_examples=20)
@given(st.lists(st.tuples(st.floats(0, 120), st.booleans()), min_size=150, max_size=400))
def test_no_hour_has_more_than_the_limit(wishes):
    """Whatever is wished for, and however urgently."""
    times = spend(wishes)
    assert max(bisect_left(times, start + HOUR) - number for number, start in enumerate(times)) <= HUB_COMMITS.most


def test_what_nobody_waits_for_leaves_no_gap():
    """Saves at every moment: an eighth of the hour goes at once, and then one each 36 seconds, for ever."""
    times = spend([(0.1, False)] * 400)
    assert times[15] < 10.0
    gaps = [later - sooner for sooner, later in pairwise(times[20:])]
    assert max(gaps) < 40.0


def test_a_place_that_refused_is_left_alone_for_as_long_as_it_wants():
    """Also where somebody waits."""
    clock = FakeClock()
    allowance = Allowance(HUB_COMMITS, clock.monotonic)
    allowance.refused(43 * 60.0)
    assert allowance.rest(urgent=True) == 43 * 60.0
    clock.advance(42 * 60.0)
    assert allowance.rest(urgent=True) == 60.0
    clock.advance(60.0)
    assert allowance.rest(urgent=False) == 0.0
