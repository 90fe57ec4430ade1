"""The Paddle adapter. Losses on a device are read many at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from typing import Any

import paddle
from paddle import nn
from paddle.amp import AmpScaler
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from colabkeep.core.errors import MemoryFull
from colabkeep.core.state import Tree
from colabkeep.frameworks.base import (
    Boundary,
    Data,
    Exactness,
    Losses,
    MeanLike,
    PartsSettings,
    Remembered,
    Training,
    TrainingOptions,
)
from colabkeep.frameworks.paddle.boundary import PaddleBoundary, remember
from colabkeep.frameworks.paddle.capture import PaddleKit, group_parameters
from colabkeep.frameworks.paddle.facts import exactness, fingerprint
from colabkeep.frameworks.paddle.restore import (
    layer_differences,
    native,
    optimizer_differences,
    restore_helper,
    restore_layer,
    restore_optimizer,
)
from colabkeep.frameworks.paddle.rng import streams, tells_position
from colabkeep.frameworks.paddle.settings import PaddleSetup, describe
from colabkeep.frameworks.shared.adapter import Adapter
from colabkeep.frameworks.shared.capture import ParameterNames
from colabkeep.frameworks.shared.restore import scheduler_differences
from colabkeep.frameworks.shared.training import at_hand, stored_steps

_MANY = 64  # losses of a device that are read in one go


class PaddleLosses:
    """Reads the losses of one run.

    Those on a device are read 64 at a time, and after a save, for which Paddle's device has been waited for anyway.
    Reviewed by reading; never run on a card.
    """

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._values: list[Any] = []
        self._known = 0  # of them: a save has waited for these

    def take(self, step: int, loss: Any) -> float | None:
        if not isinstance(loss, paddle.Tensor):
            return at_hand(loss)
        if loss.place.is_cpu_place():
            return at_hand(loss)
        if loss.size == 1 and not loss.is_complex():
            # A copy on the device: a captured graph writes each loss into the same memory.
            kind = "float64" if loss.place.is_gpu_place() else "float32"  # other accelerators need not have float64
            try:
                value = loss.detach().clone().reshape([]).astype(kind)
            except MemoryError:  # the device is full; training is not to end for it, and waits this once
                return at_hand(loss)
            self._steps.append(step)
            self._values.append(value)
        return None

    def arrived(self) -> Sequence[tuple[int, float]]:
        return self.settle() if self._known or len(self._steps) >= _MANY else ()

    def settle(self) -> Sequence[tuple[int, float]]:
        if not self._steps:
            return ()
        try:
            numbers = paddle.stack(self._values).tolist()
        except MemoryError:  # the device is full: one by one
            numbers = [value.item() for value in self._values]
        found = list(zip(self._steps, map(float, numbers), strict=True))
        self._steps, self._values, self._known = [], [], 0
        return found

    def state_dict(self) -> Mapping[str, Any]:
        if not self._steps:
            return {}
        self._known = len(self._steps)
        return {"steps": stored_steps(self._steps), "values": paddle.stack(self._values)}

    def read(self, tree: Tree) -> Sequence[tuple[int, float]]:
        state = native(tree)
        if not state:
            return ()
        steps = [int(step) for step in state["steps"].tolist()]
        return list(zip(steps, map(float, state["values"].tolist()), strict=True))


class PaddleFramework(Adapter):
    """PaddlePaddle, 2.6 or newer.

    `reseed`: treat the CPU generator as one that does not tell its position, as before Paddle 3 (see
    `colabkeep.frameworks.paddle.rng.SeedStream`). None: find out.
    """

    name = "paddle"
    kinds = (nn.Layer, Optimizer, LRScheduler, AmpScaler, paddle.Tensor)
    describe = staticmethod(describe)

    def __init__(self, *, reseed: bool | None = None) -> None:
        self._reseeds = not tells_position() if reseed is None else reseed
        super().__init__(PaddleKit(), streams(reseed=self._reseeds))

    def copying(self) -> AbstractContextManager[Any]:
        return _told_of_memory()

    def differences(self, name: str, target: Any, tree: Tree, names: ParameterNames) -> Iterable[str]:
        if isinstance(target, nn.Layer):
            return layer_differences(name, target, tree)
        if isinstance(target, Optimizer):
            return optimizer_differences(name, target, tree, names)
        if isinstance(target, LRScheduler):
            return scheduler_differences(name, target, tree)
        return super().differences(name, target, tree, names)

    def trains(self, optimizer: Any) -> Iterable[Any]:
        return chain.from_iterable(group_parameters(optimizer))

    def is_trained(self, parameter: Any) -> bool:
        return not parameter.stop_gradient

    def restore_part(self, name: str, target: Any, tree: Tree, names: ParameterNames) -> None:
        if isinstance(target, nn.Layer):
            restore_layer(name, target, tree)
        elif isinstance(target, Optimizer):
            restore_optimizer(target, tree, names)
        else:
            restore_helper(target, tree)

    def native(self, tree: Tree) -> Any:
        return native(tree)

    def boundary(self, parts: Mapping[str, object]) -> Boundary:
        self.prepare(parts)
        return PaddleBoundary(
            self._streams.streams, parts, _schedulers(parts), lambda: self.prepare(parts), self.opaque(parts)
        )

    def settings(self, parts: Mapping[str, object]) -> PartsSettings:
        return PaddleSetup(parts)

    def remember(self, parts: Mapping[str, object]) -> Remembered:
        return remember(parts, _schedulers(parts))

    def data(self) -> Data:
        from colabkeep.frameworks.paddle.data import PaddleData

        return PaddleData()

    def training(self, options: TrainingOptions) -> Training:
        from colabkeep.frameworks.paddle.training import PaddleTraining

        return PaddleTraining(options)

    def mean(self, value: object) -> MeanLike:
        from colabkeep.frameworks.paddle.training import mean_on

        return mean_on(value.place if isinstance(value, paddle.Tensor) else paddle.CPUPlace())

    def fingerprint(self, parts: Mapping[str, object]) -> Mapping[str, str]:
        return fingerprint(_tensors(parts))

    def exactness(self, parts: Mapping[str, object]) -> Exactness:
        return exactness(_tensors(parts), reseeds=self._reseeds)

    def losses(self) -> Losses:
        return PaddleLosses()

    def learning_rate(self, parts: Mapping[str, object]) -> float | None:
        optimizer = next((part for part in parts.values() if isinstance(part, Optimizer)), None)
        return None if optimizer is None else float(optimizer.get_lr())

    def place(self) -> tuple[int, int]:
        about = paddle.distributed.ParallelEnv()
        return int(about.rank), int(about.nranks)


@contextmanager
def _told_of_memory() -> Iterator[None]:
    """Paddle's errors of a full device are of this kind too."""
    try:
        yield
    except MemoryFull:
        raise
    except MemoryError as error:
        said = (str(error).strip().splitlines() or ["no memory"])[-1]
        raise MemoryFull(
            problem=f"The state could not be copied, because memory ran out ({said}). Training continues.",
            remedy="Make room: a smaller batch, fewer loader workers, or a machine with more memory.",
        ) from error


def _schedulers(parts: Mapping[str, object]) -> list[LRScheduler]:
    """Those handed over, and those attached to optimizers; each once."""
    attached = [part._learning_rate for part in parts.values() if isinstance(part, Optimizer)]
    found = [each for each in (*parts.values(), *attached) if isinstance(each, LRScheduler)]
    return list({id(each): each for each in found}.values())


def _tensors(parts: Mapping[str, object]) -> Iterable[Any]:
    return chain.from_iterable(
        chain(layer.parameters(), layer.buffers())
        for layer in (part for part in parts.values() if isinstance(part, nn.Layer))
    )
