"""Paddle's random streams, beside Python's and NumPy's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import paddle
from paddle.framework import core
from paddle.io import get_worker_info

from colabkeep.frameworks.common.looks import Asked, Look
from colabkeep.frameworks.common.streams import NEUTRAL, Kinds, Stream

__all__ = ["PADDLE", "each_on_cpu", "on_cpu"]

_END = object()


class GeneratorStream:
    """A Paddle generator. take 0.4, put 0.3, seed 4 µs."""

    told = True  # generator.initial_seed()

    def __init__(self, generator: Any) -> None:
        self.take: Callable[[], Any] = generator.get_state
        self.put: Callable[[Any], Any] = generator.set_state
        self.seed: Callable[[int], Any] = generator.manual_seed

    def look(self) -> Look:
        return Asked(self.take, self.put)


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
    return [GeneratorStream(core.default_cpu_generator()), *NEUTRAL.shared(), *_of_device()]


def _of_device() -> Iterator[Stream]:
    kind, _, number = paddle.get_device().partition(":")
    if kind in ("gpu", "xpu") and get_worker_info() is None:  # a forked worker cannot touch a device
        which = "cuda" if kind == "gpu" else kind
        yield GeneratorStream(getattr(core, f"default_{which}_generator")(int(number)))


def _recognise(obj: object) -> Stream | None:
    if isinstance(obj, core.Generator):
        return None if obj is core.default_cpu_generator() else GeneratorStream(obj)
    return NEUTRAL.recognise(obj)


PADDLE = Kinds(_shared, _recognise)
"""Paddle's generators of the CPU and of the device in use, Python's and NumPy's streams, and generator objects."""
