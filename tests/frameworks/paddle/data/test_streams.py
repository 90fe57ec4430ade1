"""Paddle's random streams are put back to the last bit, and found wherever they hide."""

from __future__ import annotations

import random

import numpy as np
import paddle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paddle.framework import core

from colabkeep.frameworks.paddle.reading import PADDLE
from colabkeep.frameworks.shared.streams import Aside, Streams, held, reachable


def draw_everything() -> list[float]:
    return [paddle.rand([1]).item(), random.random(), float(np.random.standard_normal()), float(np.random.random())]


def seed_everything(seed: int) -> None:
    paddle.seed(seed), np.random.seed(seed), random.seed(seed)


@given(before=st.integers(0, 5), inside=st.integers(0, 5), seed=st.integers(0, 2**63 - 1))
def test_paddle_continues_with_the_very_next_number(before: int, inside: int, seed: int) -> None:
    """Whatever was drawn before, and whatever is drawn in between from another seed."""
    paddle.seed(3)
    expected = paddle.rand([before + 4]).tolist()
    paddle.seed(3)
    paddle.rand([before])
    with Aside(Streams(PADDLE.shared()), seed):
        paddle.rand([inside])
    assert paddle.rand([4]).tolist() == expected[before:]


def test_a_seed_forgets_what_was_drawn_before() -> None:
    """Equal seeds give equal numbers of all kinds, whatever was drawn (a lone normal, for one) before."""
    streams = Streams(PADDLE.shared())
    outer = streams.take()
    drawn = []
    for normals in (0, 1):
        np.random.standard_normal(normals)
        paddle.rand([normals])
        streams.seed(12345)
        drawn.append(draw_everything())
    streams.put(outer)
    assert drawn[0] == drawn[1]


def test_streams_of_their_own_go_on_where_the_last_visit_left_them() -> None:
    """What is drawn in three visits is what one long visit would draw, and outside nothing has moved."""
    streams = Streams(PADDLE.shared())
    aside = Aside(streams, seed=7)
    with Aside(streams, seed=7):
        expected = [draw_everything() for _ in range(3)]
    seed_everything(0)
    outside = draw_everything()
    seed_everything(0)
    visits = []
    for _ in range(3):
        with aside:
            visits.append(draw_everything())
    assert visits == expected
    assert draw_everything() == outside


def test_streams_are_put_back_when_an_exception_passes() -> None:
    """An error inside leaves the global streams where they were."""
    seed_everything(0)
    expected = draw_everything()
    seed_everything(0)
    with pytest.raises(ZeroDivisionError), Aside(Streams(PADDLE.shared()), seed=7):
        sum(draw_everything()) / 0
    assert draw_everything() == expected


class Holder:
    def __init__(self) -> None:
        self.private = {"paddle": core.Generator(), "numpy": np.random.default_rng(), "python": random.Random()}


def test_generator_objects_are_found_and_seeded_each_with_numbers_of_its_own() -> None:
    """Paddle's, NumPy's and Python's; the global ones have their place already."""
    first, second = Holder(), Holder()
    assert len(held(PADDLE, first, second, core.default_cpu_generator())) == 6
    drawn = []
    for _ in range(2):
        with Aside(Streams.of(PADDLE, first, second), seed=11):
            drawn.append([(h.private["paddle"].random(), h.private["python"].random()) for h in (first, second)])
    assert drawn[0] == drawn[1]
    assert len({number for pair in drawn[0] for number in pair}) == 4


def test_looking_for_generators_does_not_walk_through_paddle() -> None:
    """A data set of Paddle's own, and its transforms, are a handful of objects, not the whole library."""
    transform = paddle.vision.transforms.Compose([paddle.vision.transforms.RandomHorizontalFlip()])
    assert len(list(reachable(transform))) < 20
