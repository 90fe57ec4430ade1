"""Loader workers: the same samples with any number of them; none outlives its epoch, and an interrupt reaches none."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.frameworks.data.reading import alive

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

START: Any = {"seed": 1, "epoch": 0, "batches": 0, "samples": 0, "state": None}


class Endless:
    def __init__(self, kit: SimpleNamespace) -> None:
        self.permutation = kit.permutation

    def __iter__(self):
        while True:
            yield from self.permutation(13)


@pytest.mark.parametrize("further", [{}, {"shared": False}], ids=["", "without shared memory"])
def test_any_number_of_workers_gives_the_same_samples(kit: SimpleNamespace, further: Any) -> None:
    """0, 1 and 2 workers, changing between two sessions of one epoch: order and augmentation are the same bytes."""
    words = {"shuffle": True, "collate_fn": kit.noisy_collate, **(kit.UNSHARED if further else {})}

    def loader(workers: int) -> Any:
        return kit.loader(kit.Noisy(), num_workers=workers, **words)

    before = kit.fingerprint()
    whole = kit.read(loader(0))
    for first, stop, second in [(2, 2, 1), (1, 3, 0), (0, 1, 2)]:
        stopped = kit.read(loader(first), stop=stop)
        resumed = kit.read(loader(second), after=stopped)
        assert np.array_equal(resumed.rows, whole.rows)
        assert resumed.samples == 13
    assert kit.fingerprint() == before


def test_workers_of_one_item_at_a_time_and_of_an_endless_sampler_agree_too(kit: SimpleNamespace) -> None:
    """batch_size=None, and a sampler without an end, with workers that read ahead of the loop."""
    before = kit.fingerprint()
    single = [kit.loader(kit.Noisy(), None, num_workers=workers) for workers in (0, 2)]
    assert np.array_equal(kit.read(single[0]).rows, kit.read(single[1]).rows)
    endless = [kit.loader(kit.Noisy(), sampler=Endless(kit), num_workers=workers) for workers in (0, 2)]
    whole = kit.read(endless[0], stop=9)
    assert np.array_equal(kit.read(endless[1], after=kit.read(endless[1], stop=4), stop=9).rows, whole.rows)
    assert kit.fingerprint() == before


class Whoami:
    """Each sample tells which process loaded it, and which epoch it was told."""

    epoch = -1

    def __init__(self, kit: SimpleNamespace) -> None:
        self.tensor = kit.tensor

    def __len__(self) -> int:
        return 12

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> Any:
        return self.tensor([index, np.random.random(), os.getpid(), self.epoch])


def test_persistent_workers_live_through_whole_epochs_and_hear_of_each(kit: SimpleNamespace) -> None:
    """Three epochs are read by the same two processes, and `set_epoch` reaches them."""
    data = kit.Data()
    loader = kit.loader(Whoami(kit), shuffle=True, num_workers=2, persistent_workers=True)
    reads = [kit.read(loader, epoch=epoch, data=data) for epoch in range(3)]
    workers = {int(pid) for result in reads for pid in result.rows[:, 2]}
    assert len(workers) == 2
    assert os.getpid() not in workers
    for epoch, result in enumerate(reads):
        alone = kit.read(kit.loader(Whoami(kit), shuffle=True), epoch=epoch)
        assert np.array_equal(alone.rows[:, [0, 1, 3]], result.rows[:, [0, 1, 3]])
        assert set(result.rows[:, 3].tolist()) == {epoch}
    assert loader._iterator is None
    data.close()
    assert not any(alive(pid) for pid in workers)


def test_an_epoch_left_in_the_middle_does_not_reach_the_next_one(kit: SimpleNamespace) -> None:
    """Batches that persistent workers had read ahead are not those of the next epoch."""
    data = kit.Data()
    loader = kit.loader(Whoami(kit), 1, shuffle=True, num_workers=2, persistent_workers=True)
    for epoch, stop in enumerate([5, None, 1, None]):
        result = kit.read(loader, epoch=epoch, stop=stop, data=data)
        alone = kit.read(kit.loader(Whoami(kit), 1, shuffle=True), epoch=epoch, stop=stop)
        assert np.array_equal(alone.rows[:, [0, 1, 3]], result.rows[:, [0, 1, 3]])
    data.close()


def test_persistent_workers_end_with_the_users_loader(kit: SimpleNamespace) -> None:
    """A loader that the user lets go of takes its workers with it, as it would without us."""
    data = kit.Data()
    loader = kit.loader(Whoami(kit), num_workers=1, persistent_workers=True)
    workers = {int(pid) for pid in kit.read(loader, data=data).rows[:, 2]}
    assert all(alive(pid) for pid in workers)
    del loader
    assert not any(alive(pid) for pid in workers)


def test_an_epoch_left_in_the_middle_leaves_no_worker(kit: SimpleNamespace) -> None:
    """Breaking out of the loop ends the workers, not some garbage collection later; an interrupt, which all processes
    of a cell get, does not: the loop can still finish its epoch and save."""
    opened = kit.Data().open(kit.loader(Whoami(kit), num_workers=1), **START)
    batches = iter(opened)
    worker = int(next(batches).value[0, 2])
    os.kill(worker, signal.SIGINT)
    next(batches)
    assert alive(worker)
    opened.close()
    assert not alive(worker)


class TellsOfTheWorker:
    def __init__(self, kit: SimpleNamespace) -> None:
        self.kit = kit.framework, kit.tensor

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        framework, tensor = self.kit
        return tensor([index, worker_info(framework).dataset is self, self.offset, self.rng.random()])


def worker_info(framework: str) -> Any:
    from tests.frameworks.data.reading import open_kit

    return open_kit(framework).get_worker_info()


def test_worker_init_fn_meets_the_users_own_data_set(kit: SimpleNamespace) -> None:
    """`get_worker_info().dataset` is the user's object, and generators that `worker_init_fn` makes are seeded too."""

    def give_a_generator(worker: int) -> None:
        dataset = kit.get_worker_info().dataset
        dataset.offset = 100
        dataset.rng = np.random.default_rng()

    reads = [
        kit.read(kit.loader(TellsOfTheWorker(kit), 2, num_workers=workers, worker_init_fn=give_a_generator))
        for workers in (1, 2)
    ]
    assert reads[0].rows[:, 1:3].tolist() == [[1, 100]] * 4
    assert np.array_equal(reads[0].rows, reads[1].rows)


class Broken(Whoami):
    def __getitem__(self, index: int) -> Any:
        raise KeyError("broken sample")


def test_an_error_in_a_worker_arrives_with_its_trace(kit: SimpleNamespace) -> None:
    """The user's exception and the place in the user's code come through, where Paddle raises a SystemError."""
    with pytest.raises(KeyError, match="broken sample") as caught:
        kit.read(kit.loader(Broken(kit), 2, num_workers=1))
    assert Path(__file__).name in f"{caught.value} {caught.value.__cause__}"


def broken_start(worker: int) -> None:
    raise OSError("no data here")


def test_an_error_in_worker_init_fn_arrives(kit: SimpleNamespace) -> None:
    """Before any sample is loaded."""
    for dataset in (Whoami(kit), kit.NoisyStream()):
        with pytest.raises(OSError, match="no data here"):
            kit.read(kit.loader(dataset, 2, num_workers=1, worker_init_fn=broken_start))
