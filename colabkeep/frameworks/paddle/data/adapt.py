"""A user's DataLoader adapted for one run: its order set, its randomness seeded, or an epoch to be read again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import paddle
from paddle.io import ComposeDataset, ConcatDataset, DataLoader, IterableDataset, Subset, TensorDataset

from colabkeep.frameworks.base import Probe, Probed
from colabkeep.frameworks.common.adapting import Route, refuse_reading, state_owner, twin
from colabkeep.frameworks.common.cargo import Cargo, Collate, Seeded, probing
from colabkeep.frameworks.common.iterables import Place, Source, length_of
from colabkeep.frameworks.common.streams import NEUTRAL, Aside, Streams
from colabkeep.frameworks.paddle.data.arrays import TENSORS
from colabkeep.frameworks.paddle.data.parcels import Guarded, Posted
from colabkeep.frameworks.paddle.data.reading import DEFAULT_COLLATES, collate_of, reader_kind, stop_reading
from colabkeep.frameworks.paddle.data.streams import PADDLE, each_on_cpu, on_cpu
from colabkeep.frameworks.paddle.data.workers import Batches, WorkerInit, only
from colabkeep.vocabulary.seeds import derive

__all__ = ["Adapted", "alone", "map_style", "replayed"]

_QUIET = frozenset({TensorDataset, list, tuple, range, np.ndarray, paddle.Tensor})


class Adapted:
    """A map-style loader whose order can be set, epoch after epoch."""

    def __init__(self, loader: DataLoader, epoch: int) -> None:
        self.away = loader.num_workers > 0
        self.quiet = _draws_nothing(loader)
        self.persists = loader._persistent_workers and self.away
        self._route = Route()
        self._cargo = Cargo(PADDLE, loader.dataset, collate_of(loader), loader.worker_init_fn, epoch)
        self._batches = Batches(self._cargo, bare=not loader.auto_collate_batch)
        replaced = {
            "batch_sampler": self._route,
            "auto_collate_batch": True,
            "worker_init_fn": WorkerInit(self._cargo),
        }
        self._reader = _reader(loader, replaced)

    def begin(self, place: Place, indices: Iterator[Any], *, listed: bool) -> Iterator[Any]:
        reader = self._reader
        self._cargo.epoch = place.epoch
        self._route.ahead = ([index] for index in (indices if listed else each_on_cpu(indices)))
        reader.threaded = self.quiet and listed
        away = reader.threaded or reader.num_workers > 0
        reader.dataset = Guarded(self._cargo, self._batches) if away else self._batches
        reader.collate_fn = Posted(only, abroad=reader.num_workers > 0) if away else only
        # Starting workers draws a seed from NumPy's global stream.
        with Aside(Streams(NEUTRAL.shared()), derive(place.seed, "loader", place.epoch)):
            return iter(reader)

    def look(self, probe: Probe) -> Probed:
        with on_cpu():
            return self._cargo.look(probe, TENSORS.see, here=True)

    def probing(self, probe: Probe) -> Any:
        return probing(probe, TENSORS.see)

    def end(self, iterator: Any) -> None:
        # Of an epoch that was left, Paddle's reading thread holds batches that would come out in the next one.
        if not self.persists or not iterator.finished:
            stop_reading(self._reader)

    def close(self) -> None:
        stop_reading(self._reader)


def alone(loader: DataLoader) -> DataLoader:
    """A copy with one worker, if it has workers, that ends with the epoch."""
    return twin(loader, type(loader), {"num_workers": min(1, loader.num_workers), "_persistent_workers": False})


def map_style(loader: DataLoader) -> bool:
    """Does this loader do what Paddle's own does: load the items its batch sampler names?"""
    return not isinstance(loader.dataset, IterableDataset) and type(loader).__iter__ is DataLoader.__iter__


def replayed(loader: DataLoader, place: Place, workers: int) -> Source:
    """A copy of any other loader, for one epoch that starts as the user handed it over.

    Persistent workers would carry randomness from epoch to epoch, so they are started anew for each.

    Raises:
        UsageError: the loader started to read when it was built.
    """
    refuse_reading(loader, "paddle.io")
    cargo = Cargo(PADDLE, loader.dataset, collate_of(loader), loader.worker_init_fn, place.epoch)
    replaced: dict[str, Any] = {"_persistent_workers": False, "num_workers": workers}
    if workers > 0:
        replaced["dataset"] = Guarded(cargo, Seeded(cargo))
        replaced["collate_fn"] = Posted(Collate(cargo), abroad=True)
        replaced["worker_init_fn"] = WorkerInit(cargo)
    elif isinstance(loader.dataset, IterableDataset):
        # What it counts while it is read is for this epoch only, as it would be in a worker.
        replaced["dataset"] = twin(loader.dataset, type(loader.dataset), {})
    copy = _reader(loader, replaced)
    here = workers == 0 or type(loader).__iter__ is not DataLoader.__iter__
    # Starting workers draws their seed from NumPy's global stream.
    streams = Streams.of(PADDLE, copy) if here else Streams(NEUTRAL.shared())

    def stop(iterator: Any) -> None:
        if isinstance(iterator, Iterator) and hasattr(iterator, "close"):
            iterator.close()
        stop_reading(copy)

    return Source(copy, streams, owner=state_owner(copy), length=_length(loader), workers=workers, stop=stop)


def _reader(loader: DataLoader, replaced: dict[str, Any]) -> Any:
    own: dict[str, Any] = {"_iterator": None, "threaded": False, "deliveries": []}
    return twin(loader, reader_kind(type(loader)), replaced | own)


def _length(loader: DataLoader) -> int | None:
    if not isinstance(loader.dataset, IterableDataset):
        return length_of(loader)
    samples = length_of(loader.dataset)  # None unless the user gave it one
    if samples is None or not loader.auto_collate_batch:
        return samples
    size: int = loader.batch_sampler.batch_size
    return samples // size if loader.drop_last else -(-samples // size)


def _draws_nothing(loader: DataLoader) -> bool:
    return loader.collate_fn in DEFAULT_COLLATES and _quiet(loader.dataset)


def _quiet(dataset: Any) -> bool:
    if type(dataset) is Subset:
        return _quiet(dataset.dataset)
    if type(dataset) in (ComposeDataset, ConcatDataset):
        return all(map(_quiet, dataset.datasets))
    return type(dataset) in _QUIET
