"""How often to save: what loses least, within bounds that are stated."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colabkeep.core.errors import UsageError
from colabkeep.core.manifest import Progress
from colabkeep.core.policies import (
    Auto,
    Cadence,
    EverySteps,
    Measures,
    Never,
    SaveMark,
    SessionLifetime,
    adapt,
    choose,
    improved,
    is_auto,
    mean_session,
    read_overhead,
)

HOUR = 3600.0
MEASURES = Measures(cost=0.4, session=4 * HOUR)

costs = st.floats(0, 100)
sessions = st.floats(600, 1e6)
measured = st.builds(
    Measures,
    cost=costs,
    session=sessions,
    carried=st.floats(0, 2000),
    budget=st.floats(0, 5000),
    far=st.booleans(),
    vanishes=st.booleans(),
)


@pytest.mark.parametrize(
    ("measures", "seconds", "why"),
    [
        (Measures(cost=0.4, session=4 * HOUR), 110.0, "loss"),  # sqrt(2 * 0.4 * 14400) = 107.3
        (Measures(cost=0.1, session=1 * HOUR), 30.0, "loss"),  # 26.8
        (Measures(cost=0.0, session=4 * HOUR), 15.0, "floor"),
        (Measures(cost=0.0, session=4 * HOUR, far=True), 60.0, "floor"),
        (Measures(cost=2.0, session=2 * HOUR), 200.0, "overhead"),  # 169.7 would be 1.2 %
        (Measures(cost=0.02, session=4 * HOUR, carried=80.0), 100.0, "storage"),
        (Measures(cost=5.0, session=12 * HOUR), 600.0, "ceiling"),  # 657 would lose least
        (Measures(cost=10.0, session=2 * HOUR), 1020.0, "overhead"),  # 600 would be 1.7 %
        (Measures(cost=20.0, session=12 * HOUR), 1800.0, "ceiling"),  # 1.1 %, but half an hour is never exceeded
        (Measures(cost=0.02, session=4 * HOUR, carried=9000.0), 600.0, "ceiling"),
        (Measures(cost=0.1, session=4 * HOUR, budget=31.2, far=True), 60.0, "floor"),
        (Measures(cost=0.1, session=4 * HOUR, budget=94.2, far=True), 100.0, "budget"),
        (Measures(cost=0.1, session=4 * HOUR, budget=2400.0, far=True), 2400.0, "budget"),
        (Measures(cost=3.0, session=100 * HOUR, vanishes=False), 1470.0, "loss"),
        (Measures(cost=50.0, session=100 * HOUR, vanishes=False), 1800.0, "ceiling"),
    ],
    ids=str,
)
def test_the_interval_is_the_one_that_loses_least_within_its_bounds(
    measures: Measures, seconds: float, why: str
) -> None:
    """Young's square root, rounded to what people say, and moved by the bound that is named."""
    chosen = choose(measures)
    assert (chosen.seconds, chosen.why) == (seconds, why)


@given(cost=st.floats(0.02, 3), session=st.floats(HOUR, 20 * HOUR), other=st.floats(15, 600))
def test_no_other_interval_would_lose_less(cost: float, session: float, other: float) -> None:
    """Where no bound moved it: saves and what a disconnect takes cost least there, but for the rounding."""

    def lost(interval: float) -> float:
        return cost / interval + interval / (2 * session)

    chosen = choose(Measures(cost=cost, session=session))
    if chosen.why == "loss":
        assert lost(chosen.seconds) <= lost(other) * 1.06


@given(measures=measured, overhead=st.floats(0.001, 0.5))
def test_the_bounds_hold_whatever_was_measured(measures: Measures, overhead: float) -> None:
    """Never below the floor, nor more often than the place's budget allows. Saves cost no more than asked for, unless
    they would be half an hour apart, and then the sentence says so; nothing else moves them further apart than the
    ceiling. Storage is given no more than it takes, unless that is rarer than the ceiling."""
    chosen = choose(measures, overhead)
    floor = max(60.0 if measures.far else 15.0, measures.budget)
    ceiling = max(600.0 if measures.vanishes else 1800.0, measures.budget)
    affordable = measures.cost / overhead
    most = max(ceiling, min(1800.0, affordable + 30), measures.budget + 30)
    assert floor * (1 - 1e-9) <= chosen.least <= chosen.epoch_seconds <= chosen.seconds <= most * (1 + 1e-9)
    if affordable <= 1800.0:
        assert affordable <= chosen.least * (1 + 1e-9), "nor at the end of an epoch"
    elif measures.cost > overhead * chosen.seconds * 1.06:
        assert "would risk too much" in chosen.sentence()
    if chosen.seconds < ceiling:
        assert measures.carried * 1.25 <= chosen.seconds
    elif measures.carried > chosen.seconds and affordable <= 1800.0:
        assert "uploads are slower than saves" in chosen.sentence()


@given(measures=measured, before=measured)
def test_it_adapts_in_bounded_steps(measures: Measures, before: Measures) -> None:
    """Twice or half at most from one save to the next: a single odd measurement costs little."""
    first = choose(before)
    same_place = {"far": before.far, "vanishes": before.vanishes, "budget": before.budget}
    then = choose(replace(measures, **same_place), before=first)
    assert first.seconds / 2 <= then.seconds <= first.seconds * 2


def test_it_does_not_flutter() -> None:
    """A cost that is a fifth more is no reason to change what the user reads; one that stays large is, in the end."""
    chosen = choose(MEASURES)
    assert choose(replace(MEASURES, cost=0.48), before=chosen).seconds == chosen.seconds
    for _ in range(5):
        chosen = choose(replace(MEASURES, cost=4.0), before=chosen)
    assert chosen.seconds == choose(replace(MEASURES, cost=4.0)).seconds
    assert not improved(choose(replace(MEASURES, cost=0.8)), choose(MEASURES)), "told again only when it doubled"
    assert improved(choose(replace(MEASURES, cost=3.0)), choose(MEASURES))


def test_the_choice_says_itself_in_one_sentence() -> None:
    """How often, and from which three figures; the bound that moved it, if one did."""
    told = choose(Measures(cost=0.02, session=4 * HOUR, carried=80.0)).sentence()
    assert told == (
        "saving every 1 min 40 s: a save costs 20 ms here, assuming sessions of about 4 h, storage takes one per "
        "1 min 20 s; saves come no faster than the storage can take them"
    )
    assert (
        choose(MEASURES).sentence()
        == "saving every 1 min 50 s: a save costs 0.4 s here, assuming sessions of about 4 h"
    )
    assert "more than 1 % of the time" in choose(Measures(cost=2.0, session=2 * HOUR)).sentence()
    on_its_way = choose(Measures(cost=2.0, session=2 * HOUR), before=choose(Measures(cost=0.0, session=2 * HOUR)))
    assert on_its_way.sentence().endswith("; that is 6.7 % of the time, and becomes less"), (
        "30 s, as the next step to 200"
    )
    assert "less than 1 ms" in choose(Measures(cost=0.0, session=600.0)).sentence()
    slow = choose(Measures(cost=0.1, session=4 * HOUR, carried=14 * HOUR, far=True))
    assert slow.sentence() == (
        "saving every 10 min: a save costs 0.1 s here, assuming sessions of about 4 h, storage takes one per 14 h; "
        "uploads are slower than saves, so the newest waiting checkpoint is uploaded next"
    )


@pytest.mark.parametrize(
    ("lives", "hours"),
    [
        ([], 2.5),
        ([(1.0, True)], 1.75),  # (2.5 + 1) / 2
        ([(1.0, True)] * 4, 1.3),
        ([(8.0, False)], 10.5),  # it said goodbye: eight hours without a disconnect
        ([(0.0, True)] * 100, 1 / 6),
    ],
)
def test_the_runs_own_past_weighs_more_with_each_session(lives: list[tuple[float, bool]], hours: float) -> None:
    """What is usual on such a machine counts as one session; lived time without a disconnect makes the mean longer."""
    past = [SessionLifetime(seconds=seconds * HOUR, vanished=vanished) for seconds, vanished in lives]
    assert mean_session(2.5 * HOUR, past) == pytest.approx(hours * HOUR)


@pytest.mark.parametrize("value", [0, -0.01, 0.6, 1, math.nan, math.inf, True, "1 %", None])
def test_an_overhead_that_is_no_share_is_refused(value: Any) -> None:
    """The error shows what was passed and what can be."""
    with pytest.raises(UsageError, match="overhead=") as caught:
        read_overhead(value)
    assert "0.01" in caught.value.remedy
    assert read_overhead(0.05) == 0.05


def due(cadence: Cadence | None, here: Progress, seconds: float, last: Progress = Progress()) -> str | None:  # noqa: B008
    return Auto(cadence=cadence).due(here, SaveMark(progress=last, at=1000.0), 1000.0 + seconds)


def test_the_first_save_of_a_session_comes_soon() -> None:
    """After 20 steps, or after two minutes of slow ones: a storage that does not work is seen while somebody looks."""
    assert due(None, Progress(step=119, batches=19), 1.0, Progress(step=100)) is None
    assert due(None, Progress(step=120, batches=20), 1.0, Progress(step=100)) == "first"
    assert due(None, Progress(step=101, batches=1), 119.0, Progress(step=100)) is None
    assert due(None, Progress(step=101, batches=1), 120.0, Progress(step=100)) == "first"
    assert due(None, Progress(step=100), 1e6, Progress(step=100)) is None, "what is saved is not saved again"


def test_the_end_of_an_epoch_takes_a_save_that_is_nearly_due() -> None:
    """It is as good there as later, and a tidier place to go on from; but never sooner than the bounds allow."""
    chosen = choose(MEASURES)
    end, inside = Progress(epoch=1, step=50), Progress(epoch=1, step=50, batches=3)
    assert chosen.epoch_seconds == pytest.approx(110.0 * 2 / 3)
    assert due(chosen, end, 74.0) == "epoch"
    assert due(chosen, end, 73.0) is None
    assert due(chosen, inside, 109.0) is None
    assert due(chosen, inside, 110.0) == "auto"
    bound = choose(Measures(cost=2.0, session=2 * HOUR))
    assert bound.epoch_seconds == bound.seconds, "else saves would cost more than the overhead allows"
    assert due(chosen, end, 1e6, last=end) is None


def test_only_what_colabkeep_chooses_is_adapted() -> None:
    """Beside a figure of the user's own, in a list, that one stays."""
    chosen = choose(MEASURES)
    both = EverySteps(500) | Auto()
    assert adapt(both, chosen) == EverySteps(500) | Auto(cadence=chosen)
    assert adapt(Never(), chosen) == Never()
    assert [is_auto(each) for each in (both, Auto(), EverySteps(1), Never() | EverySteps(2))] == [
        True,
        True,
        False,
        False,
    ]
