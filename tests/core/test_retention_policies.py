"""What is kept: the newest, the best, and never fewer than one policy alone would keep."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colabkeep.checkpoint.retention import KeepBest, KeepLast, RetentionPolicy
from colabkeep.core.manifest import Manifest, Progress
from colabkeep.core.policies import Mode

NAN, INF = math.nan, math.inf


def manifests(*losses: float | None) -> list[Manifest]:
    """Checkpoints from the oldest to the newest, named by their place; None: the metric was not measured there."""
    return [
        Manifest(
            id=str(i),
            run="r",
            session="0" * 8,
            fence=1,
            progress=Progress(step=i),
            blobs=(),
            parts={},
            framework="numpy",
            metrics={} if loss is None else {"val_loss": loss},
        )
        for i, loss in enumerate(losses)
    ]


def kept(policy: RetentionPolicy, *losses: float | None) -> str:
    doomed = {manifest.id for manifest in policy.doomed(manifests(*losses))}
    return "".join(m.id for m in manifests(*losses) if m.id not in doomed)


def best(n: int, mode: Mode = "min") -> KeepBest:
    return KeepBest(n=n, monitor="val_loss", mode=mode)


values = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True))
policies = st.one_of(
    st.builds(KeepLast, st.one_of(st.none(), st.integers(1, 5))),
    st.builds(KeepBest, n=st.integers(0, 5), monitor=st.just("val_loss"), mode=st.sampled_from(["min", "max"])),
)


@pytest.mark.parametrize(("n", "left"), [(None, "01234"), (1, "4"), (2, "34"), (5, "01234"), (99, "01234"), (0, "")])
def test_keep_last_keeps_the_newest(n: int | None, left: str) -> None:
    """The newest n stay, in whatever number there are; None keeps all."""
    assert kept(KeepLast(n), *[None] * 5) == left


@pytest.mark.parametrize(
    ("policy", "losses", "left"),
    [
        (best(1), (3.0, 1.0, 2.0), "1"),
        (best(1, "max"), (3.0, 1.0, 2.0), "0"),
        (best(2), (3.0, 1.0, 2.0), "12"),
        (best(2), (1.0, 1.0, 1.0), "01"),
        (best(2, "max"), (1.0, 1.0, 1.0), "01"),
        (best(1), (NAN, 5.0, NAN), "1"),
        (best(3), (NAN, 5.0, None), "1"),
        (best(1), (NAN, NAN), ""),
        (best(1), (INF, 5.0, -INF), "2"),
        (best(1, "max"), (INF, 5.0, -INF), "0"),
        (best(0), (1.0, 2.0), ""),
        (best(5), (), ""),
    ],
)
def test_keep_best_ranks_by_the_metric(policy: KeepBest, losses: tuple[float | None, ...], left: str) -> None:
    """NaN and unmeasured are never best; of equals the older stays, so that "best" does not wander."""
    assert kept(policy, *losses) == left


@given(n=st.integers(1, 6), losses=st.lists(values, min_size=1, max_size=12), other=policies)
def test_the_newest_is_never_doomed_while_one_is_to_be_kept(
    n: int, losses: list[float | None], other: RetentionPolicy
) -> None:
    """With keep_last of at least one, alone or composed with anything, the newest checkpoint stays."""
    newest = str(len(losses) - 1)
    for policy in (KeepLast(n), KeepLast(n) + other, other + KeepLast(n)):
        assert newest not in {manifest.id for manifest in policy.doomed(manifests(*losses))}


@given(one=policies, two=policies, losses=st.lists(values, max_size=12))
def test_composed_policies_keep_what_either_keeps(
    one: RetentionPolicy, two: RetentionPolicy, losses: list[float | None]
) -> None:
    """a + b dooms exactly what both doom, and the rest comes back untouched and in order."""
    all_of_them = manifests(*losses)
    both = one + two
    assert both.keeps(all_of_them) == one.keeps(all_of_them) | two.keeps(all_of_them)
    doomed = both.doomed(all_of_them)
    assert [m.id for m in all_of_them if m.id not in both.keeps(all_of_them)] == [m.id for m in doomed]


@given(losses=st.lists(values, max_size=12), n=st.integers(0, 5), mode=st.sampled_from(["min", "max"]))
def test_nothing_doomed_is_better_than_anything_kept_as_best(losses: list[float | None], n: int, mode: Mode) -> None:
    """No order of equal, infinite or missing values lets a better checkpoint go before a worse one."""
    policy = best(n, mode)
    all_of_them = manifests(*losses)
    ids = policy.keeps(all_of_them)
    measured = [v for v in losses if v is not None and not math.isnan(v)]
    assert len(ids) == min(n, len(measured))
    sign = 1 if mode == "min" else -1
    worst_kept = max((sign * m.metrics["val_loss"] for m in all_of_them if m.id in ids), default=-INF)
    for manifest in all_of_them:
        value = manifest.metrics.get("val_loss", NAN)
        if manifest.id not in ids and not math.isnan(value) and n:
            assert sign * value >= worst_kept


@given(before=st.lists(st.floats(allow_nan=True), max_size=8), value=st.floats(allow_nan=True), n=st.integers(1, 4))
def test_a_value_is_among_the_best_when_its_checkpoint_would_be_kept(before: list[float], value: float, n: int) -> None:
    """The question "save this one as best?" and the rule for keeping agree; a tie with the n-th best counts as best."""
    policy = best(n)
    said = policy.among_best(value, [*before, value])
    strictly_better = sum(1 for other in before if other < value)
    assert said == (not math.isnan(value) and strictly_better < n)
    if str(len(before)) in policy.keeps(manifests(*before, value)):
        assert said
