"""Lists and other sequences of batches are positioned by slicing."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colabkeep.core.errors import Incompatible

START: Any = {"seed": 1, "epoch": 0, "batches": 0, "samples": 0, "state": None}


class Lazy(Sequence):
    """Makes each batch when asked for it, with noise."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.made: list[int] = []

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: Any) -> Any:
        self.made.append(index)
        return self.source[index]


@given(length=st.integers(0, 8), done=st.integers(0, 8), kind=st.sampled_from([list, tuple]))
def test_a_list_of_batches_goes_on_at_its_position(kit: SimpleNamespace, length: int, done: int, kind: Any) -> None:
    """What was consumed is not looked at again; the rest are the very objects of the list, with samples counted."""
    done = min(done, length)
    batches = kind([kit.tensor(np.zeros((n + 1, 2))), kit.tensor(np.zeros(n + 1))] for n in range(length))
    opened = kit.Data().open(batches, **{**START, "batches": done})
    read = list(opened)
    assert [batch.value is batches[done + n] for n, batch in enumerate(read)] == [True] * (length - done)
    assert [batch.samples for batch in read] == list(range(done + 1, length + 1))
    assert opened.length == length


def test_a_lazy_sequence_makes_only_what_is_left_and_makes_it_the_same(kit: SimpleNamespace) -> None:
    """Its noise is a function of seed, epoch and position, and the loop's own numbers do not move."""
    first = kit.Data().open(Lazy(kit.Noisy(6)), **START)
    values = [batch.value.tolist() for batch in first]
    rest = Lazy(kit.Noisy(6))
    before = kit.fingerprint()
    resumed = kit.Data().open(rest, **{**START, "batches": 4, "state": first.state()})
    assert [batch.value.tolist() for batch in resumed] == values[4:]
    assert rest.made == [4, 5]
    assert kit.fingerprint() == before


def test_a_list_of_another_length_is_refused(kit: SimpleNamespace) -> None:
    """Its positions would mean other batches."""
    state = kit.Data().open([1, 2, 3], **START).state()
    assert kit.Data().check([1, 2], seed=1, state=state) == ["batches: 3 → 2"]
    with pytest.raises(Incompatible, match="batches: 3 → 2"):
        kit.Data().open([1, 2], **{**START, "batches": 1, "state": state})


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
def test_samples_are_counted_by_the_first_array_of_a_batch(
    kit: SimpleNamespace, value: Any, samples: int | None
) -> None:
    """The leading dimension where there is one; unknown, not guessed, where there is none."""
    (batch,) = kit.Data().open([value], **START)
    assert batch.samples == samples
