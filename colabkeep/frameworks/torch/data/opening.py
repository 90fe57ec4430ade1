"""How torch's data loaders are ordered, seeded and resumed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset

from colabkeep.frameworks.common.iterables import Place, Source
from colabkeep.frameworks.common.loaders import LoaderData
from colabkeep.frameworks.common.order import Order, Sampling
from colabkeep.frameworks.torch.data.adapt import Adapted, alone, map_style, replayed
from colabkeep.frameworks.torch.data.arrays import TENSORS
from colabkeep.frameworks.torch.data.leftovers import remove_dead_listeners
from colabkeep.frameworks.torch.data.streams import TORCH

__all__ = ["TorchData", "TorchLoaders"]


class TorchData(LoaderData):
    """The `Data` promise for `DataLoader`s of any kind, and for anything else that can be iterated again."""

    def __init__(self) -> None:
        super().__init__(TorchLoaders())


class TorchLoaders:
    """What is torch's own about its loaders."""

    kinds = TORCH
    arrays = TENSORS

    def __init__(self) -> None:
        self._swept = False

    def owns(self, loader: Any) -> bool:
        return isinstance(loader, DataLoader)

    def is_dataset(self, data: Any) -> bool:
        return isinstance(data, Dataset)

    def of_batches(self, dataset: Any, batch_size: int) -> object:
        return DataLoader(dataset, batch_size=batch_size, shuffle=not isinstance(dataset, IterableDataset))

    def map_style(self, loader: DataLoader[Any]) -> bool:
        return map_style(loader)

    def sampling(self, loader: DataLoader[Any]) -> Sampling:
        source: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        if _plain(source):
            return Sampling(source.sampler, cut=(source.batch_size, source.drop_last))
        return Sampling(source, whole_batches=loader.batch_sampler is not None)

    def order(self, loader: DataLoader[Any], place: Place, *, whole: bool) -> Order:
        return Order(self.sampling(loader), place, TORCH, whole=whole)

    def listeners(self, loader: DataLoader[Any]) -> Iterable[object]:
        inner = getattr(loader.batch_sampler, "sampler", None)
        return loader.sampler, loader.batch_sampler, inner, loader.dataset, loader

    def adapted(self, loader: DataLoader[Any], epoch: int) -> Adapted:
        return Adapted(loader, epoch)

    def alone(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        return alone(loader)

    def replayed(self, loader: DataLoader[Any], place: Place, workers: int) -> Source:
        return replayed(loader, place, workers)

    def before(self, loader: DataLoader[Any]) -> Sequence[str]:
        if loader.num_workers > 0 and not self._swept:
            remove_dead_listeners()
            self._swept = True
        if getattr(loader, "in_order", True) or not map_style(loader):
            return ()
        return ("in_order=False would leave the order of the batches to chance, so they come in order.",)


def _plain(sampler: Any) -> bool:
    """Does this batch sampler only cut another sampler's order into pieces?"""
    kind = type(sampler)
    # torchdata, once imported, puts its own BatchSampler in the place of torch's.
    return kind is BatchSampler or f"{kind.__module__}.{kind.__name__}" == _TORCHDATA


_TORCHDATA = "torchdata.stateful_dataloader.sampler.BatchSampler"
