"""A user's DataLoader adapted for one run: its order set, its randomness seeded, or an epoch to be read again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    IterableDataset,
    IterDataPipe,
    Subset,
    TensorDataset,
    default_collate,
    default_convert,
)

from colabkeep.frameworks.base import Probe, Probed
from colabkeep.frameworks.common.adapting import Route, refuse_reading, state_owner, twin
from colabkeep.frameworks.common.cargo import Cargo, Collate, Seeded, probing
from colabkeep.frameworks.common.iterables import Place, Source, length_of
from colabkeep.frameworks.common.streams import Streams
from colabkeep.frameworks.torch.data.arrays import TENSORS
from colabkeep.frameworks.torch.data.prepared import around, unprepared
from colabkeep.frameworks.torch.data.streams import TORCH
from colabkeep.frameworks.torch.data.workers import WorkerInit
from colabkeep.vocabulary.seeds import derive
from colabkeep.vocabulary.state import Stateful

__all__ = ["Adapted", "alone", "map_style", "replayed"]

_QUIET = frozenset({TensorDataset, list, tuple, range, np.ndarray, torch.Tensor})


class Adapted:
    """A map-style loader whose order can be set, epoch after epoch."""

    def __init__(self, loader: DataLoader[Any], epoch: int) -> None:
        base = unprepared(loader)
        self.quiet = _draws_nothing(loader)
        self.away = loader.num_workers > 0
        self.persists = loader.persistent_workers and self.away
        self._route = Route()
        self._cargo, replaced = _carried(loader, loader.num_workers, epoch)
        seeded = Seeded(self._cargo)
        if self.away or not self.quiet:
            replaced |= {"dataset": seeded, "collate_fn": Collate(self._cargo)}
        self._here: Callable[[Any], Any] | None = None
        if type(loader) is DataLoader and not self.away and not loader.pin_memory:
            self._here = seeded.single if loader.batch_sampler is None else seeded.collated
        replaced["sampler" if loader.batch_sampler is None else "batch_sampler"] = self._route
        kind = DataLoader if _stateful_loader(base) else type(base)  # ours knows its place better
        self._loader = twin(base, kind, replaced)
        self._outer = around(loader, self._loader)

    def begin(self, place: Place, indices: Iterator[Any], *, listed: bool) -> Iterator[Any]:
        self._cargo.epoch = place.epoch
        if self._here is not None:
            return self._read(self._here, indices)
        self._loader.generator.manual_seed(derive(place.seed, "loader", place.epoch))
        self._route.ahead = indices
        return iter(self._outer)

    def _read(self, read: Callable[[Any], Any], indices: Iterator[Any]) -> Iterator[Any]:
        """What torch's own iterator does where it loads in this process (torch/utils/data/dataloader.py), in a third of
        the calls: they are most of what a small step pays for its batch."""
        if self.quiet:
            return map(read, indices)
        load = self._cargo.seeding().load

        def seeded(tag: tuple[Any, ...]) -> Any:
            return load(tag[1], read, tag[3])

        return map(seeded, indices)

    def look(self, probe: Probe) -> Probed:
        return self._cargo.look(probe, TENSORS.see, here=True)

    def probing(self, probe: Probe) -> Any:
        return probing(probe, TENSORS.see)

    def end(self, iterator: Any) -> None:
        if not self.persists:
            _stop(iterator)

    def close(self) -> None:
        _stop(self._loader._iterator)


def alone(loader: DataLoader[Any]) -> DataLoader[Any]:
    """A copy with one worker, if it has workers, that ends with the epoch."""
    base = unprepared(loader)
    return twin(base, type(base), {"num_workers": min(1, base.num_workers), "persistent_workers": False})


def map_style(loader: DataLoader[Any]) -> bool:
    """Does this loader do what torch's own does: load the items its sampler names?

    Raises:
        UsageError: it was prepared in a way whose batches cannot be placed again.
    """
    kind = type(unprepared(loader))
    if isinstance(loader.dataset, IterableDataset):
        return False
    own = kind.__iter__ is not DataLoader.__iter__ or kind._get_iterator is not DataLoader._get_iterator
    return not own or _stateful_loader(unprepared(loader))


def replayed(loader: DataLoader[Any], place: Place, workers: int) -> Source:
    """A copy of any other loader, for one epoch that starts as the user handed it over.

    Persistent workers would carry randomness from epoch to epoch, so they are started anew for each.

    Raises:
        UsageError: the loader started to read when it was built.
    """
    refuse_reading(loader, "torch.utils.data")
    cargo, replaced = _carried(loader, workers, place.epoch)
    replaced["generator"].manual_seed(derive(place.seed, "loader", place.epoch))
    replaced |= {"persistent_workers": False, "num_workers": workers}
    if workers != loader.num_workers:
        replaced |= {"prefetch_factor": (loader.prefetch_factor or 2) if workers else None}
        replaced |= {} if workers else {"timeout": 0, "_DataLoader__multiprocessing_context": None}
    if not isinstance(loader.dataset, IterDataPipe):  # torch goes by the type of those
        if workers == 0 and isinstance(loader.dataset, IterableDataset):
            # What it counts while it is read is for this epoch only, as it would be in a worker.
            replaced["dataset"] = twin(loader.dataset, type(loader.dataset), {})
        elif workers > 0 and not isinstance(loader, Stateful):  # torchdata too
            replaced["dataset"] = Seeded(cargo)
    copy = twin(loader, type(loader), replaced)
    length = length_of(copy)
    copy.__dict__["_IterableDataset_len_called"] = None  # asking for the length must not make torch watch it
    here = workers == 0 or type(loader).__iter__ is not DataLoader.__iter__
    streams = Streams.of(TORCH, copy) if here else Streams()
    return Source(copy, streams, owner=state_owner(copy), length=length, workers=workers, stop=_stop)


def _carried(loader: DataLoader[Any], workers: int, epoch: int) -> tuple[Cargo, dict[str, Any]]:
    """The user's objects as a cargo, and the attributes that let workers receive it."""
    cargo = Cargo(TORCH, loader.dataset, loader.collate_fn, loader.worker_init_fn, epoch)
    # Torch draws its workers' seed on the default device, with this generator (torch/utils/data/dataloader.py).
    generator = torch.Generator(torch.empty(0).device)
    replaced: dict[str, Any] = {"_iterator": None, "generator": generator, "in_order": True}
    if workers > 0:
        replaced |= {"collate_fn": Collate(cargo), "worker_init_fn": WorkerInit(cargo)}
    return cargo, replaced


def _stateful_loader(loader: object) -> bool:
    module = sys.modules.get("torchdata.stateful_dataloader")
    return module is not None and type(loader) is module.StatefulDataLoader


def _draws_nothing(loader: DataLoader[Any]) -> bool:
    return loader.collate_fn in (default_collate, default_convert) and _quiet(loader.dataset)


def _quiet(dataset: Any) -> bool:
    if type(dataset) is Subset:
        return _quiet(dataset.dataset)
    if type(dataset) is ConcatDataset:
        return all(map(_quiet, dataset.datasets))
    return type(dataset) in _QUIET


def _stop(iterator: object) -> None:
    """End an iteration and its workers now, not when the last reference to it is gone."""
    stop = getattr(iterator, "_shutdown_workers", None) or getattr(iterator, "close", None)
    if stop is not None:
        stop()
