"""The Paddle adapter: finds out what each part is, and hands it to the page that knows. Losses on a device are read
many at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

import paddle
from paddle import nn
from paddle.amp import AmpScaler
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from colabkeep.core.errors import MemoryFull
from colabkeep.core.settings import Item
from colabkeep.core.state import Capture, SoloWorld, Stateful, Tree, World
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
    Unseen,
)
from colabkeep.frameworks.paddle.boundary import PaddleBoundary, remember
from colabkeep.frameworks.paddle.facts import exactness, fingerprint
from colabkeep.frameworks.paddle.layers import Places
from colabkeep.frameworks.paddle.leaves import native
from colabkeep.frameworks.paddle.optimizers import Recorders, group_parameters, restore_helper
from colabkeep.frameworks.paddle.restore import (
    layer_differences,
    optimizer_differences,
    restore_layer,
    restore_optimizer,
)
from colabkeep.frameworks.paddle.rng import streams, tells_position
from colabkeep.frameworks.paddle.settings import describe, setup
from colabkeep.frameworks.paddle.staging import Copies, Slot
from colabkeep.frameworks.shared.describe import described
from colabkeep.frameworks.shared.host_memory import Captures, first_touch
from colabkeep.frameworks.shared.modules import NothingUnseen, ParameterNames, scheduler_differences, untrained
from colabkeep.frameworks.shared.rng import opaque_parts, updated_by_hand
from colabkeep.frameworks.shared.training import at_hand, stored_steps
from colabkeep.frameworks.shared.trees import missing_parts, object_differences, shortened

__all__ = [
    "PaddleFramework",
    "PaddleLosses",
]

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


_KINDS = (nn.Layer, Optimizer, LRScheduler, AmpScaler, paddle.Tensor)


class PaddleFramework:
    """PaddlePaddle, 2.6 or newer.

    `reseed`: treat the CPU generator as one that does not tell its position, as before Paddle 3 (see
    `colabkeep.frameworks.paddle.rng.SeedStream`). None: find out.
    """

    name = "paddle"

    def __init__(self, *, reseed: bool | None = None) -> None:
        self._reseeds = not tells_position() if reseed is None else reseed
        self._captures = Captures()
        self._recorders = Recorders()
        self._rng = streams(reseed=self._reseeds)

    def owns(self, obj: object) -> bool:
        return isinstance(obj, _KINDS)

    def capture(self, parts: Mapping[str, object]) -> Capture:
        with self._captures.begin() as begun:
            copies = Copies()
            try:
                begun.trees.update(self._recorders.record(parts, copies))
                copies.run()
            except MemoryError as error:  # Paddle's of a device are of this kind too
                raise _no_room(error) from error
            self._recorders.recall.needed = False
            begun.rest, begun.keep = copies.finish, copies.stored
        return begun

    def rehearse(self, parts: Mapping[str, object]) -> Capture:
        with self._captures.begin() as begun:
            begun.trees.update(self._recorders.record(parts, Copies()))
        return begun

    def check(self, parts: Mapping[str, object], trees: Mapping[str, Tree]) -> Sequence[str]:
        lines = missing_parts(list(parts), list(trees))
        names = _names(parts)
        for name, target in parts.items():
            if name in trees:
                lines += _differences(name, target, trees[name], names)
        return shortened(lines)

    def untrained(self, parts: Mapping[str, object]) -> str:
        models = {name: list(part.named_parameters()) for name, part in parts.items() if isinstance(part, nn.Layer)}
        held = [
            each
            for part in parts.values()
            if isinstance(part, Optimizer)
            for group in group_parameters(part)
            for each in group
        ]
        return untrained(models, held, [name for name, each in models.get("model", ()) if not each.stop_gradient])

    def restore(self, parts: Mapping[str, object], trees: Mapping[str, Tree]) -> None:
        names = _names(parts)
        for name, tree in trees.items():
            target = parts[name]
            if isinstance(target, nn.Layer):
                restore_layer(name, target, tree)
            elif isinstance(target, Optimizer):
                restore_optimizer(target, tree, names)
            else:
                restore_helper(target, tree)

    def native(self, tree: Tree) -> Any:
        return native(tree)

    def rng(self) -> Stateful:
        return self._rng

    def boundary(self, parts: Mapping[str, object]) -> Boundary:
        optimizers = [part for part in parts.values() if isinstance(part, Optimizer)]
        opaque = [*opaque_parts(parts, *_KINDS), *updated_by_hand(parts, nn.Layer, Optimizer, _trains)]
        self._touch(parts)
        return PaddleBoundary(
            self._rng.streams, _layers(parts), optimizers, _schedulers(parts), lambda: self._touch(parts), opaque
        )

    def _touch(self, parts: Mapping[str, object]) -> None:
        """Get the pages of the memory that saves will be copied to. No save waits for them then."""
        if self._captures.lent:  # the save that uses it has them
            return
        with suppress(MemoryError):  # the save that cannot do without will say so
            fresh = [each for each in self._recorders.prepare(parts) if _is_cold(each)]
            first_touch((slot.address, slot.memory.nbytes) for slot in fresh)
            for slot in fresh:
                slot.touched = True

    def settings(self, parts: Mapping[str, object]) -> PartsSettings:
        return setup(parts)

    def described(self, value: object) -> Mapping[str, Item]:
        return described(value, describe)

    def remember(self, parts: Mapping[str, object]) -> Remembered:
        return remember(parts, _schedulers(parts))

    def data(self) -> Data:
        from colabkeep.frameworks.paddle.data import PaddleData

        return PaddleData()

    def training(self, options: TrainingOptions) -> Training:
        from colabkeep.frameworks.paddle.training import PaddleTraining

        return PaddleTraining(options)

    def mean(self, value: object) -> MeanLike:
        from colabkeep.frameworks.paddle.training import RunningMean

        return RunningMean(value.place if isinstance(value, paddle.Tensor) else paddle.CPUPlace())

    def fingerprint(self, parts: Mapping[str, object]) -> Mapping[str, str]:
        return fingerprint(_tensors(parts))

    def exactness(self, parts: Mapping[str, object]) -> Exactness:
        return exactness(_tensors(parts), reseeds=self._reseeds)

    def losses(self) -> Losses:
        return PaddleLosses()

    def unseen(self, parts: Mapping[str, object]) -> Unseen:
        return NothingUnseen()

    def world(self) -> World:
        return SoloWorld()

    def processes(self) -> int:
        return int(paddle.distributed.ParallelEnv().nranks)


def _trains(parameter: Any) -> bool:
    return not parameter.stop_gradient


def _no_room(error: MemoryError) -> MemoryFull:
    said = (str(error).strip().splitlines() or ["no memory"])[-1]
    return MemoryFull(
        problem=f"The state could not be copied, because memory ran out ({said}). The training goes on.",
        remedy="Make room: a smaller batch, fewer loader workers, or a machine with more memory.",
    )


def _is_cold(slot: Slot) -> bool:
    return not slot.touched and slot.landing is None and slot.proof is None


def _layers(parts: Mapping[str, object]) -> list[nn.Layer]:
    return [part for part in parts.values() if isinstance(part, nn.Layer)]


def _schedulers(parts: Mapping[str, object]) -> list[LRScheduler]:
    """Those handed over, and those attached to optimizers; each once."""
    attached = [part._learning_rate for part in parts.values() if isinstance(part, Optimizer)]
    found = [each for each in (*parts.values(), *attached) if isinstance(each, LRScheduler)]
    return list({id(each): each for each in found}.values())


def _tensors(parts: Mapping[str, object]) -> Iterable[Any]:
    return chain.from_iterable(chain(layer.parameters(), layer.buffers()) for layer in _layers(parts))


def _names(parts: Mapping[str, object]) -> ParameterNames:
    return ParameterNames(
        (name, Places(part).parameters()) for name, part in parts.items() if isinstance(part, nn.Layer)
    )


def _differences(name: str, target: object, tree: Tree, names: ParameterNames) -> Iterable[str]:
    if isinstance(target, nn.Layer):
        return layer_differences(name, target, tree)
    if isinstance(target, Optimizer):
        return optimizer_differences(name, target, tree, names)
    if isinstance(target, LRScheduler):
        return scheduler_differences(name, target, tree)
    return object_differences(name, target, tree)
