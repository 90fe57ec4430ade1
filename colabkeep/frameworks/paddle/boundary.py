"""Paddle's step boundary, and what code that is run again may do to Paddle's objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, wraps
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import paddle
from paddle import nn
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from colabkeep.frameworks.base import Remembered
from colabkeep.frameworks.paddle.capture import (
    PaddleKit,
    TensorPlaces,
    group_parameters,
    is_statistic,
    owners,
    scheduler_state,
)
from colabkeep.frameworks.paddle.restore import restore_scheduler
from colabkeep.frameworks.paddle.settings import Options, attributes, samples_of
from colabkeep.frameworks.shared import boundary
from colabkeep.frameworks.shared.boundary import (
    StepBoundary,
    combined,
    remember_modules,
    remember_objects,
)
from colabkeep.frameworks.shared.rng import Stream

_COUNT = attrgetter("last_epoch")


class PaddleBoundary(StepBoundary):
    """See `StepBoundary`."""

    def __init__(
        self,
        streams: Sequence[Stream],
        parts: Mapping[str, object],
        schedulers: Sequence[LRScheduler],
        first: Callable[[], None],
        opaque: Sequence[str] = (),
    ) -> None:
        layers = [part for part in parts.values() if isinstance(part, nn.Layer)]
        optimizers = [part for part in parts.values() if isinstance(part, Optimizer)]
        inside = [each for layer in layers for _, each in TensorPlaces(layer).modules]
        super().__init__(
            streams, inside, Buffers(inside), Options(optimizers), lambda: list(map(_COUNT, schedulers)), first
        )
        self.opaque = opaque
        self._taps = [_Tap(optimizer, name, self.begins) for optimizer in optimizers for name in ("step", "minimize")]

    @property
    def updates(self) -> int:
        return max((tap.calls for tap in self._taps), default=0)

    def close(self) -> None:
        """Take away what listens."""
        for tap in self._taps:
            tap.remove()
        self._taps = []


class _Tap:
    """Hears when a method of one object is called. Paddle's optimizers have no hooks for that.

    It stands in the object's own `__dict__`, before the method of its class, and leaves no trace there when removed.
    """

    def __init__(self, target: Any, name: str, heard: Callable[[], None]) -> None:
        self._target, self._name, self._heard = target, name, heard
        self.calls = 0
        self._before = vars(target).get(name)
        method = getattr(target, name)

        @wraps(method)
        def tapped(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            self._heard()
            return method(*args, **kwargs)

        self._tapped = tapped
        vars(target)[name] = tapped

    def remove(self) -> None:
        """Take it away; one that somebody else has wrapped since stays there, and is deaf."""
        self._heard = lambda: None
        if vars(self._target).get(self._name) is not self._tapped:
            return
        if self._before is None:
            del vars(self._target)[self._name]
        else:
            vars(self._target)[self._name] = self._before


class Buffers(boundary.Buffers):
    """Copies of buffers, and of parameters that a forward pass changes."""

    def __init__(self, layers: Iterable[nn.Layer]) -> None:
        super().__init__(PaddleKit(), owners(layers))

    def has_data(self, tensor: Any) -> bool:
        return tensor is not None and bool(tensor._is_initialized())

    def is_watched(self, tensor: Any) -> bool:
        return tensor is not None  # one may be filled later

    def keep(self) -> None:
        self.kept = [tensor._copy_to(tensor.place, True) for tensor in self.live]

    def copy(self) -> None:
        for kept, live in zip(self.kept, self.live, strict=True):
            kept.copy_(live, False)

    def put_back(self, tensor: Any, kept: Any) -> None:
        if tensor.shape == kept.shape and tensor.dtype == kept.dtype:
            tensor.copy_(kept, True)
        else:  # resized meanwhile
            tensor.data = kept.clone()


def remember(parts: Mapping[str, object], schedulers: list[LRScheduler]) -> Remembered:
    """Take the small state of the parts; `schedulers` are also those that are attached to optimizers."""
    layers = {name: part for name, part in parts.items() if isinstance(part, nn.Layer)}
    optimizers = [part for part in parts.values() if isinstance(part, Optimizer)]
    known = (nn.Layer, Optimizer, LRScheduler)
    others = {name: part for name, part in parts.items() if not isinstance(part, known)}
    schedules = {  # with the state that they really have
        f"schedule {i}": SimpleNamespace(
            state_dict=partial(scheduler_state, each), load_state_dict=partial(restore_scheduler, each)
        )
        for i, each in enumerate(schedulers)
    }
    places = {name: TensorPlaces(each) for name, each in layers.items()}
    inside = [each for found in places.values() for _, each in found.modules]
    named = ((f"{part}.{name}", p) for part, found in places.items() for name, p in found.parameters())
    parameters = {name: parameter for name, parameter in named if not is_statistic(parameter)}
    buffers, options = Buffers(inside), Options(optimizers)
    graded = [p for each in optimizers for group in group_parameters(each) for p in group if p.grad is not None]

    def put_back() -> None:
        buffers.rewind()
        options.put_back()
        for parameter in graded:
            if parameter.grad is None:
                parameter.grad = paddle.zeros_like(parameter)

    attributes_of = {name: attributes(each) for name, each in layers.items()}
    return combined(
        [
            Remembered(put_back),
            remember_objects({**others, **schedules}),
            remember_modules(attributes_of, parameters, samples_of),
        ]
    )
