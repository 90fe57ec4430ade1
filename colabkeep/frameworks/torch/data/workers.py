"""What an adapted loader sends to its workers: the user's objects, and seeds with the indices.

Everything here is importable, so that workers started by spawn or forkserver can load it; what the user
wrote, perhaps in a notebook cell, travels inside a `Cargo`.
"""

from __future__ import annotations

import ctypes
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
from typing import Any, ClassVar

from torch.utils.data import get_worker_info

from colabkeep.frameworks.common.streams import Streams
from colabkeep.frameworks.torch.data.streams import TORCH

__all__ = ["Cargo", "Collate", "Seeded", "WorkerInit", "tag"]


_TAG = "colabkeep tag"


def tag(seed: int, epoch: int, index: Any) -> tuple[Any, ...]:
    """An index, or list of indices, with the seed of its batch and its epoch.

    A plain tuple: a class would be looked up by its name for each batch that a worker unpickles (1 µs).
    """
    return _TAG, seed, epoch, index


def _tagged(index: Any) -> bool:
    return type(index) is tuple and len(index) == 4 and type(index[0]) is str and index[0] == _TAG


class Cargo:
    """The user's objects on their way to a worker, kept together so that what they share stays shared."""

    def __init__(self, dataset: Any, collate_fn: Any, worker_init_fn: Any, epoch: int) -> None:
        self.dataset = dataset
        self.collate_fn = collate_fn
        self.worker_init_fn = worker_init_fn
        self.epoch = epoch
        self._streams: Streams | None = None

    def begin(self, epoch: int) -> None:
        """Tell the data set the epoch, where it wants to know: persistent workers hold a copy of their own."""
        if epoch != self.epoch:
            self.epoch = epoch
            if hasattr(self.dataset, "set_epoch"):
                self.dataset.set_epoch(epoch)

    def streams(self) -> Streams:
        """The global streams and those the objects hold, looked for once per process."""
        if self._streams is None:
            self._streams = Streams.of(TORCH, self.dataset, self.collate_fn)
        return self._streams

    def forget_streams(self) -> None:
        """Look for generator objects again: the user's code may have made new ones."""
        self._streams = None

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _unpack, (_pack((self.dataset, self.collate_fn, self.worker_init_fn, self.epoch)),)


def _pack(value: Any) -> bytes:
    """Pickled for a worker about to start: code of a notebook by value, tensors in shared memory."""
    import cloudpickle

    shared: Any = ForkingPickler  # it keeps torch's reducers; without them each worker gets a copy of every tensor

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        dispatch_table: ClassVar[Any] = ChainMap(shared._extra_reducers, cloudpickle.Pickler.dispatch_table)

    file = io.BytesIO()
    Pickler(file).dump(value)
    return file.getvalue()


def _unpack(packed: bytes) -> Cargo:
    return Cargo(*pickle.loads(packed))  # noqa: S301 - from our own parent process, through a pipe


class Seeded:
    """The user's data set, with random streams seeded before each batch. 9 µs per batch, 7 more per NumPy Generator.

    Collating follows in the same process, so it draws from the same streams.
    """

    def __init__(self, cargo: Cargo) -> None:
        self._cargo = cargo

    def __getitems__(self, batch: Any) -> Any:
        dataset = self._cargo.dataset
        if _tagged(batch):
            batch = self._begin(batch)
        many = getattr(dataset, "__getitems__", None)
        return many(batch) if many else [dataset[index] for index in batch]

    def __getitem__(self, index: Any) -> Any:
        if _tagged(index):
            index = self._begin(index)
        return self._cargo.dataset[index]

    def __iter__(self) -> Any:
        return iter(self._cargo.dataset)

    def __len__(self) -> int:
        return len(self._cargo.dataset)

    def __getattr__(self, name: str) -> Any:
        # For subclasses of DataLoader that look into their data set. Python's own questions are about this object.
        if name.startswith("__") or name == "_cargo":
            raise AttributeError(name)
        return getattr(self._cargo.dataset, name)

    def _begin(self, tagged: tuple[Any, ...]) -> Any:
        _, seed, epoch, index = tagged
        cargo = self._cargo
        if epoch != cargo.epoch:
            cargo.begin(epoch)
        (cargo._streams or cargo.streams()).seed(seed)
        return index


class Collate:
    """The user's collate function, as part of a cargo."""

    def __init__(self, cargo: Cargo) -> None:
        self._cargo = cargo

    def __call__(self, items: Any) -> Any:
        return self._cargo.collate_fn(items)


class WorkerInit:
    """What a worker does first: bind its life to the trainer's, then the user's own `worker_init_fn`."""

    def __init__(self, cargo: Cargo) -> None:
        self._cargo = cargo

    def __call__(self, worker: int) -> None:
        die_with_trainer()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a handler of the trainer's is not a worker's
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer decides what an interrupted cell still needs
        info: Any = get_worker_info()
        object.__setattr__(info, "dataset", self._cargo.dataset)  # the user's code meets the user's data set
        self._cargo.streams().seed(info.seed)
        if self._cargo.worker_init_fn is not None:
            self._cargo.worker_init_fn(worker)
            self._cargo.forget_streams()


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
