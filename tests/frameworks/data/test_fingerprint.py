"""A few samples say whether it is the same data, with loaders of each framework: looking at them changes nothing."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from colabkeep.frameworks.base import Probe, Sample
from colabkeep.frameworks.shared.samples import sample_of

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def sample(kit: SimpleNamespace, value: Any) -> Sample:
    return sample_of(value, kit.Data.arrays.see)


def probe(positions: list[int]) -> Probe:
    return Probe(positions=positions, known={}, seed=3, seconds=60.0)


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_and_the_trainer_see_the_same_samples(kit: SimpleNamespace, workers: int) -> None:
    """With random augmentation from many sources, drawn here or in a worker: the same texts; streams stay."""
    before = kit.fingerprint()
    here = kit.Data().look(kit.loader(kit.Noisy()), probe([0, 5, 12]))
    away = kit.loader(kit.Noisy(), num_workers=workers, persistent_workers=True)
    assert kit.Data().look(away, probe([0, 5, 12])).samples == here.samples
    assert None not in here.samples.values()
    assert len(set(here.samples.values())) == 3
    assert kit.fingerprint() == before


class Whoami:
    """Tells which process loads it, by failing in any other than it is to be loaded in."""

    def __init__(self, here: bool) -> None:
        self.trainer, self.here = os.getpid(), here

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> np.ndarray:
        assert (os.getpid() == self.trainer) is self.here
        return np.array([index])


@pytest.mark.parametrize("persistent", [False, True])
def test_samples_are_drawn_where_the_loader_draws_them(kit: SimpleNamespace, persistent: bool) -> None:
    """A file that is opened in the trainer and read by its workers gives garbage: h5py, LMDB. With workers nothing is
    loaded in the trainer, neither before the training nor in it."""
    data, away = kit.Data(), {"num_workers": 2, "persistent_workers": persistent}
    plain = kit.loader(range(9), **away)  # draws nothing
    for loader in (kit.loader(Whoami(True)), kit.loader(Whoami(False), **away), plain):
        assert None not in data.look(loader, probe([0, 8])).samples.values()
        for epoch in range(2):
            found: list[Any] = []
            seen = SimpleNamespace(probe=probe([0, 8]), found=found.append)
            where: dict[str, Any] = {"seed": 1, "epoch": epoch, "batches": 1, "samples": 3, "state": None}
            batches = [batch.value.numpy().ravel().tolist() for batch in data.open(loader, **where, inspector=seen)]
            assert batches == [[3, 4, 5], [6, 7, 8]]
            assert None not in found[0].samples.values()
    data.close()


class Broken:
    """A file that cannot be read, between others."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> int:
        if index == 4:
            raise OSError("truncated file")
        return index


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sample_that_cannot_be_loaded_is_left_to_the_training(kit: SimpleNamespace, workers: int) -> None:
    """Indices that only its sampler knows, a broken file: nobody is disturbed."""
    found = kit.Data().look(kit.loader(Broken(), num_workers=workers), probe([0, 4, 8])).samples
    assert found == {0: sample(kit, 0), 4: None, 8: sample(kit, 8)}


def test_what_is_known_of_other_loaders(kit: SimpleNamespace) -> None:
    """A list is asked for batches, a stream for nothing: it can only be read from its beginning."""
    data = kit.Data()
    batches = [(kit.tensor(np.ones((4, 16))), 1), (kit.tensor(np.ones((4, 16))), 2)]
    assert (data.facts(batches).kind, data.facts(batches).length) == ("batches", 2)
    looked = data.look(batches, probe([0, 1])).samples
    assert looked == {0: sample(kit, batches[0]), 1: sample(kit, batches[1])}
    stream = data.facts(kit.loader(kit.NoisyStream(), 2))
    assert (stream.kind, stream.length, stream.name) == ("stream", None, "NoisyStream")
    assert data.facts(map(int, "12")).kind == "stream"
