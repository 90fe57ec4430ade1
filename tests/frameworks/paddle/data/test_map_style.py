"""What Paddle alone has: batches as its own loader gives them, its counting of epochs, and static graphs."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import paddle
import pytest
from paddle.io import DataLoader, Dataset, DistributedBatchSampler, Sampler

from colabkeep.core.errors import UsageError
from colabkeep.frameworks.paddle.data import PaddleData


def test_an_endless_order_over_quiet_data_is_drawn_by_nobody_but_the_training_thread(kit: SimpleNamespace) -> None:
    """Paddle's reading thread would draw it at any moment, between two of the loop's own draws."""
    threads = set()

    class Watched(Sampler):
        def __iter__(self):
            while True:
                threads.add(threading.get_ident())
                yield from paddle.randperm(13).tolist()

    result = kit.read(kit.loader(np.arange(13.0), sampler=Watched(range(13))), stop=30)
    assert len(result.values) == 30
    assert threads == {threading.get_ident()}


def test_a_distributed_order_is_that_of_the_epoch_however_often_it_was_asked_for(kit: SimpleNamespace) -> None:
    """Paddle's sampler counts epochs by itself, each time it is iterated; here the run's epoch decides."""

    def loader() -> DataLoader:
        return DataLoader(
            kit.Noisy(), batch_sampler=DistributedBatchSampler(kit.Noisy(), 3, num_replicas=2, rank=1, shuffle=True)
        )

    used, data = loader(), PaddleData()
    orders = [kit.read(used, epoch=epoch, data=data).indices for epoch in (0, 1, 2, 1)]
    assert orders[1] == orders[3] == kit.read(loader(), epoch=1).indices
    assert orders[0] != orders[1] != orders[2]


def test_batches_are_what_paddles_own_loader_gives() -> None:
    """The same nesting, types, dtypes and values, read in the training thread, in Paddle's and in a worker."""

    class Rich(Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            pair = (index, np.full((2, 3), index, dtype=np.float16))
            flag = np.array(index % 2 == 0)
            return {"pair": pair, "name": f"n{index}", "tensor": paddle.full([2], float(index)), "flag": flag}

    native = [tell(batch) for batch in DataLoader(Rich(), batch_size=2)]
    for workers in (0, 1):
        loader = DataLoader(Rich(), batch_size=2, num_workers=workers)
        opened = PaddleData().open(loader, seed=0, epoch=0, batches=0, samples=0, state=None)
        assert [tell(batch.value) for batch in opened] == native
    items = [(n, {"x": [float(n)]}) for n in range(4)]
    opened = PaddleData().open(DataLoader(items, batch_size=2), seed=0, epoch=0, batches=0, samples=0, state=None)
    assert [tell(batch.value) for batch in opened] == [tell(batch) for batch in DataLoader(items, batch_size=2)]


def tell(value: Any) -> Any:
    if isinstance(value, paddle.Tensor):
        return str(value.dtype), str(value.place), value.stop_gradient, list(value.shape), value.tolist()
    if isinstance(value, dict):
        return {key: tell(member) for key, member in value.items()}
    return [tell(member) for member in value] if isinstance(value, list) else value


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_without_an_array_arrive(workers: int) -> None:
    """Paddle's own loader takes a batch of strings for the end of the data, without a word."""
    names = [f"name {n}" for n in range(5)]
    loader = DataLoader(names, batch_size=2, num_workers=workers)
    opened = PaddleData().open(loader, seed=0, epoch=0, batches=0, samples=0, state=None)
    assert [batch.value for batch in opened] == [names[:2], names[2:4], names[4:]]


def test_a_loader_for_static_graphs_is_refused_with_the_remedy(kit: SimpleNamespace) -> None:
    """Its batches go to a program by name: nothing that could be put in order or resumed."""
    fed = DataLoader(kit.Noisy(), batch_size=3, feed_list=[paddle.ones([1])])
    with pytest.raises(UsageError, match="feed_list") as caught:
        kit.read(fed)
    assert "without feed_list" in caught.value.remedy
    paddle.enable_static()
    try:
        with pytest.raises(UsageError, match="static graph") as caught:
            kit.read(DataLoader(kit.Noisy(), batch_size=3, return_list=True))
    finally:
        paddle.disable_static()
    assert "paddle.disable_static()" in caught.value.remedy
    listed = DataLoader(kit.Noisy(), batch_size=3, return_list=False)  # which Paddle ignores in dynamic mode
    assert kit.read(listed).indices == list(range(13))
