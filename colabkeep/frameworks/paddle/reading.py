"""Reading a DataLoader of Paddle's, in this very thread or by its workers; batches on their way out, and shared memory
that dead workers leave.
"""

from __future__ import annotations

import gc
import numbers
import os
import re
import stat
import time
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle.framework import core
from paddle.io import DataLoader, IterableDataset, get_worker_info
from paddle.io.dataloader.collate import default_collate_fn, default_convert_fn

from colabkeep.core.state import Tagged
from colabkeep.frameworks.paddle.rng import GeneratorState, PaddleStream, plain_state, revived_state
from colabkeep.frameworks.shared.rng import Stream
from colabkeep.frameworks.shared.samples import NUMPY, Arrays, ArrayView
from colabkeep.frameworks.shared.streams import NEUTRAL, Kinds
from colabkeep.frameworks.shared.workers import WorkerPayload, travels

_END = object()


def on_cpu() -> AbstractContextManager[Any]:
    """What is drawn and made inside is so on the CPU, as in a worker, whatever device trains.

    Else one order of samples would be drawn by a GPU's generator and the same, in a worker, by the CPU's.
    """
    if paddle.get_device() == "cpu":
        return nullcontext()
    guard: AbstractContextManager[Any] = paddle.base.dygraph.guard(paddle.CPUPlace())
    return guard


def each_on_cpu(items: Iterator[Any]) -> Iterator[Any]:
    """The same items, each made `on_cpu`."""
    while True:
        with on_cpu():
            item = next(items, _END)
        if item is _END:
            return
        yield item


def _shared() -> Sequence[Stream]:
    # The device's comes last: a worker has none, and the others must get the same seeds there.
    return [PaddleStream(), *NEUTRAL.shared(), *_of_device()]


def _of_device() -> Iterator[Stream]:
    kind, _, number = paddle.get_device().partition(":")
    if kind in ("gpu", "xpu") and get_worker_info() is None:  # a forked worker cannot touch a device
        which = "cuda" if kind == "gpu" else kind
        yield PaddleStream(getattr(core, f"default_{which}_generator")(int(number)))


def _recognise(obj: object) -> Stream | None:
    if isinstance(obj, core.Generator):
        return None if obj is core.default_cpu_generator() else PaddleStream(obj)
    return NEUTRAL.recognise(obj)


PADDLE = Kinds(_shared, _recognise)
"""Paddle's generators of the CPU and of the device in use, Python's and NumPy's streams, and generator objects."""


_STATE = ("device", "seed", "offset", "engine")


def as_array(tensor: paddle.Tensor) -> Any:
    """A copy as a NumPy array that Paddle turns into the same tensor again; None for a dtype where it does not."""
    name = str(tensor.dtype).removeprefix("paddle.")
    array = tensor.numpy()
    return array if array.dtype.name == ("uint16" if name == "bfloat16" else name) else None


def _head(array: Any, count: int) -> bytes | None:
    if not isinstance(array, paddle.Tensor):
        return NUMPY.head(array, count)
    if not _at_hand(array):
        return None
    return bytes(array.detach().flatten()[:count].numpy().tobytes())


def _pack(value: Any) -> Tagged | None:
    if isinstance(value, GeneratorState):
        state: Any = plain_state(value)
        return None if state is None else Tagged("paddle.Generator", tuple(state[name] for name in _STATE))
    if not isinstance(value, paddle.Tensor):
        return NUMPY.pack(value)
    array = as_array(value.detach()) if _at_hand(value) else None
    return None if array is None else Tagged("paddle.Tensor", (array.dtype.str, tuple(array.shape), array.tobytes()))


def _unpack(node: Tagged) -> Any:
    if node.kind == "paddle.Generator":
        return revived_state(dict(zip(_STATE, node.value, strict=True)))
    if node.kind != "paddle.Tensor":
        return NUMPY.unpack(node)
    dtype, shape, data = node.value
    return paddle.to_tensor(np.frombuffer(data, dtype=dtype).reshape(shape), place=paddle.CPUPlace())


def _see(value: Any) -> ArrayView | None:
    if not isinstance(value, paddle.Tensor):
        return NUMPY.see(value)
    dtype = str(value.dtype).removeprefix("paddle.")
    sight = NUMPY.see(value.detach().numpy()) if value.is_dense() else None
    return ArrayView(dtype, tuple(value.shape), sight.size if sight else 0, sight.read if sight else None)


def _at_hand(tensor: paddle.Tensor) -> bool:
    return bool(tensor.place.is_cpu_place()) and bool(tensor.is_dense())


TENSORS = Arrays(_head, _pack, _unpack, _see)
"""CPU tensors, NumPy's arrays and scalars, and the states of Paddle's generators."""


# A worker hands each array over in a file of /dev/shm named `paddle_<its pid>_<number>`, and whoever reads it last
# removes it (Paddle, mmap_allocator.cc). After a SIGKILL nobody does, until the machine restarts.


_FOLDER = Path("/dev/shm")  # noqa: S108 - where Linux keeps it; other systems have no such workers
_NAME = re.compile(r"paddle_(\d{1,9})_[0-9_]+")
_BLOCK = 512  # bytes, whatever the file system's own


def free_segments(folder: Path = _FOLDER) -> int:
    """Remove the segments of dead processes of this user. Gives the bytes freed.

    A living process is never robbed: names are listed before anyone is asked for life, so a name belongs to the
    process seen dead after it, not to a later one with the same pid, whose names end in other numbers. A pid that is
    taken again keeps the old segments until it is free. Whoever has a segment mapped keeps its memory.
    """
    freed = 0
    for path in list(folder.glob("paddle_*")):
        match = _NAME.fullmatch(path.name)
        with suppress(FileNotFoundError):  # read and removed in the meantime
            about = path.lstat()
            ours = stat.S_ISREG(about.st_mode) and about.st_uid == os.getuid()
            if match and ours and not _alive(int(match[1])):
                path.unlink()
                freed += about.st_blocks * _BLOCK
    return freed


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _zombie(pid)


def _zombie(pid: int) -> bool:
    """Has it ended, and nobody asked for its exit status? Containers often lack the init process that would."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return told.rpartition(")")[2].split()[0] == "Z"


# Paddle's queue loses what it was not made for. An exception kills the reading thread, and the training waits for ever
# or gets a `SystemError`; a batch without an array ends the epoch; the memory of a `Tensor` may be used again before it
# was sent. So a batch leaves with arrays for tensors and, where there is none to send or something went wrong, inside a
# `BatchPayload`. (All three observed with Paddle 3.3.1.)


class LoadingError(Exception):
    """The traceback of an error in a loader's worker, as text."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class Failed:
    """What stands for a sample or batch that could not be loaded."""

    def __init__(self, error: Exception) -> None:
        self.trace = traceback.format_exc()
        self.error = error if travels(error) else RuntimeError(f"{type(error).__qualname__}: {error}")


class BatchPayload:
    """A value that travels beside the arrays of a batch."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Guarded:
    """A data set whose errors are values."""

    def __init__(self, payload: WorkerPayload, inside: Any) -> None:
        self._payload = payload
        self._inside = inside

    def __getitem__(self, index: Any) -> Any:
        if self._payload.failure is not None:
            return Failed(self._payload.failure)
        try:
            return self._inside[index]
        except Exception as error:  # noqa: BLE001 - it is raised where the training is
            return Failed(error)

    def __iter__(self) -> Iterator[Any]:
        try:
            if self._payload.failure is not None:
                raise self._payload.failure
            yield from self._inside
        except Exception as error:  # noqa: BLE001 - as above
            while True:  # so that even a batch of full size only holds it
                yield Failed(error)

    def __len__(self) -> int:
        return len(self._inside)

    def __getattr__(self, name: str) -> Any:
        # For subclasses of DataLoader that look into their data set. Python's own questions are about this object.
        if name.startswith("__") or name in ("_inside", "_payload"):
            raise AttributeError(name)
        return getattr(self._inside, name)


class Posted:
    """A collate function that gives batches ready to leave this process."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, items: Any) -> Any:
        failed = _failed(items)
        if failed is not None:
            return _payload_of(failed)
        try:
            return self._ready(self._collate(items))
        except Exception as error:  # noqa: BLE001 - it is raised where the training is
            return _payload_of(Failed(error))

    def _ready(self, value: Any) -> Any:
        arrays = 0

        def leaf(array: Any) -> Any:
            nonlocal arrays
            arrays += 1
            copy = array if isinstance(array, np.ndarray) else as_array(array)
            return array if copy is None else copy

        ready = restructured(value, leaf)
        return ready if arrays else _payload_of(ready)


def opened(value: Any) -> Any:
    """The batch that was posted.

    Raises:
        Exception: the user's own, where loading the batch failed.
    """
    if type(value) is not list or not value or type(value[0]) is not BatchPayload:
        return value
    inside = value[0].value
    if isinstance(inside, Failed):
        raise inside.error from LoadingError(inside.trace)
    return inside


def restructured(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """A batch in the shape that Paddle's loaders give: lists and dicts, with `leaf` of each array and tensor."""
    if isinstance(value, (np.ndarray, paddle.Tensor)):
        return leaf(value)
    if isinstance(value, (str, bytes, numbers.Number)):
        return value
    if isinstance(value, Mapping):
        return {key: restructured(member, leaf) for key, member in value.items()}
    if isinstance(value, Sequence):
        return [restructured(member, leaf) for member in value]
    return value


def _failed(items: Any) -> Failed | None:
    if isinstance(items, Failed):
        return items
    return next((item for item in items if isinstance(item, Failed)), None) if isinstance(items, list) else None


def _payload_of(value: Any) -> list[Any]:
    return [BatchPayload(value), np.zeros(1, dtype=np.uint8)]


# With `num_workers=0` Paddle loads in a second thread, ahead of the loop. Whatever a sample draws there would be drawn
# from the streams that the loop uses at the same moment, in an order that nobody can repeat: it is loaded here instead.


_GRACE = 1.0  # seconds for a worker to end by itself: an idle one needs a few milliseconds


class Reader(DataLoader):  # type: ignore[misc]
    """A DataLoader that is read as this page says. Made as a copy only, never by its constructor."""

    deliveries: list[Delivery]
    """What is being read from workers."""

    def __iter__(self) -> Iterator[Any]:
        if self.num_workers == 0:
            return _read_here(self)
        if self._iterator is not None and not all(worker.is_alive() for worker in self._iterator._workers):
            stop_reading(self)  # else Paddle would wait for the dead one
        with _uncollected():
            delivery = Delivery(super().__iter__())
        self.deliveries[:] = [other for other in self.deliveries if not other.finished] + [delivery]
        return delivery


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage is collected inside, nor in workers forked inside before they say so.

    An earlier reader in the garbage waits, when it is collected, for its threads; a forked worker has none of them
    and would wait for ever.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Delivery:
    """What Paddle's workers loaded, in order. `finished` once all was read."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator
        self.finished = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            value = next(self._iterator)
        except StopIteration:
            self.finished = True
            raise
        return opened(value)

    def close(self) -> None:
        """End the workers, promptly. Calling twice is harmless."""
        _stop(self._iterator)


def reader_kind(kind: type[Any]) -> type[Any]:
    """The same kind of DataLoader as a `Reader`: what it adds of its own stays on top."""
    return Reader if kind is DataLoader else types.new_class(kind.__name__, (kind, Reader))


def stop_reading(reader: Any) -> None:
    """End all that `reader` started."""
    for delivery in reader.deliveries:
        delivery.close()
    reader.deliveries.clear()
    reader._iterator = None


def collate_of(loader: Any) -> Any:
    """The function that makes a batch of samples, or converts a single item."""
    return loader.collate_fn or (default_collate_fn if loader.auto_collate_batch else default_convert_fn)


def _read_here(loader: Any) -> Iterator[Any]:
    place = loader.places[0]

    def leaf(array: Any) -> Any:
        if isinstance(array, np.ndarray) or array.place != place:
            return paddle.to_tensor(array, place=place)
        return array.detach()

    of_stream = isinstance(loader.dataset, IterableDataset)
    for value in each_on_cpu(_stream(loader) if of_stream else _items(loader)):
        yield restructured(value, leaf)


def _items(loader: Any) -> Iterator[Any]:
    dataset, collate = loader.dataset, collate_of(loader)
    if loader.auto_collate_batch:
        return (collate([dataset[one] for one in index]) for index in loader.batch_sampler)
    return (collate(dataset[index]) for index in range(len(dataset)))


def _stream(loader: Any) -> Iterator[Any]:
    samples, collate = iter(loader.dataset), collate_of(loader)
    if not loader.auto_collate_batch:
        yield from map(collate, samples)
        return
    size = loader.batch_sampler.batch_size
    while batch := list(islice(samples, size)):
        if loader.drop_last and len(batch) < size:
            return
        yield collate(batch)


def _stop(iterator: Any) -> None:
    """End a Paddle iterator. Left to itself it waits for a worker as long as its sample takes, and a worker that ends
    in the middle of a message leaves it waiting for the rest."""
    if not iterator._shutdown:
        _shut_down(iterator)
    if iterator._thread is None or not iterator._thread.is_alive():
        iterator._reader = iterator._blocking_queue = None  # their threads end now, not when garbage is collected


def _shut_down(iterator: Any) -> None:
    iterator._exit_thread_expectedly()
    core._erase_process_pids(id(iterator))  # Paddle raises in the trainer when one of these is killed
    iterator._workers_done_event.set()
    for number in range(len(iterator._workers)):
        iterator._shutdown_worker(number, shutdown=True)
    _end(iterator._workers)
    _let_go(iterator)
    free_segments()
    iterator._try_shutdown_all()


def _end(workers: list[Any]) -> None:
    deadline = time.monotonic() + _GRACE
    for worker in workers:
        worker.join(max(0.0, deadline - time.monotonic()))
    for worker in workers:
        if worker.is_alive():
            worker.kill()
            worker.join()


def _let_go(iterator: Any) -> None:
    queue, iterator._data_queue = iterator._data_queue, None  # so that Paddle does not read what is left in it
    queue._writer.close()  # the thread that reads it must not wait for a message cut off in the middle
    queue.cancel_join_thread()
    iterator._thread.join(_GRACE)
    queue.close()
