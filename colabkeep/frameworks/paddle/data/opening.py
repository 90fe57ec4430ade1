"""How Paddle's data loaders are ordered, seeded and resumed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from paddle.io import BatchSampler, DataLoader, Dataset, IterableDataset

from colabkeep.frameworks.common.iterables import Place, Source
from colabkeep.frameworks.common.loaders import LoaderData
from colabkeep.frameworks.common.order import Order, Sampling
from colabkeep.frameworks.paddle.data.adapt import Adapted, alone, map_style, replayed
from colabkeep.frameworks.paddle.data.arrays import TENSORS
from colabkeep.frameworks.paddle.data.segments import free_segments
from colabkeep.frameworks.paddle.data.streams import PADDLE, on_cpu
from colabkeep.frameworks.paddle.modes import refuse_static_mode
from colabkeep.vocabulary.errors import UsageError

__all__ = ["PaddleData", "PaddleLoaders"]


class PaddleData(LoaderData):
    """The `Data` promise for `DataLoader`s of any kind, and for anything else that can be iterated again."""

    def __init__(self) -> None:
        super().__init__(PaddleLoaders())


class PaddleLoaders:
    """What is Paddle's own about its loaders."""

    kinds = PADDLE
    arrays = TENSORS

    def __init__(self) -> None:
        self._swept = False

    def owns(self, loader: Any) -> bool:
        return isinstance(loader, DataLoader)

    def is_dataset(self, data: Any) -> bool:
        return isinstance(data, Dataset)

    def of_batches(self, dataset: Any, batch_size: int) -> object:
        return DataLoader(dataset, batch_size=batch_size, shuffle=not isinstance(dataset, IterableDataset))

    def map_style(self, loader: DataLoader) -> bool:
        return map_style(loader)

    def sampling(self, loader: DataLoader) -> Sampling:
        source = loader.batch_sampler
        if source is None:  # batch_size=None: Paddle gives one item after the other
            return Sampling(range(len(loader.dataset)))
        if type(source) is BatchSampler and getattr(source, "_acc_steps", 1) == 1:  # before 3.0 there are none
            return Sampling(source.sampler, cut=(source.batch_size, source.drop_last))
        return Sampling(source, whole_batches=True)

    def order(self, loader: DataLoader, place: Place, *, whole: bool) -> Order:
        with on_cpu():
            return Order(self.sampling(loader), place, PADDLE, whole=whole)

    def listeners(self, loader: DataLoader) -> Iterable[object]:
        return loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None), loader.dataset, loader

    def adapted(self, loader: DataLoader, epoch: int) -> Adapted:
        return Adapted(loader, epoch)

    def alone(self, loader: DataLoader) -> DataLoader:
        return alone(loader)

    def replayed(self, loader: DataLoader, place: Place, workers: int) -> Source:
        return replayed(loader, place, workers)

    def before(self, loader: DataLoader) -> Sequence[str]:
        _refuse_static(loader)
        freed = 0 if self._swept else free_segments()
        self._swept = True
        if not freed:
            return ()
        much = f"{freed / 1e6:.0f} MB" if freed >= 1e6 else f"{freed / 1e3:.0f} kB"
        return (f"Freed {much} of shared memory that loader workers of a killed session had left behind.",)


def _refuse_static(loader: DataLoader) -> None:
    refuse_static_mode()
    if loader.feed_list:
        raise UsageError(
            problem="This DataLoader has a feed_list, which belongs to static graph mode; training here is dynamic.",
            remedy="Make the DataLoader without feed_list (and without return_list=False).",
        )
