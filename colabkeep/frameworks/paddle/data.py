"""The order of data in Paddle: loaders adapted, seeded and positioned."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator, Sequence
from typing import Any

from paddle.io import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    get_worker_info,
)

from colabkeep.core.errors import UsageError
from colabkeep.core.state import derive
from colabkeep.frameworks.base import Probe, Probed
from colabkeep.frameworks.paddle.facts import refuse_static_mode
from colabkeep.frameworks.paddle.reading import (
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
from colabkeep.frameworks.shared import loaders
from colabkeep.frameworks.shared.iterables import Position, Source, length_of
from colabkeep.frameworks.shared.loaders import (
    IndexFeed,
    LoaderData,
    Order,
    Sampling,
    fresh_copy,
    refuse_reading,
    shallow_copy,
    state_owner,
)
from colabkeep.frameworks.shared.streams import NEUTRAL, StreamScope, StreamSet
from colabkeep.frameworks.shared.workers import (
    Collate,
    Seeded,
    WorkerPayload,
    die_with_trainer,
)

_SEED = 2**63 - 1  # the largest


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


class Adapted(loaders.Adapted):
    """A map-style loader whose order can be set, epoch after epoch. Its index is all that Paddle sees of a batch."""

    quiet = False

    def __init__(self, loader: DataLoader, epoch: int) -> None:
        self.away = loader.num_workers > 0
        self.persists = loader._persistent_workers and self.away
        self._feed = IndexFeed()
        payload = WorkerPayload(PADDLE, loader.dataset, collate_of(loader), loader.worker_init_fn, epoch)
        super().__init__(payload, TENSORS)
        seeded, collate = Seeded(payload, bare=not loader.auto_collate_batch), Collate(payload)
        replaced = {
            "batch_sampler": self._feed,
            "auto_collate_batch": True,
            "worker_init_fn": WorkerInit(payload),
            "dataset": Guarded(payload, seeded) if self.away else seeded,
            "collate_fn": Posted(collate) if self.away else collate,
        }
        self._reader = _reader(loader, replaced)

    def begin(self, place: Position, indices: Iterator[Any]) -> Iterator[Any]:
        self._payload.epoch = place.epoch
        self._feed.ahead = ([index] for index in each_on_cpu(indices))
        # Starting workers draws a seed from NumPy's global stream.
        with StreamScope(StreamSet(NEUTRAL.shared()), derive(place.seed, "loader", place.epoch)):
            return iter(self._reader)

    def look(self, probe: Probe) -> Probed:
        with on_cpu():
            return super().look(probe)

    def end(self, iterator: Any) -> None:
        # Of an epoch that was left, Paddle's workers hold batches that would come out in the next one.
        if not self.persists or not iterator.finished:
            stop_reading(self._reader)

    def close(self) -> None:
        stop_reading(self._reader)


def _replayed(loader: DataLoader, place: Position, workers: int) -> Source:
    refuse_reading(loader, "paddle.io")
    payload = WorkerPayload(PADDLE, loader.dataset, collate_of(loader), loader.worker_init_fn, place.epoch)
    replaced: dict[str, Any] = {"_persistent_workers": False, "num_workers": workers}
    if workers > 0:
        replaced["dataset"] = Guarded(payload, Seeded(payload))
        replaced["collate_fn"] = Posted(Collate(payload))
        replaced["worker_init_fn"] = WorkerInit(payload)
    elif isinstance(loader.dataset, IterableDataset):
        # What it counts while it is read is for this epoch only, as it would be in a worker.
        replaced["dataset"] = fresh_copy(loader.dataset)
    copy = _reader(loader, replaced)
    here = workers == 0 or type(loader).__iter__ is not DataLoader.__iter__
    # Starting workers draws their seed from NumPy's global stream.
    streams = StreamSet.of(PADDLE, copy) if here else StreamSet(NEUTRAL.shared())

    def stop(iterator: Any) -> None:
        if isinstance(iterator, Iterator) and hasattr(iterator, "close"):
            iterator.close()
        stop_reading(copy)

    return Source(copy, streams, owner=state_owner(copy), length=_length(loader), workers=workers, stop=stop)


def _reader(loader: DataLoader, replaced: dict[str, Any]) -> Any:
    own: dict[str, Any] = {"_iterator": None, "deliveries": []}
    return shallow_copy(loader, reader_kind(type(loader)), replaced | own)


def _length(loader: DataLoader) -> int | None:
    if not isinstance(loader.dataset, IterableDataset):
        return length_of(loader)
    samples = length_of(loader.dataset)  # None unless the user gave it one
    if samples is None or not loader.auto_collate_batch:
        return samples
    size: int = loader.batch_sampler.batch_size
    return samples // size if loader.drop_last else -(-samples // size)


class PaddleData(LoaderData):
    """See `LoaderData`."""

    kinds = PADDLE
    arrays = TENSORS
    loader, dataset, stream = DataLoader, Dataset, IterableDataset

    def __init__(self) -> None:
        super().__init__()
        self._swept = False

    def map_style(self, loader: DataLoader) -> bool:
        own = type(loader).__iter__ is DataLoader.__iter__
        return own and not isinstance(loader.dataset, IterableDataset)

    def sampling(self, loader: DataLoader) -> Sampling:
        source = loader.batch_sampler
        if source is None:  # batch_size=None: Paddle gives one item after the other
            return Sampling(range(len(loader.dataset)))
        if type(source) is BatchSampler and getattr(source, "_acc_steps", 1) == 1:  # before 3.0 there are none
            return Sampling(source.sampler, cut=(source.batch_size, source.drop_last))
        return Sampling(source, whole_batches=True)

    def order(self, loader: DataLoader, place: Position, *, whole: bool) -> Order:
        with on_cpu():
            return super().order(loader, place, whole=whole)

    def adapted(self, loader: DataLoader, epoch: int) -> Adapted:
        return Adapted(loader, epoch)

    def alone(self, loader: DataLoader) -> DataLoader:
        return shallow_copy(
            loader, type(loader), {"num_workers": min(1, loader.num_workers), "_persistent_workers": False}
        )

    def replayed(self, loader: DataLoader, place: Position, workers: int) -> Source:
        return _replayed(loader, place, workers)

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
