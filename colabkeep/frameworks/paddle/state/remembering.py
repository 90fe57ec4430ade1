"""What the top of an epoch may do to Paddle's objects, and undoing it where it had been done before."""

from __future__ import annotations

from collections.abc import Mapping

import paddle
from paddle import nn
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from colabkeep.frameworks.common.remembering import Memory, combined, remember_modules, remember_objects
from colabkeep.frameworks.paddle.state.boundary import Buffers
from colabkeep.frameworks.paddle.state.optimizers import group_parameters
from colabkeep.frameworks.paddle.state.places import Places, is_statistic
from colabkeep.frameworks.paddle.state.schedulers import restore_scheduler, scheduler_state
from colabkeep.frameworks.paddle.state.settings import Options, attributes, samples

__all__ = ["remember"]


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
