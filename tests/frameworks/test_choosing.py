"""Which way a save is copied, from what both ways cost."""

from __future__ import annotations

import pytest

from colabkeep.frameworks.common.choosing import Choice


def ways(choice: Choice, saves: int, *, hidden: float, stopped: float, work: float = 1.0) -> list[bool]:
    """Which of the next saves are hidden, where each way always costs the same."""
    chosen = []
    for _ in range(saves):
        chosen.append(choice.hides())
        choice.note(chosen[-1], hidden if chosen[-1] else stopped, work)
    return chosen


def test_what_clearly_wins_needs_no_comparison() -> None:
    """Where hiding costs next to nothing, training is never stopped to prove it."""
    assert all(ways(Choice(), 40, hidden=0.1, stopped=1.0))


def test_where_hiding_costs_more_training_is_stopped() -> None:
    """Two hidden saves, one with a stop, and the cheaper way is known; now and then the other is tried again."""
    chosen = ways(Choice(), 40, hidden=2.0, stopped=1.0)
    assert chosen[:3] == [True, True, False]
    assert chosen.count(True) == 4


def test_where_hiding_costs_less_it_goes_on() -> None:
    """One save with a stop is enough to know."""
    chosen = ways(Choice(), 12, hidden=0.8, stopped=1.0)
    assert chosen.count(False) == 1


def test_one_disturbed_measurement_does_not_decide_for_good() -> None:
    """A machine that was busy once is measured again."""
    choice = Choice()
    ways(choice, 2, hidden=5.0, stopped=1.0)
    later = ways(choice, 60, hidden=0.5, stopped=1.0)
    assert all(later[-10:])


def test_a_torn_snapshot_is_followed_by_a_stop_and_two_by_no_more_hiding() -> None:
    """Who edits weights between steps gets checkpoints all the same."""
    choice = Choice()
    choice.tore()
    assert [choice.hides(), choice.hides()] == [False, True]
    choice.tore()
    assert not any(choice.hides() for _ in range(40))
    assert "changed twice" in choice.why_stopped


def test_a_stop_after_a_torn_snapshot_is_told_as_that() -> None:
    """Also where a stop was measured before, and lost: the user does not read that it costs less."""
    choice = Choice()
    assert ways(choice, 4, hidden=0.8, stopped=1.0) == [True, True, False, True]
    choice.tore()
    assert not choice.hides()
    assert "changed under way" in choice.why_stopped
    choice.note(False, 1.0, 1.0)
    assert choice.hides()


@pytest.mark.parametrize("saves", [2, 19])
def test_a_stop_that_is_tried_is_told_as_that(saves: int) -> None:
    """The first one, and those after a while where hiding wins: nothing says yet, or any more, that it costs less."""
    choice = Choice()
    ways(choice, saves, hidden=0.8, stopped=1.0)
    while choice.hides():
        choice.note(True, 0.8, 1.0)
    assert "to measure" in choice.why_stopped


def test_a_stop_that_costs_less_is_told_as_that() -> None:
    """Also where a snapshot was torn some saves before."""
    choice = Choice()
    choice.tore()
    ways(choice, 4, hidden=2.0, stopped=1.0)
    assert not choice.hides()
    assert "cost this training less" in choice.why_stopped
