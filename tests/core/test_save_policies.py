"""When a save is due: at every multiple, never twice for one, whatever else was saved in between."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colabkeep.core.errors import UsageError
from colabkeep.core.manifest import Progress
from colabkeep.core.policies import (
    Auto,
    EveryEpochs,
    EveryMinutes,
    EverySteps,
    Never,
    SaveMark,
    SavePolicy,
    parse_save_every,
    steps_until_due,
)

START = SaveMark(progress=Progress(), at=0.0)


def saves_over(
    policy: SavePolicy, positions: list[tuple[Progress, float]], others: set[int] = frozenset(), start: SaveMark = START
) -> list[Progress]:
    """Where the policy asks for a save on the way through `positions`; at the indices `others` one is made anyway."""
    mark, asked = start, []
    for i, (progress, now) in enumerate(positions):
        due = policy.due(progress, mark, now) is not None
        if due:
            asked.append(progress)
        if due or i in others:
            mark = SaveMark(progress=progress, at=now)
    return asked


def walk(epochs: int, steps: int, seconds: float = 1.0) -> list[tuple[Progress, float]]:
    """Every boundary of a training, as the loop meets them: after each step, and at the end of each epoch."""
    path, step = [], 0
    for epoch in range(epochs):
        for batch in range(1, steps + 1):
            step += 1
            path.append((Progress(epoch=epoch, step=step, batches=batch), step * seconds))
        path.append((Progress(epoch=epoch + 1, step=step), step * seconds))
    return path


@given(
    n=st.integers(1, 50),
    jumps=st.lists(st.integers(0, 5), max_size=120),
    others=st.sets(st.integers(0, 120)),
    start=st.integers(0, 1000),
)
def test_every_n_steps_saves_once_for_each_multiple_passed(
    n: int, jumps: list[int], others: set[int], start: int
) -> None:
    """Whatever is saved in between and wherever the session began: each multiple of n is answered by one save."""
    path, step = [], start
    for jump in jumps:
        step += jump
        path.append((Progress(step=step, batches=1), 0.0))
    first = SaveMark(progress=Progress(step=start), at=0.0)
    asked = [p.step // n for p in saves_over(EverySteps(n), path, others, first)]
    assert len(asked) == len(set(asked)), "no multiple was answered twice"
    saved = set(asked) | {path[i][0].step // n for i in others if i < len(path)}
    passed = {p.step // n for p, _ in path if p.step // n > start // n}
    assert passed <= saved, "no multiple that the training stopped at was left out"


@given(n=st.integers(1, 5), epochs=st.integers(0, 12), steps=st.integers(1, 4), others=st.sets(st.integers(0, 60)))
def test_every_n_epochs_saves_at_the_end_of_each_nth_epoch(n: int, epochs: int, steps: int, others: set[int]) -> None:
    """At the end of every n-th epoch, once, and nowhere else, unless that very place was saved already."""
    path = walk(epochs, steps)
    others = {i for i in others if i < len(path) and path[i][0].batches}  # saves inside epochs change nothing
    asked = saves_over(EveryEpochs(n), path, others)
    assert [p.epoch for p in asked] == [e for e in range(1, epochs + 1) if e % n == 0]
    assert all(p.batches == 0 for p in asked)


def test_the_end_of_an_epoch_that_is_saved_is_not_saved_again() -> None:
    """A resume from the end of an epoch does not begin with a save of what was just loaded."""
    end = Progress(epoch=2, step=20)
    assert EveryEpochs(1).due(end, SaveMark(progress=end, at=0.0), 0.0) is None
    assert EveryEpochs(1).due(Progress(epoch=3, step=30), SaveMark(progress=end, at=0.0), 0.0) == "epoch"


@given(minutes=st.floats(0.01, 100), seconds=st.floats(0.001, 600), steps=st.integers(1, 200))
def test_every_n_minutes_never_leaves_more_than_that_unsaved(minutes: float, seconds: float, steps: int) -> None:
    """At each step boundary the unsaved time is below n minutes, and two saves are at least n minutes apart."""
    mark = START
    for progress, now in walk(1, steps, seconds)[:-1]:
        if EveryMinutes(minutes).due(progress, mark, now):
            assert now - mark.at >= minutes * 60
            mark = SaveMark(progress=progress, at=now)
        assert now - mark.at < minutes * 60


def test_time_alone_is_no_reason_to_save_what_is_saved() -> None:
    """While training stands still (a long validation) the same state is not saved over and over."""
    here = Progress(epoch=1, step=10)
    assert EveryMinutes(1).due(here, SaveMark(progress=here, at=0.0), 1e6) is None


def test_of_several_policies_any_one_is_enough() -> None:
    """Composed with |, a save is due when either says so, with the reason of the first."""
    policy = EverySteps(10) | EveryMinutes(1) | Never()
    mark = START
    assert policy.due(Progress(step=10), mark, 0.0) == "steps"
    assert policy.due(Progress(step=9), mark, 60.0) == "minutes"
    assert policy.due(Progress(step=10), mark, 60.0) == "steps"
    assert policy.due(Progress(step=9), mark, 59.9) is None
    assert Never().due(Progress(epoch=9, step=10**6), mark, 1e9) is None


class Mine:
    """A policy of the user's own."""

    def due(self, progress: Progress, last: SaveMark, now: float) -> str | None:
        return "mine"


class Declared(SavePolicy):
    """Another one, which says what it is."""

    def due(self, progress: Progress, last: SaveMark, now: float) -> str | None:
        return "declared"


@pytest.mark.parametrize(("mine", "reason"), [(Mine(), "mine"), (Declared(), "declared")])
def test_a_policy_of_the_users_own_composes_on_either_side(mine: SavePolicy, reason: str) -> None:
    """``OnLoss() | EverySteps(5)`` needs nothing of `OnLoss` but `due`; the first that is due gives the reason."""
    steps = EverySteps(5)
    for policy in (mine | steps, mine | (steps | Never()), (steps | Never()) | mine):
        assert parse_save_every(policy) is policy
        assert policy.due(Progress(step=1), START, 0.0) == reason
    assert (mine | steps).due(Progress(step=5), START, 0.0) == reason
    assert (steps | mine).due(Progress(step=5), START, 0.0) == "steps"


@pytest.mark.parametrize("other", ["10 min", 5, None, {}])
def test_what_is_no_policy_does_not_compose(other: Any) -> None:
    """It is refused where it is written, and not in the first step of the training."""
    with pytest.raises(TypeError):
        EverySteps(5) | other
    with pytest.raises(TypeError):
        other | EverySteps(5)


@pytest.mark.parametrize(
    ("value", "policy"),
    [
        (1, EveryEpochs(1)),
        (5, EveryEpochs(5)),
        ("500 steps", EverySteps(500)),
        ("1 step", EverySteps(1)),
        ("500steps", EverySteps(500)),
        (" 500  STEPS ", EverySteps(500)),
        ("2 epochs", EveryEpochs(2)),
        ("10 min", EveryMinutes(10)),
        ("10 minutes", EveryMinutes(10)),
        ("90 s", EveryMinutes(1.5)),
        ("90 sec", EveryMinutes(1.5)),
        ("0.5 h", EveryMinutes(30)),
        ("1 h 30 min", EveryMinutes(90)),
        ("1h30min", EveryMinutes(90)),
        (None, Never()),
        ("auto", Auto()),
        (["auto", "7 steps"], Auto() | EverySteps(7)),
        ([1, "10 min"], EveryEpochs(1) | EveryMinutes(10)),
        (("7 steps", 3), EverySteps(7) | EveryEpochs(3)),
        (EverySteps(3), EverySteps(3)),
    ],
)
def test_save_every_is_read_as_people_write_it(value: Any, policy: SavePolicy) -> None:
    """A bare number counts epochs, a unit says what else, a list takes whichever comes first."""
    assert parse_save_every(value) == policy


def test_a_policy_of_the_users_own_is_used_as_it_is() -> None:
    """Any object with a `due` method is a policy, alone or in a list."""
    mine = Mine()
    assert parse_save_every(mine) is mine
    assert parse_save_every(["5 steps", mine]).due(Progress(step=1), START, 0.0) == "mine"


@pytest.mark.parametrize(
    "value",
    [
        0,
        -1,
        True,
        2.5,
        "",
        "often",
        "10",
        "0 steps",
        "1.5 epochs",
        "-3 steps",
        "0 min",
        "10 parsecs",
        "5 m",
        [],
        {},
        [0],
    ],
)
def test_a_save_every_that_says_nothing_is_refused(value: Any) -> None:
    """The error shows what was passed and what can be passed."""
    with pytest.raises(UsageError, match="does not say when to save") as caught:
        parse_save_every(value)
    assert '"500 steps"' in caught.value.remedy


POLICIES = st.one_of(
    st.sampled_from([Never(), Auto(), EveryEpochs(1), EveryMinutes(1.0)]), st.builds(EverySteps, st.integers(1, 40))
)


@given(policy=POLICIES, other=POLICIES, saved=st.integers(0, 60), since=st.integers(0, 30), most=st.integers(1, 20))
def test_steps_at_which_nothing_can_be_due_are_known_beforehand(
    policy: SavePolicy, other: SavePolicy, saved: int, since: int, most: int
) -> None:
    """As long as no time passes, and up to the end of the epoch."""
    both = policy | other  # type: ignore[operator]  # all of these compose
    mark = SaveMark(progress=Progress(step=saved, batches=saved), at=0.0)
    ahead = steps_until_due(both, Progress(step=saved + since, batches=saved + since), mark, 0.0, most)
    due = [
        both.due(Progress(step=saved + since + n, batches=saved + since + n), mark, 0.0) is not None
        for n in range(1, most + 1)
    ]
    assert ahead == (due.index(True) + 1 if any(due) else most)


def test_a_policy_of_the_users_own_may_be_due_at_each_step() -> None:
    """It is not asked of steps that are not there yet: who counts how often it is asked, would be deceived."""

    class Mine:
        def due(self, progress: Progress, last: SaveMark, now: float) -> str | None:
            raise AssertionError(progress)

    for policy in (Mine(), Mine() | EverySteps(9), EverySteps(9) | Mine()):  # type: ignore[operator]
        assert steps_until_due(policy, Progress(step=3, batches=3), START, 0.0, 16) == 1
