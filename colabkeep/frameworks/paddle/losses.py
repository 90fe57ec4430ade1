"""Losses of Paddle: those in host memory are read at once, those on a device many at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import paddle

from colabkeep.frameworks.common.losses import at_hand, stored_steps
from colabkeep.frameworks.paddle.state.leaves import native
from colabkeep.vocabulary.state import Tree

__all__ = ["PaddleLosses"]

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
