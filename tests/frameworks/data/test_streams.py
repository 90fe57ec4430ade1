"""Random streams of a framework, NumPy and Python are put back to the last bit."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colabkeep.frameworks.shared.streams import LegacyStream, StreamScope, StreamSet, held


def draw_everything(kit: SimpleNamespace) -> list[float]:
    return [kit.draw(), random.random(), float(np.random.standard_normal()), float(np.random.random())]


@given(before=st.integers(0, 5), inside=st.integers(0, 5), seed=st.integers(0, 2**63 - 1))
def test_a_framework_continues_with_the_very_next_number(
    kit: SimpleNamespace, before: int, inside: int, seed: int
) -> None:
    """Whatever was drawn before, and whatever is drawn in between from another seed."""
    kit.seed(3)
    expected = [kit.draw() for _ in range(before + 4)]
    kit.seed(3)
    for _ in range(before):
        kit.draw()
    with StreamScope(StreamSet(kit.KINDS.shared()), seed):
        for _ in range(inside):
            kit.draw()
    assert [kit.draw() for _ in range(4)] == expected[before:]


def test_a_seed_forgets_what_was_drawn_before(kit: SimpleNamespace) -> None:
    """Equal seeds give equal numbers of all kinds, whatever was drawn (a lone normal, for one) before."""
    streams = StreamSet(kit.KINDS.shared())
    outer = streams.take()
    drawn = []
    for normals in (0, 1):
        np.random.standard_normal(normals)
        streams.seed(12345)
        drawn.append(draw_everything(kit))
    streams.put(outer)
    assert drawn[0] == drawn[1]


def test_streams_of_their_own_go_on_where_the_last_visit_left_them(kit: SimpleNamespace) -> None:
    """What is drawn in three visits is what one long visit would draw, in one taken out and put into another, too; and
    outside nothing has moved."""
    streams = StreamSet(kit.KINDS.shared())
    aside, later = StreamScope(streams, seed=7), StreamScope(streams, seed=8)
    with StreamScope(streams, seed=7):
        expected = [draw_everything(kit) for _ in range(3)]
    kit.seed_all(0)
    outside = draw_everything(kit)
    kit.seed_all(0)
    visits = []
    for scope in (aside, aside, later):
        if scope is later:
            later.put(aside.take())
        with scope:
            visits.append(draw_everything(kit))
    assert visits == expected
    assert draw_everything(kit) == outside
    aside.restart(7)
    with aside:
        assert draw_everything(kit) == expected[0]


def test_streams_are_put_back_when_an_exception_passes(kit: SimpleNamespace) -> None:
    """An error inside leaves the global streams where they were."""
    kit.seed_all(0)
    expected = draw_everything(kit)
    kit.seed_all(0)
    with pytest.raises(ZeroDivisionError), StreamScope(StreamSet(kit.KINDS.shared()), seed=7):
        sum(draw_everything(kit)) / 0
    assert draw_everything(kit) == expected


def test_generators_of_one_data_set_get_numbers_of_their_own(kit: SimpleNamespace) -> None:
    """Two transforms with a generator each must not flip and crop by the same numbers."""
    owners = [np.random.RandomState(0) for _ in range(4)]
    with StreamScope(StreamSet(kit.KINDS.shared(), [LegacyStream(owner) for owner in owners]), 99):
        drawn = [*(owner.random_sample() for owner in (np.random, *owners)), kit.draw()]
    assert len(set(drawn)) == 6


def test_generator_objects_are_found_and_seeded_each_with_numbers_of_its_own(kit: SimpleNamespace) -> None:
    """The framework's, NumPy's and Python's; the global ones have their place already."""
    first, second = kit.Noisy(), kit.Noisy()
    first.further, second.further = kit.generator(), kit.generator()
    assert len(held(kit.KINDS, first, second, kit.GLOBAL)) == 2 * (1 + len(first.private))
    drawn = []
    for _ in range(2):
        with StreamScope(StreamSet.of(kit.KINDS, first, second), seed=11):
            drawn.append([(kit.draw_of(each.further), each.private["python"].random()) for each in (first, second)])
    assert drawn[0] == drawn[1]
    assert len({number for pair in drawn[0] for number in pair}) == 4
