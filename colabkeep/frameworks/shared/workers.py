"""What an adapted loader sends to its workers: the user's objects, and seeds with the indices; and workers that end
with their trainer.
"""

from __future__ import annotations

import ctypes
import importlib
import io
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections import ChainMap
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.reduction import ForkingPickler
from types import ModuleType
from typing import Any, ClassVar

from colabkeep.frameworks.base import Probe, Probed
from colabkeep.frameworks.shared.samples import Seen, look_at
from colabkeep.frameworks.shared.streams import Kinds, Seeding, StreamSet

# Everything here is importable, so that workers started by spawn or forkserver can load it; what the user wrote,
# perhaps in a notebook cell, travels inside a `WorkerPayload`.


_TAG = "colabkeep tag"
_PROBE = "colabkeep probe"


def tag(seed: int, epoch: int, index: Any) -> tuple[Any, ...]:
    """An index, or list of indices, with the seed of its batch and its epoch.

    A plain tuple: a class would be looked up by its name for each batch that a worker unpickles (1 µs).
    """
    return _TAG, seed, epoch, index


def tagged(index: Any) -> bool:
    """Was this made by `tag`?"""
    return type(index) is tuple and len(index) == 4 and type(index[0]) is str and index[0] == _TAG


def probing(probe: Probe, seen: Seen) -> tuple[Any, ...]:
    """A probe in the place of an index."""
    return _PROBE, probe, seen


def is_probing(index: Any) -> bool:
    """Was this made by `probing`?"""
    return type(index) is tuple and len(index) == 3 and type(index[0]) is str and index[0] == _PROBE


class WorkerPayload:
    """The user's objects on their way to a worker, kept together so that what they share stays shared."""

    def __init__(self, kinds: Kinds, dataset: Any, collate_fn: Any, worker_init_fn: Any, epoch: int) -> None:
        self.dataset = dataset
        self.collate_fn = collate_fn
        self.worker_init_fn = worker_init_fn
        self.epoch = epoch
        self.failure: Exception | None = None  # of the user's `worker_init_fn`, for frameworks that would lose it
        self._kinds = kinds
        self._streams: StreamSet | None = None
        self._seeding: Seeding | None = None

    def load(self, tagged: tuple[Any, ...], read: Callable[[Any], Any]) -> Any:
        """What `read` gives for the index of a tag, under its seed."""
        _, seed, epoch, index = tagged
        if epoch != self.epoch:
            self._tell(epoch)
        return self.seeding().load(seed, read, index)

    def seeding(self) -> Seeding:
        """What loads each batch under a seed of its own, in this process."""
        if self._seeding is None:
            self._seeding = Seeding(self.streams(), self._found)
        return self._seeding

    def streams(self) -> StreamSet:
        """The global streams and those the objects hold, looked for once per process."""
        if self._streams is None:
            self._streams = self._found()
        return self._streams

    def _found(self) -> StreamSet:
        return StreamSet.of(self._kinds, self.dataset, self.collate_fn)

    def look(self, probe: Probe, seen: Seen, *, here: bool = False) -> Probed:
        """Look at samples, in a worker or, where nothing else loads them, `here`."""
        streams = StreamSet.for_a_look(self._kinds, self.dataset, self.collate_fn) if here else self.streams()
        return look_at(self.dataset, probe, seen, streams, self.epoch)

    def start_worker(self, info: Any, worker: int, seed: int) -> None:
        """The first thing in a worker: the user's own `worker_init_fn`, which meets the user's own data set.

        `info` is what the framework's `get_worker_info()` gives; it guards its attributes.
        """
        object.__setattr__(info, "dataset", self.dataset)
        self.streams().seed(seed)
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker)
            self._streams = self._seeding = None  # the user's code may have made new generator objects

    def _tell(self, epoch: int) -> None:
        """Tell the data set the epoch, where it wants to know: persistent workers hold a copy of their own."""
        self.epoch = epoch
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _unpack, (self._kinds, _pack((self.dataset, self.collate_fn, self.worker_init_fn, self.epoch)))


class Seeded:
    """The user's data set, each batch of which is loaded and collated under a seed of its own.

    A tag stands for a whole batch or, where the loader gives single items (`bare`), for one of them.
    """

    def __init__(self, payload: WorkerPayload, *, bare: bool = False) -> None:
        self._payload = payload
        self.read = self.single if bare else self.collated

    def __getitem__(self, index: Any) -> Any:
        if tagged(index):
            return Loaded((self._payload.load(index, self.read),))
        return self._payload.look(*index[1:]) if is_probing(index) else self._payload.dataset[index]

    def __getitems__(self, batch: Any) -> Any:
        return self[batch] if tagged(batch) or is_probing(batch) else self._items(batch)

    def collated(self, batch: Any) -> Any:
        """The batch of these indices."""
        return self._payload.collate_fn(self._items(batch))

    def single(self, index: Any) -> Any:
        """The item of this index, where the loader gives single ones."""
        return self._payload.collate_fn(self._payload.dataset[index])

    def _items(self, batch: Any) -> Any:
        dataset = self._payload.dataset
        many = getattr(dataset, "__getitems__", None)
        return many(batch) if many else [dataset[index] for index in batch]

    def __iter__(self) -> Any:
        return iter(self._payload.dataset)

    def __len__(self) -> int:
        return len(self._payload.dataset)

    def __getattr__(self, name: str) -> Any:
        # For subclasses of DataLoader that look into their data set. Python's own questions are about this object.
        if name.startswith("__") or name == "_payload":
            raise AttributeError(name)
        return getattr(self._payload.dataset, name)


class Loaded(tuple[Any]):
    """Holds a batch that is collated already: its seed counts for that, too."""


class Collate:
    """The user's collate function, as part of a worker's payload, for what is not collated yet."""

    def __init__(self, payload: WorkerPayload) -> None:
        self._payload = payload

    def __call__(self, items: Any) -> Any:
        one = items[0] if type(items) is list and len(items) == 1 else items  # Paddle's loaders make a list of it
        if type(one) is Loaded:
            return one[0]
        return one if type(one) is Probed else self._payload.collate_fn(items)


def travels(value: object) -> bool:
    """Does `value` come out of a pipe between two processes as what it is?"""
    try:
        return type(pickle.loads(pickle.dumps(value))) is type(value)  # noqa: S301 - made in the same line
    except Exception:  # noqa: BLE001 - pickling calls code of whoever wrote the class
        return False


def _pack(value: Any) -> bytes:
    """Pickled for a worker about to start: code of a notebook by value, tensors in shared memory."""
    import cloudpickle

    shared: Any = ForkingPickler  # it keeps the framework's reducers; without them each worker copies every tensor

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        dispatch_table: ClassVar[Any] = ChainMap(shared._extra_reducers, cloudpickle.Pickler.dispatch_table)

    file = io.BytesIO()
    Pickler(file).dump(value)
    return file.getvalue()


def _unpack(kinds: Kinds, packed: bytes) -> WorkerPayload:
    return WorkerPayload(kinds, *pickle.loads(packed))  # noqa: S301 - from our own parent process, through a pipe


_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_trainer() -> None:
    """This worker is killed when the trainer is gone, however that happened.

    Linux does it at once for a direct child, when the *thread* that started it ends: loaders belong to the
    training thread. Else (forkserver, other systems) a thread waits for the end of the pipe that only the
    trainer holds open.
    """
    trainer = multiprocessing.parent_process()
    if trainer is None:
        return
    if sys.platform == "linux" and os.getppid() == trainer.pid:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != trainer.pid:  # it died before the kernel was told
            os.kill(os.getpid(), signal.SIGKILL)
        return
    threading.Thread(target=_die_after, args=(trainer.sentinel,), name="colabkeep-trainer", daemon=True).start()


def _die_after(sentinel: int) -> None:
    wait([sentinel])
    os.kill(os.getpid(), signal.SIGKILL)


def to_process(value: Any, carried: Callable[[Any], Any] = lambda _: NotImplemented) -> bytes:
    """Pickled for a process of this machine that was begun here, or back to the one that began it: code of a notebook
    by value. Never for a disk. `carried`: how an object is made again there, as `object.__reduce__` tells it;
    NotImplemented: as it tells itself.

    Raises:
        Exception: of any kind, where something in it cannot travel.
    """
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            # A module of a class of its own, as torch.backends.cudnn is, is found by its name like any other.
            name = getattr(obj, "__name__", "") if isinstance(obj, ModuleType) else ""
            if type(obj) is not ModuleType and name and sys.modules.get(name) is obj:
                return importlib.import_module, (name,)
            reduced = carried(obj)
            return super().reducer_override(obj) if reduced is NotImplemented else reduced

    file = io.BytesIO()
    Pickler(file).dump(value)
    return file.getvalue()


def from_process(data: bytes) -> Any:
    """What was packed so, from a process of our own, through a pipe."""
    return pickle.loads(data)  # noqa: S301 - of this library, begun by it or its parent
