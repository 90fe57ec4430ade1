"""A few samples say whether it is the same data, with Paddle's loaders: looking at them changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
from paddle.io import ComposeDataset, ConcatDataset, DataLoader, Subset, TensorDataset, random_split

from colabkeep.frameworks.base import Probe, Sample
from colabkeep.frameworks.paddle.data import PaddleData
from colabkeep.frameworks.paddle.reading import TENSORS
from colabkeep.frameworks.shared.samples import sample_of

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

picture = paddle.arange(64, dtype="float32").reshape([4, 16])


def sample(value: Any) -> Sample:
    return sample_of(value, TENSORS.see)


def probe(positions: list[int], known: dict[int, Sample] | None = None) -> Probe:
    return Probe(positions=positions, known=known or {}, seed=3, seconds=60.0)


@pytest.mark.parametrize(
    ("value", "form"),
    [
        ((picture, 3), "(float32[4, 16], int)"),
        ([picture.astype("bfloat16"), "cat"], "list(bfloat16[4, 16], str)"),
        ({"x": picture.numpy(), "y": np.int64(3)}, "dict('x': float32[4, 16], 'y': int64)"),
        (paddle.to_tensor(3), "int64"),
        (paddle.zeros([0, 3]), "float32[0, 3]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_form_of_a_sample_can_be_read(value: Any, form: str) -> None:
    """Types, dtypes and shapes of Paddle's tensors too."""
    assert sample(value) == sample(value)
    assert sample(value)[0] == form


def test_what_changed_in_a_sample_is_seen_where_it_is() -> None:
    """A pixel is an array's, a label a label's."""
    assert [a == b for a, b in zip(sample((picture, 3)), sample((picture + 1, 3)), strict=True)] == [True, True, False]
    assert [a == b for a, b in zip(sample((picture, 3)), sample((picture, 4)), strict=True)] == [True, False, True]


def split(seed: int) -> Any:
    paddle.seed(seed)
    return random_split(TensorDataset([paddle.arange(100)]), [80, 20])[0]


@pytest.mark.parametrize(
    "make",
    [
        split,
        lambda seed: ConcatDataset([TensorDataset([paddle.arange(3)]), split(seed)]),
        lambda seed: ComposeDataset([split(seed), TensorDataset([paddle.arange(80)])]),
        lambda seed: Subset(split(seed), range(10)),
    ],
    ids=["random_split", "concatenated", "composed", "a subset of it"],
)
def test_the_indices_of_subsets_are_known_without_loading(make: Any) -> None:
    """The same for the same seed, others for another."""
    facts = [PaddleData().facts(DataLoader(make(seed))) for seed in (1, 1, 2)]
    assert facts[0] == facts[1]
    assert facts[0].length == facts[2].length
    assert facts[0].subsets != facts[2].subsets
