"""Seeds belong to the format: another rule would reorder the data of runs under way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colabkeep.core.state import derive

positions = st.lists(st.one_of(st.integers(), st.text("abcxyz", min_size=1)), min_size=1, max_size=5).map(tuple)


@pytest.mark.parametrize(
    ("position", "seed"),
    [
        ((0,), 4246866556266386882),
        ((0, "batch", 3, 17), 5029983181483603916),
        ((1, "epoch", 0), 8311519735065112820),
        ((-1, "é"), 2856505234447881937),
        ((2**80,), 3491249413478864890),
    ],
)
def test_the_seed_of_a_position_is_the_same_for_ever(position: tuple[int | str, ...], seed: int) -> None:
    """A run begun with an older version, on another machine, goes on with the same data."""
    assert derive(*position) == seed


@given(positions)
def test_every_seed_fits_every_generator(position: tuple[int | str, ...]) -> None:
    """Seeds are in 0 … 2**63 - 1, which Python, NumPy (as words) and torch take."""
    assert 0 <= derive(*position) < 2**63


@given(positions, positions)
def test_different_positions_have_different_seeds(one: tuple[int | str, ...], other: tuple[int | str, ...]) -> None:
    """No two batches, epochs or runs share their randomness; (1, 23) is not (12, 3)."""
    assert (derive(*one) == derive(*other)) == (tuple(map(str, one)) == tuple(map(str, other)))
