"""Reading a DataLoader: in this very thread where samples draw random numbers, else by Paddle's workers or thread.

With `num_workers=0` Paddle loads in a second thread, ahead of the loop. Whatever a sample draws there would be
drawn from the streams that the loop uses at the same moment, in an order that nobody can repeat.
"""

from __future__ import annotations

import gc
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import paddle
from paddle.framework import core
from paddle.io import DataLoader, IterableDataset
from paddle.io.dataloader.collate import default_collate_fn, default_convert_fn

from colabkeep.frameworks.paddle.data.parcels import opened, restructured
from colabkeep.frameworks.paddle.data.segments import free_segments
from colabkeep.frameworks.paddle.data.streams import each_on_cpu

__all__ = ["DEFAULT_COLLATES", "Reader", "collate_of", "reader_kind", "stop_reading"]

DEFAULT_COLLATES = (None, default_collate_fn, default_convert_fn)
_GRACE = 1.0  # seconds for a worker to end by itself: an idle one needs a few milliseconds


class Reader(DataLoader):  # type: ignore[misc]
    """A DataLoader that is read as this page says. Made as a copy only, never by its constructor."""

    threaded: bool
    """Without workers: Paddle's own thread may load, since nothing is drawn."""

    deliveries: list[Delivery]
    """What is being read from workers and threads."""

    def __iter__(self) -> Iterator[Any]:
        if self.num_workers == 0 and not self.threaded:
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
    """What Paddle's workers or thread loaded, in order. `finished` once all was read."""

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
        """End the workers or the thread, promptly. Calling twice is harmless."""
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
    """End a Paddle iterator. Left to itself it waits for a worker as long as its sample takes, or a second for its
    thread; and a worker that ends in the middle of a message leaves it waiting for the rest."""
    if not iterator._shutdown:
        _shut_down(iterator)
    if iterator._thread is None or not iterator._thread.is_alive():
        iterator._reader = iterator._blocking_queue = None  # their threads end now, not when garbage is collected


def _shut_down(iterator: Any) -> None:
    iterator._exit_thread_expectedly()
    workers = getattr(iterator, "_workers", [])
    if workers:
        core._erase_process_pids(id(iterator))  # Paddle raises in the trainer when one of these is killed
        iterator._workers_done_event.set()
        for number in range(len(workers)):
            iterator._shutdown_worker(number, shutdown=True)
        _end(workers)
        _let_go(iterator)
        free_segments()
    elif iterator._thread is not None:
        iterator._thread.join(_GRACE)
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
