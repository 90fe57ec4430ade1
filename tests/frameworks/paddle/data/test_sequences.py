"""Lists and other sequences of batches are positioned by slicing, with Paddle's random numbers kept apart too."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import paddle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colabkeep.core.errors import Incompatible
from colabkeep.frameworks.paddle.data import PaddleData


class Lazy(Sequence):
    """Makes each batch when asked for it, with Paddle's noise."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.made: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> paddle.Tensor:
        self.made.append(index)
        return paddle.rand([3, 2])


@given(length=st.integers(0, 8), done=st.integers(0, 8), kind=st.sampled_from([list, tuple]))
def test_a_list_of_batches_goes_on_at_its_position(length: int, done: int, kind: Any) -> None:
    """What was consumed is not looked at again; the rest are the very objects of the list, with samples counted."""
    done = min(done, length)
    batches = kind([paddle.zeros([n + 1, 2]), paddle.zeros([n + 1])] for n in range(length))
    opened = PaddleData().open(batches, seed=0, epoch=3, batches=done, samples=0, state=None)
    read = list(opened)
    assert [batch.value is batches[done + n] for n, batch in enumerate(read)] == [True] * (length - done)
    assert [batch.samples for batch in read] == list(range(done + 1, length + 1))
    assert opened.length == length


def test_a_lazy_sequence_makes_only_what_is_left_and_makes_it_the_same(kit: SimpleNamespace) -> None:
    """Its noise is a function of seed, epoch and position, and the loop's own numbers do not move."""
    data = PaddleData()
    first = data.open(Lazy(6), seed=1, epoch=0, batches=0, samples=0, state=None)
    values = [batch.value.tolist() for batch in first]
    rest = Lazy(6)
    before = kit.fingerprint()
    resumed = data.open(rest, seed=1, epoch=0, batches=4, samples=0, state=first.state())
    assert [batch.value.tolist() for batch in resumed] == values[4:]
    assert rest.made == [4, 5]
    assert kit.fingerprint() == before


def test_a_list_of_another_length_is_refused() -> None:
    """Its positions would mean other batches."""
    batches = [np.ones(1)] * 3
    state = PaddleData().open(batches, seed=0, epoch=0, batches=0, samples=0, state=None).state()
    with pytest.raises(Incompatible, match="batches: 3 → 2"):
        PaddleData().open(batches[:2], seed=0, epoch=0, batches=1, samples=0, state=state)
