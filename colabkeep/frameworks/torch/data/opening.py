"""How torch's data loaders are ordered, seeded and resumed.

A map-style `DataLoader` is positioned by slicing the listed order of its sampler: nothing is loaded twice.
Iterable data sets and loaders with an `__iter__` of their own continue from a state of their own, or are read
again from the beginning of the epoch.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset

from colabkeep.frameworks.base import LoaderState
from colabkeep.frameworks.common.iterables import IterableData, Place, changed, differences, set_epoch
from colabkeep.frameworks.torch.data.adapt import Adapted, map_style, replayed
from colabkeep.frameworks.torch.data.arrays import TENSORS
from colabkeep.frameworks.torch.data.epoch import MapEpoch, fixed_facts
from colabkeep.frameworks.torch.data.streams import TORCH
from colabkeep.vocabulary.state import Tree

__all__ = ["TorchData"]

_BATCH = 32  # samples, where a data set is handed in and nothing is said


class TorchData:
    """The `Data` promise for `DataLoader`s of any kind, and for anything else that can be iterated again.

    A loader with persistent workers is adapted once, so that its workers persist; others anew for each epoch.
    """

    def __init__(self) -> None:
        self._others = IterableData(TORCH, TENSORS)
        self._kept: dict[int, Adapted] = {}

    def open(
        self, loader: object, *, seed: int, epoch: int, batches: int, samples: int, state: Tree | None
    ) -> LoaderState:
        if not isinstance(loader, DataLoader):
            return self._others.open(loader, seed=seed, epoch=epoch, batches=batches, samples=samples, state=state)
        found = [] if state is None else self.check(loader, seed=seed, state=state)
        if found:
            raise changed(found)
        place = Place(seed, epoch, batches, samples)
        set_epoch(epoch, loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
        set_epoch(epoch, loader.dataset, loader)
        if map_style(loader):
            return MapEpoch(loader, self._adapted(loader, epoch), place, state)
        return self._replay(loader, place, state)

    def as_loader(self, data: object, batch_size: int | None) -> object:
        """Things of one sample each are batched if they are a torch `Dataset`, or if a `batch_size` says so."""
        if isinstance(data, DataLoader) or (batch_size is None and not isinstance(data, Dataset)):
            return self._others.as_loader(data, batch_size)
        samples: Any = data
        shuffled = not isinstance(data, IterableDataset)
        return DataLoader(samples, batch_size=_BATCH if batch_size is None else batch_size, shuffle=shuffled)

    def check(self, loader: object, *, seed: int, state: Tree) -> Sequence[str]:
        if not isinstance(loader, DataLoader):
            return self._others.check(loader, seed=seed, state=state)
        if map_style(loader):
            return differences(state, fixed_facts(loader, seed))
        return self._others.check(loader, seed=seed, state=state)

    def close(self) -> None:
        for kept in self._kept.values():
            kept.close()
        self._kept.clear()

    def _adapted(self, loader: DataLoader[Any], epoch: int) -> Adapted:
        kept = self._kept.get(id(loader))
        if kept is not None:
            return kept
        adapted = Adapted(loader, epoch)
        if adapted.persists:
            self._kept[id(loader)] = adapted
            # When the user lets go of the loader, its workers go too, as they would without us.
            weakref.finalize(loader, self._kept.pop, id(loader), None).atexit = False
        return adapted

    def _replay(self, loader: DataLoader[Any], place: Place, state: Tree | None) -> LoaderState:
        workers = loader.num_workers if state is None else state["workers"]
        replay = self._others.replay(replayed(loader, place, workers), place, state)
        if workers != loader.num_workers:
            replay.note(
                f"The rest of this epoch is read with num_workers={workers}, as it began; "
                f"num_workers={loader.num_workers} counts from the next one on."
            )
        return replay
