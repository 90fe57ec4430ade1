"""Lists and other sequences of batches are positioned by slicing, without any framework."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colabkeep.core.errors import Incompatible
from colabkeep.frameworks.shared.iterables import IterableData
from colabkeep.frameworks.torch.data import TorchData


class Lazy(Sequence):
    """Makes each batch when asked for it, with noise."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.made: list[int] = []
        self.rng = np.random.default_rng()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> np.ndarray:
        self.made.append(index)
        return np.array([index, random.random(), np.random.random(), self.rng.random()])


@given(length=st.integers(0, 12), done=st.integers(0, 12), kind=st.sampled_from([list, tuple]))
def test_a_list_of_batches_goes_on_at_its_position(length: int, done: int, kind: Any) -> None:
    """Whatever was consumed is not looked at again; the rest are the very objects of the list."""
    done = min(done, length)
    batches = kind({"x": np.zeros((n + 1, 2))} for n in range(length))
    for data in (IterableData(), TorchData()):
        opened = data.open(batches, seed=0, epoch=3, batches=done, samples=0, state=None)
        read = list(opened)
        assert [batch.value is batches[done + n] for n, batch in enumerate(read)] == [True] * (length - done)
        assert [batch.samples for batch in read] == list(range(done + 1, length + 1))
        assert opened.length == length


def test_a_lazy_sequence_makes_only_what_is_left_and_makes_it_the_same() -> None:
    """Its noise is a function of seed, epoch and position."""
    whole = Lazy(6)
    first = IterableData().open(whole, seed=1, epoch=0, batches=0, samples=0, state=None)
    values = [batch.value for batch in first]
    rest = Lazy(6)
    before = random.getstate()
    resumed = IterableData().open(rest, seed=1, epoch=0, batches=4, samples=0, state=first.state())
    assert np.array_equal([batch.value for batch in resumed], values[4:])
    assert rest.made == [4, 5]
    assert random.getstate() == before


def test_a_list_of_another_length_is_refused() -> None:
    """Its positions would mean other batches."""
    state = IterableData().open([1, 2, 3], seed=0, epoch=0, batches=0, samples=0, state=None).state()
    assert IterableData().check([1, 2], seed=0, state=state) == ["batches: 3 → 2"]
    with pytest.raises(Incompatible, match="batches: 3 → 2"):
        IterableData().open([1, 2], seed=0, epoch=0, batches=1, samples=0, state=state)


@pytest.mark.parametrize(
    ("value", "samples"),
    [
        (np.zeros((4, 2)), 4),
        ((np.zeros((3, 2)), np.zeros(3)), 3),
        ({"label": "text", "image": [np.zeros((5, 1))]}, 5),
        ([1, 2, 3], None),
        (np.float32(3), None),
        ("text", None),
        ([], None),
    ],
)
def test_samples_are_counted_by_the_first_array_of_a_batch(value: Any, samples: int | None) -> None:
    """The leading dimension where there is one; unknown, not guessed, where there is none."""
    (batch,) = IterableData().open([value], seed=0, epoch=0, batches=0, samples=0, state=None)
    assert batch.samples == samples
