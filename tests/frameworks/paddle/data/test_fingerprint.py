"""A few samples say whether it is the same data, with Paddle's loaders: looking at them changes nothing."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import paddle
import pytest
from paddle.io import ComposeDataset, ConcatDataset, DataLoader, Dataset, Subset, TensorDataset, random_split

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


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_and_the_trainer_see_the_same_samples(kit: SimpleNamespace, workers: int) -> None:
    """With random augmentation from five sources, drawn here or in a worker: the same texts; streams stay."""
    before = kit.fingerprint()
    here = PaddleData().look(DataLoader(kit.Noisy()), probe([0, 5, 12]))
    loader = DataLoader(kit.Noisy(), num_workers=workers, persistent_workers=True)
    assert PaddleData().look(loader, probe([0, 5, 12])).samples == here.samples
    assert None not in here.samples.values()
    assert len(set(here.samples.values())) == 3
    assert kit.fingerprint() == before


class Whoami(Dataset):
    """Tells which process loads it, by failing in any other than it is to be loaded in."""

    def __init__(self, here: bool) -> None:
        self.trainer, self.here = os.getpid(), here

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> np.ndarray:
        assert (os.getpid() == self.trainer) is self.here
        return np.array([index])


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_samples_are_drawn_where_the_loader_draws_them(workers: int, persistent: bool) -> None:
    """With workers nothing is loaded in the trainer, neither before the training nor when its epochs begin."""
    loader = DataLoader(Whoami(not workers), batch_size=3, num_workers=workers, persistent_workers=persistent)
    data = PaddleData()
    assert None not in data.look(loader, probe([0, 8])).samples.values()
    for epoch in range(2):
        found: list[Any] = []
        seen = SimpleNamespace(probe=probe([0, 8]), found=found.append)
        where: dict[str, Any] = {"seed": 1, "epoch": epoch, "batches": 1, "samples": 3, "state": None}
        batches = [batch.value.numpy().ravel().tolist() for batch in data.open(loader, **where, inspector=seen)]
        assert batches == [[3, 4, 5], [6, 7, 8]]
        assert None not in found[0].samples.values()
    data.close()


class Odd(Dataset):
    """Another sample each time, or none."""

    calls = 0

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        self.calls += 1
        if index == 3:
            raise OSError("truncated file")
        return np.array([index, self.calls, time.perf_counter_ns(), *os.urandom(2)][: 1 if index == 4 else None])


@pytest.mark.parametrize("workers", [0, 1])
def test_what_does_not_repeat_is_not_believed(workers: int) -> None:
    """Counters, the clock, a broken file: left out, and the data set is as it was."""
    dataset = Odd()
    found = PaddleData().look(DataLoader(dataset, num_workers=workers), probe([0, 3, 4]))
    assert found.samples == {0: None, 3: None, 4: sample(np.array([4]))}
    assert vars(dataset) == {}


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


def test_what_is_known_of_other_loaders(kit: SimpleNamespace) -> None:
    """A list is asked for batches, a stream for nothing."""
    data = PaddleData()
    batches = [(picture, 1), (picture + 1, 2)]
    assert (data.facts(batches).kind, data.facts(batches).length) == ("batches", 2)
    assert data.look(batches, probe([0, 1])).samples == {0: sample(batches[0]), 1: sample(batches[1])}
    stream = data.facts(DataLoader(kit.NoisyStream(), batch_size=2))
    assert (stream.kind, stream.length, stream.name) == ("stream", None, "NoisyStream")
