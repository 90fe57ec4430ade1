"""The order of data in Paddle: loaders adapted, seeded and positioned."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import paddle
from paddle.io import (
    BatchSampler,
    ComposeDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    get_worker_info,
)

from colabkeep.core.errors import UsageError
from colabkeep.core.state import derive
from colabkeep.frameworks.base import Probe, Probed
from colabkeep.frameworks.paddle.facts import refuse_static_mode
from colabkeep.frameworks.paddle.reading import (
    DEFAULT_COLLATES,
    PADDLE,
    TENSORS,
    Guarded,
    Posted,
    collate_of,
    each_on_cpu,
    free_segments,
    on_cpu,
    reader_kind,
    stop_reading,
)
from colabkeep.frameworks.shared.iterables import Place, Source, length_of
from colabkeep.frameworks.shared.loaders import LoaderData, Order, Route, Sampling, refuse_reading, state_owner, twin
from colabkeep.frameworks.shared.streams import NEUTRAL, Aside, Streams
from colabkeep.frameworks.shared.workers import (
    Collate,
    Seeded,
    WorkerPayload,
    die_with_trainer,
    is_probing,
    probing,
    tagged,
)

__all__ = [
    "Adapted",
    "Batches",
    "PaddleData",
    "PaddleLoaders",
    "WorkerInit",
    "alone",
    "map_style",
    "only",
    "replayed",
]

_SEED = 2**63 - 1  # the largest


class Batches:
    """The user's data set and collate function as one data set of batches, random streams seeded before each.

    With `bare`, of single items. Its index is all that Paddle sees of a batch, so that `only` is left to collate.
    """

    def __init__(self, payload: WorkerPayload, *, bare: bool) -> None:
        self._payload = payload
        self._bare = bare

    def __getitem__(self, index: Any) -> Any:
        payload = self._payload
        if tagged(index):
            return payload.load(index, self._read)
        return payload.look(*index[1:]) if is_probing(index) else self._read(index)

    def _read(self, index: Any) -> Any:
        payload, dataset = self._payload, self._payload.dataset
        return payload.collate_fn(dataset[index] if self._bare else [dataset[one] for one in index])


def only(batch: list[Any]) -> Any:
    """The one member of a list."""
    (member,) = batch
    return member


class WorkerInit:
    """What a worker does first: bind its life to the trainer's, then the user's own `worker_init_fn`."""

    def __init__(self, payload: WorkerPayload) -> None:
        self._payload = payload
        self._collects = gc.isenabled()

    def __call__(self, worker: int) -> None:
        # Paddle's worker asks whether its parent lives only when it waited for work in vain, which it never does.
        die_with_trainer()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer decides what an interrupted cell still needs
        gc.freeze()  # what the trainer left in the garbage is the trainer's to collect: see `Reader`
        if self._collects:
            gc.enable()
        info: Any = get_worker_info()
        try:
            self._payload.start_worker(info, worker, (info.seed + worker) & _SEED)
        except Exception as error:  # noqa: BLE001 - it is raised where the training is
            self._payload.failure = error


_QUIET = frozenset({TensorDataset, list, tuple, range, np.ndarray, paddle.Tensor})


class Adapted:
    """A map-style loader whose order can be set, epoch after epoch."""

    def __init__(self, loader: DataLoader, epoch: int) -> None:
        self.away = loader.num_workers > 0
        self.quiet = _draws_nothing(loader)
        self.persists = loader._persistent_workers and self.away
        self._route = Route()
        self._payload = WorkerPayload(PADDLE, loader.dataset, collate_of(loader), loader.worker_init_fn, epoch)
        self._batches = Batches(self._payload, bare=not loader.auto_collate_batch)
        replaced = {
            "batch_sampler": self._route,
            "auto_collate_batch": True,
            "worker_init_fn": WorkerInit(self._payload),
        }
        self._reader = _reader(loader, replaced)

    def begin(self, place: Place, indices: Iterator[Any], *, listed: bool) -> Iterator[Any]:
        reader = self._reader
        self._payload.epoch = place.epoch
        self._route.ahead = ([index] for index in (indices if listed else each_on_cpu(indices)))
        reader.threaded = self.quiet and listed
        away = reader.threaded or reader.num_workers > 0
        reader.dataset = Guarded(self._payload, self._batches) if away else self._batches
        reader.collate_fn = Posted(only, abroad=reader.num_workers > 0) if away else only
        # Starting workers draws a seed from NumPy's global stream.
        with Aside(Streams(NEUTRAL.shared()), derive(place.seed, "loader", place.epoch)):
            return iter(reader)

    def look(self, probe: Probe) -> Probed:
        with on_cpu():
            return self._payload.look(probe, TENSORS.see, here=True)

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
    payload = WorkerPayload(PADDLE, loader.dataset, collate_of(loader), loader.worker_init_fn, place.epoch)
    replaced: dict[str, Any] = {"_persistent_workers": False, "num_workers": workers}
    if workers > 0:
        replaced["dataset"] = Guarded(payload, Seeded(payload))
        replaced["collate_fn"] = Posted(Collate(payload), abroad=True)
        replaced["worker_init_fn"] = WorkerInit(payload)
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
