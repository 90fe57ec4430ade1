"""The order of data in torch: loaders adapted, seeded and positioned, in this process and in workers."""

from __future__ import annotations

import os
import re
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    IterDataPipe,
    RandomSampler,
    Subset,
    TensorDataset,
    default_collate,
    default_convert,
    get_worker_info,
)
from torch.utils.data.distributed import DistributedSampler

from colabkeep.core.errors import UsageError
from colabkeep.core.state import Stateful, Tagged, derive
from colabkeep.frameworks.base import DataFacts
from colabkeep.frameworks.shared import loaders
from colabkeep.frameworks.shared.iterables import Counts, Position, Source, length_of
from colabkeep.frameworks.shared.loaders import (
    IndexFeed,
    LoaderData,
    Sampling,
    fresh_copy,
    refuse_reading,
    shallow_copy,
    state_owner,
)
from colabkeep.frameworks.shared.rng import Stream
from colabkeep.frameworks.shared.samples import NUMPY, Arrays, ArrayView
from colabkeep.frameworks.shared.streams import NEUTRAL, Kinds, StreamSet
from colabkeep.frameworks.shared.workers import Collate, Seeded, WorkerPayload, die_with_trainer
from colabkeep.frameworks.torch.rng import DeviceStream, MpsStream, TorchStream


class WorkerInit:
    """What a worker does first: bind its life to the trainer's, then the user's own `worker_init_fn`."""

    def __init__(self, payload: WorkerPayload) -> None:
        self._payload = payload

    def __call__(self, worker: int) -> None:
        die_with_trainer()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a handler of the trainer's is not a worker's
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer decides what an interrupted cell still needs
        info: Any = get_worker_info()
        self._payload.start_worker(info, worker, info.seed)


def _shared() -> Sequence[Stream]:
    return [TorchStream(), *NEUTRAL.shared()]


def _recognise(obj: object) -> Stream | None:
    if isinstance(obj, torch.Generator):
        # A generator of another device cannot be touched in a forked worker, and no data set draws from it there.
        own = obj is not torch.default_generator and obj.device.type == "cpu"
        return TorchStream(obj) if own else None
    return NEUTRAL.recognise(obj)


def _devices() -> Sequence[Stream]:
    kinds = (DeviceStream("cuda"), DeviceStream("xpu"), MpsStream())
    return [devices for devices in kinds if devices.take() is not None]


TORCH = Kinds(_shared, _recognise, _devices)
"""torch's CPU generator, Python's and NumPy's streams, and generator objects of all three; those of devices in use."""


def _head(array: Any, count: int) -> bytes | None:
    if not isinstance(array, torch.Tensor):
        return NUMPY.head(array, count)
    if array.device.type != "cpu" or array.layout is not torch.strided:
        return None
    return _bytes(array.detach().flatten()[:count])


def _pack(value: Any) -> Tagged | None:
    if type(value) is not torch.Tensor:
        return NUMPY.pack(value)
    if value.device.type != "cpu" or value.layout is not torch.strided:
        return None
    return Tagged("torch.Tensor", (str(value.dtype).removeprefix("torch."), tuple(value.shape), _bytes(value.detach())))


def _unpack(node: Tagged) -> Any:
    if node.kind != "torch.Tensor":
        return NUMPY.unpack(node)
    dtype, shape, data = node.value
    raw = torch.tensor(list(data), dtype=torch.uint8, device="cpu")
    return raw.view(getattr(torch, dtype)).reshape(shape)


def _see(value: Any) -> ArrayView | None:
    if not isinstance(value, torch.Tensor):
        return NUMPY.see(value)
    dtype, shape = str(value.dtype).removeprefix("torch."), tuple(value.shape)
    if value.layout is not torch.strided or value.is_quantized or value.is_meta or not value.numel():
        return ArrayView(dtype, shape, 0, None)
    tensor = value.detach().as_subclass(torch.Tensor)
    flat = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    return ArrayView(dtype, shape, flat.numel(), lambda start, stop: bytes(flat[start:stop].cpu().numpy().tobytes()))


def _bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy().tobytes())


TENSORS = Arrays(_head, _pack, _unpack, _see)
"""CPU tensors, and NumPy's arrays and scalars."""


def unprepared(loader: Any) -> DataLoader[Any]:
    """The loader that was prepared; any other loader is that itself.

    Raises:
        UsageError: it was prepared in a way whose batches cannot be placed again.
    """
    module = sys.modules.get("accelerate.data_loader")
    if module is None or not type(loader).__module__.startswith("accelerate."):
        return loader  # type: ignore[no-any-return] # a DataLoader
    base = loader.__dict__.get("base_dataloader")  # past its __getattr__, which would ask the loader inside
    if base is not None and not loader.skip_batches:
        shares = type(loader) is module.DataLoaderShard and not isinstance(base.dataset, IterableDataset)
        handed_on = isinstance(base.dataset, module.IterableDatasetShard) or module.PartialState().num_processes > 1
        if shares or (not handed_on and type(loader) in (module.DataLoaderShard, module.DataLoaderDispatcher)):
            return base  # type: ignore[no-any-return]
    raise UsageError(
        problem=f"This loader was prepared by Accelerate ({type(loader).__name__}), in a way that cannot be resumed: "
        "it skips batches, or several processes share out what it dispatches or streams.",
        remedy="Hand in the DataLoader as it was before accelerator.prepare, and move each batch yourself: "
        "batch = accelerate.utils.send_to_device(batch, accelerator.device). Model, optimizer and scheduler may be "
        "prepared as before.",
    )


def around(loader: Any, adapted: DataLoader[Any]) -> Any:
    """What reads `adapted` as `loader` would read the loader that it was made from. Batches go to the device, and
    Accelerate learns when an epoch ends: its gradient accumulation goes by that."""
    if unprepared(loader) is loader:
        return adapted
    kind: Any = sys.modules["accelerate.data_loader"].DataLoaderShard
    replaced: dict[str, Any] = {"base_dataloader": adapted}
    if type(loader) is not kind:  # it hands batches on to other processes, and there are none
        replaced |= {"device": loader.state.device, "rng_types": None, "synchronized_generator": None}
    return shallow_copy(loader, kind, replaced)


def _unshared(loader: DataLoader[Any]) -> Any:
    """What gives the indices of a map-style loader: where Accelerate shares them out, those of all processes together.

    Raises:
        UsageError: each process has batches of its own, and nothing says what they are together.
    """
    source: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    module = sys.modules.get("accelerate.data_loader")
    if module is None or type(source) is not module.BatchSamplerShard:
        return source
    batches, together = source.batch_sampler, 1 if source.split_batches else source.num_processes
    if _plain(batches):
        sampler = batches.sampler
        if isinstance(sampler, RandomSampler) and loader.generator is None:
            # The generator is Accelerate's, which gives none in one process: then it would be another order.
            sampler = shallow_copy(sampler, type(sampler), {"generator": None})
        return BatchSampler(sampler, batches.batch_size * together, batches.drop_last)
    if source.split_batches:
        return batches
    raise UsageError(
        problem=f"Accelerate gives each process other batches of the {type(batches).__name__}, and colabkeep cannot "
        "see what a batch of all processes together is: another number of processes would make another training.",
        remedy="Write Accelerator(dataloader_config=DataLoaderConfiguration(split_batches=True)), and let the sampler "
        "give batches of the size that all processes have together.",
    )


# A worker that hands over tensors listens on a socket, `pymp-<8 letters>/listener-<8 letters>` (multiprocessing.util,
# multiprocessing.connection), and removes both when it ends by itself. One that is killed leaves them.


_FOLDER = re.compile(r"pymp-[a-z0-9_]{8}")
_BOUND = Path("/proc/net/unix")  # Linux; elsewhere nothing is removed
_YOUNG = 60.0  # seconds: a folder so new may be about to be used


def remove_dead_listeners(folder: Path | None = None, now: Callable[[], float] = time.time) -> int:
    """Remove the folders of this user in which nobody listens any more. Gives how many there were. A folder stays if
    anything but sockets is in it, or if the kernel lists one of them."""
    if not _BOUND.is_file():
        return 0
    bound, removed = _BOUND.read_text(errors="replace"), 0
    for path in Path(folder or tempfile.gettempdir()).glob("pymp-*"):
        with suppress(OSError):  # its owner tidies up, too, and other sessions
            about, members = path.lstat(), list(path.iterdir())
            ours = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and _FOLDER.fullmatch(path.name)
            dead = members and all(stat.S_ISSOCK(each.lstat().st_mode) and str(each) not in bound for each in members)
            if ours and dead and about.st_mtime < now() - _YOUNG:
                for each in members:
                    each.unlink()
                path.rmdir()
                removed += 1
    return removed


_QUIET = frozenset({TensorDataset, list, tuple, range, np.ndarray, torch.Tensor})


class Adapted(loaders.Adapted):
    """A map-style loader whose order can be set, epoch after epoch."""

    def __init__(self, loader: DataLoader[Any], epoch: int) -> None:
        base = unprepared(loader)
        self.quiet = loader.collate_fn in (default_collate, default_convert) and _quiet(loader.dataset)
        self.away = loader.num_workers > 0
        self.persists = any(vars(each).get(_STAY, each.persistent_workers) for each in (loader, base)) and self.away
        self._feed = IndexFeed()
        payload, replaced = _carried(loader, loader.num_workers, epoch)
        replaced["persistent_workers"] = self.persists
        super().__init__(payload, TENSORS)
        bare = loader.batch_sampler is None
        seeded = Seeded(self._payload, bare=bare)
        if self.away or not self.quiet:
            replaced |= {"dataset": seeded, "collate_fn": Collate(self._payload)}
        here = type(loader) is DataLoader and not self.away and not loader.pin_memory
        self._here: Callable[[Any], Any] | None = seeded.read if here else None
        replaced["sampler" if bare else "batch_sampler"] = self._feed
        kind = DataLoader if _stateful_loader(base) else type(base)  # ours knows its place better
        self._loader = shallow_copy(base, kind, replaced)
        self._outer = around(loader, self._loader)

    def begin(self, place: Position, indices: Iterator[Any]) -> Iterator[Any]:
        self._payload.epoch = place.epoch
        if self._here is not None:
            return self._read(self._here, indices)
        self._loader.generator.manual_seed(derive(place.seed, "loader", place.epoch))
        self._feed.ahead = indices
        return iter(self._outer)

    def _read(self, read: Callable[[Any], Any], indices: Iterator[Any]) -> Iterator[Any]:
        """What torch's own iterator does where it loads in this process (torch/utils/data/dataloader.py), in a third of
        the calls: they are most of what a small step pays for its batch."""
        if self.quiet:
            return map(read, indices)
        load = self._payload.seeding().load

        def seeded(tag: tuple[Any, ...]) -> Any:
            return load(tag[1], read, tag[3])

        return map(seeded, indices)

    def end(self, iterator: Any) -> None:
        if not self.persists:
            _stop(iterator)

    def close(self) -> None:
        _stop(self._loader._iterator)


_STAY = "_workers_stay"  # what the user wrote, while they do not


def begin_anew(loaders: Iterable[DataLoader[Any]]) -> Iterator[DataLoader[Any]]:
    """From now on workers begin anew for each pass; those loaders whose workers would stay. Ours are left alone: their
    workers draw from a generator of their own. Torch lets nobody write this by its name."""
    for each in loaders:
        sources = vars(each).get("sampler"), vars(each).get("batch_sampler")
        if vars(each).get("persistent_workers") and not any(isinstance(source, IndexFeed) for source in sources):
            vars(each).update({"persistent_workers": False, _STAY: True})
            yield each


def stay(loaders: Iterable[DataLoader[Any]]) -> None:
    """Their workers stay again, as the user wrote it."""
    for each in loaders:
        vars(each)["persistent_workers"] = vars(each).pop(_STAY)


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


def _replayed(prepared: DataLoader[Any], place: Position, workers: int) -> Source:
    loader = unprepared(prepared)
    refuse_reading(loader, "torch.utils.data")
    payload, replaced = _carried(loader, workers, place.epoch)
    tells = isinstance(loader, Stateful) and not _miscounts(loader)
    replaced["generator"].manual_seed(derive(place.seed, "loader", place.epoch))
    replaced |= {"persistent_workers": False, "num_workers": workers}
    if workers != loader.num_workers:
        replaced |= {"prefetch_factor": (loader.prefetch_factor or 2) if workers else None}
        replaced |= {} if workers else {"timeout": 0, "_DataLoader__multiprocessing_context": None}
    if not isinstance(loader.dataset, IterDataPipe):  # torch goes by the type of those
        if workers == 0 and isinstance(loader.dataset, IterableDataset):
            # What it counts while it is read is for this epoch only, as it would be in a worker.
            replaced["dataset"] = fresh_copy(loader.dataset)
        elif workers > 0 and not tells:
            replaced["dataset"] = Seeded(payload)
    copy = shallow_copy(loader, type(loader), replaced)
    length = length_of(copy)
    copy.__dict__["_IterableDataset_len_called"] = None  # asking for the length must not make torch watch it
    here = workers == 0 or type(loader).__iter__ is not DataLoader.__iter__
    streams = StreamSet.of(TORCH, copy) if here else StreamSet()
    owner = state_owner(copy) if tells or not isinstance(copy, Stateful) else None
    if prepared is not loader:
        owner = None  # Accelerate reads a batch in advance, so that it can tell which one is the last
    return Source(around(prepared, copy), streams, owner=owner, length=length, workers=workers, stop=_stop)


def _carried(loader: DataLoader[Any], workers: int, epoch: int) -> tuple[WorkerPayload, dict[str, Any]]:
    """The user's objects as a worker's payload, and the attributes that let workers receive it."""
    payload = WorkerPayload(TORCH, loader.dataset, loader.collate_fn, loader.worker_init_fn, epoch)
    # Torch draws its workers' seed on the default device, with this generator (torch/utils/data/dataloader.py).
    generator = torch.Generator(torch.empty(0).device)
    replaced: dict[str, Any] = {"_iterator": None, "generator": generator, "in_order": True}
    if workers > 0:
        replaced |= {"collate_fn": Collate(payload), "worker_init_fn": WorkerInit(payload)}
    return payload, replaced


def _miscounts(loader: DataLoader[Any]) -> bool:
    """Is it torchdata's, which counts twice what it skips in a stream that tells no state? Resumed a second time, it
    would leave batches out."""
    streams = isinstance(loader.dataset, IterableDataset) and not isinstance(loader.dataset, Stateful)
    return streams and any(each.__module__.startswith("torchdata.") for each in type(loader).__mro__)


def _stateful_loader(loader: object) -> bool:
    module = sys.modules.get("torchdata.stateful_dataloader")
    return module is not None and type(loader) is module.StatefulDataLoader


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


class TorchData(LoaderData):
    """See `LoaderData`."""

    kinds = TORCH
    arrays = TENSORS
    loader, dataset, stream = DataLoader, Dataset, IterableDataset

    def __init__(self, rank: int = 0, ranks: int = 1) -> None:
        super().__init__(rank, ranks)
        self._swept = False

    def map_style(self, loader: DataLoader[Any]) -> bool:
        return map_style(loader)

    def sampling(self, loader: DataLoader[Any]) -> Sampling:
        source = _unshared(loader)
        if _plain(source):
            return Sampling(source.sampler, cut=(source.batch_size, source.drop_last))
        return Sampling(source, whole_batches=loader.batch_sampler is not None)

    def adapted(self, loader: DataLoader[Any], epoch: int) -> Adapted:
        return Adapted(loader, epoch)

    def alone(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        base = unprepared(loader)
        return shallow_copy(base, type(base), {"num_workers": min(1, base.num_workers), "persistent_workers": False})

    def facts(self, loader: Any) -> DataFacts:
        facts = super().facts(loader)
        # A prepared one has the batches of one process.
        return replace(facts, batch=None) if type(loader).__module__.startswith("accelerate.") else facts

    def counts(self, loader: Any, epoch: int) -> Counts | None:
        return super().counts(unprepared(loader), epoch)

    def replayed(self, loader: DataLoader[Any], place: Position, workers: int) -> Source:
        return _replayed(loader, place, workers)

    def before(self, loader: DataLoader[Any]) -> Sequence[str]:
        if isinstance(loader.sampler, DistributedSampler) and loader.sampler.num_replicas > 1:
            together = (loader.batch_size or 1) * loader.sampler.num_replicas
            raise UsageError(
                problem="This loader has a DistributedSampler, which gives this process a share of the samples. "
                "colabkeep shares each batch out by itself, so that a run is the same with another number of "
                "processes: this way most samples would never be seen.",
                remedy="Leave out the sampler, and give the loader the batch_size of all processes together: "
                f"DataLoader(dataset, batch_size={together}, shuffle={loader.sampler.shuffle}).",
            )
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
