"""Going back to the last step boundary, and undoing what the top of an epoch may do to Paddle's objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any

import paddle
from paddle import nn
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from colabkeep.frameworks.paddle.layers import Bulk, Places, is_statistic, owners
from colabkeep.frameworks.paddle.optimizers import group_parameters, restore_scheduler, scheduler_state
from colabkeep.frameworks.paddle.settings import Options, attributes, samples
from colabkeep.frameworks.shared.modules import Memory, Watch, combined, remember_modules, remember_objects
from colabkeep.frameworks.shared.rng import Modes, Stream, StreamMarks

__all__ = [
    "Buffers",
    "PaddleBoundary",
    "remember",
]


class PaddleBoundary:
    """Marks streams and buffers; hears from optimizers when they begin to change parameters, and sees when a
    scheduler has moved on: a loop that is left between a scheduler's step and its own end would step it twice.

    `first` is called once, at the mark behind the first step that was heard.
    """

    def __init__(
        self,
        streams: Sequence[Stream],
        layers: Iterable[nn.Layer],
        optimizers: Iterable[Any],
        schedulers: Iterable[Any],
        first: Callable[[], None],
        opaque: Sequence[str] = (),
    ) -> None:
        self.opaque, self.gradients = opaque, None
        self._streams = StreamMarks(streams)
        self._layers, self._optimizers = list(layers), list(optimizers)
        self._buffers = Buffers(self._layers)
        self._modes = Modes(each for layer in self._layers for _, each in Places(layer).modules)
        self._options = Options(self._optimizers)
        self._schedulers = list(schedulers)
        self._counts: list[int] = []
        self._torn = False
        self._first: Callable[[], None] | None = first
        self._taps = [
            _Tap(optimizer, name, self._begins) for optimizer in self._optimizers for name in ("step", "minimize")
        ]

    def mark(self) -> None:
        self._streams.mark()
        if self._buffers.owners:
            self._buffers.mark()
        if self._schedulers:
            self._counts = [scheduler.last_epoch for scheduler in self._schedulers]
        self._modes.mark()
        self._options = Options(self._optimizers)
        self._torn = False
        if self._first is not None and self.updates:
            first, self._first = self._first, None
            first()

    @property
    def updates(self) -> int:
        return max((tap.calls for tap in self._taps), default=0)

    @property
    def torn(self) -> bool:
        return self._torn or self._counts != [scheduler.last_epoch for scheduler in self._schedulers]

    def rewind(self) -> None:
        self._streams.rewind()
        self._buffers.rewind()
        self._modes.rewind()
        self._options.put_back()

    def close(self) -> None:
        for tap in self._taps:
            tap.remove()
        self._taps = []

    def _begins(self) -> None:
        self._torn = True


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
        self._heard = _nobody
        if vars(self._target).get(self._name) is not self._tapped:
            return
        if self._before is None:
            del vars(self._target)[self._name]
        else:
            vars(self._target)[self._name] = self._before


def _nobody() -> None:
    """Nobody listens."""


class Buffers:
    """Copies, on their own devices, of all that a forward pass in training mode may change."""

    def __init__(self, layers: Iterable[nn.Layer]) -> None:
        self.owners = owners(layers)
        self._plan()

    def mark(self) -> None:
        if not self._watch.unchanged() or not self._bulk.unchanged():
            self._plan()
        else:
            for kept, live in self._pairs:
                kept.copy_(live, False)

    def rewind(self) -> None:
        kept = {id(live): copy for copy, live in self._pairs}
        for owner, key, was in self._places:
            if id(was) in kept:
                _put_back(was, kept[id(was)])
            owner[key] = was

    def _plan(self) -> None:
        self._watch = Watch([owner for owner, _ in self.owners])
        held = [(owner, key, value) for owner, _ in self.owners for key, value in owner.items()]
        self._bulk = Bulk([value for _, _, value in held if value is not None])  # freezing one changes what to keep
        self._places = [
            (owner, key, value) for owner, changes in self.owners for key, value in owner.items() if changes(value)
        ]
        live = {id(tensor): tensor for _, _, tensor in self._places if tensor is not None and tensor._is_initialized()}
        self._pairs = [(tensor._copy_to(tensor.place, True), tensor) for tensor in live.values()]


def _put_back(tensor: Any, kept: Any) -> None:
    if tensor.shape == kept.shape and tensor.dtype == kept.dtype:
        tensor.copy_(kept, True)
    else:  # resized meanwhile
        tensor.data = kept.clone()


class _Schedule:
    """A scheduler with the state that it really has."""

    def __init__(self, scheduler: LRScheduler) -> None:
        self.state_dict = lambda: scheduler_state(scheduler)
        self.load_state_dict = lambda state: restore_scheduler(scheduler, state)


def remember(parts: Mapping[str, object], schedulers: list[LRScheduler]) -> Memory:
    """Take the small state of the parts; `schedulers` are also those that are attached to optimizers."""
    layers = {name: part for name, part in parts.items() if isinstance(part, nn.Layer)}
    optimizers = [part for part in parts.values() if isinstance(part, Optimizer)]
    known = (nn.Layer, Optimizer, LRScheduler)
    others = {name: part for name, part in parts.items() if not isinstance(part, known)}
    schedules = {f"schedule {i}": _Schedule(each) for i, each in enumerate(schedulers)}
    named = ((f"{part}.{name}", p) for part, each in layers.items() for name, p in Places(each).parameters())
    parameters = {name: parameter for name, parameter in named if not is_statistic(parameter)}
    buffers, options = Buffers(layers.values()), Options(optimizers)
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
            Memory(put_back),
            remember_objects({**others, **schedules}),
            remember_modules(attributes_of, parameters, samples),
        ]
    )
