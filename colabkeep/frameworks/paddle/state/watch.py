"""Many tensors that are copied together, and seeing cheaply that they still fit where they are copied to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, ClassVar

from colabkeep.frameworks.paddle.state.memory import size_of
from colabkeep.frameworks.paddle.state.staging import Copies

__all__ = ["Bulk"]


class Bulk:
    """Tensors that are copied together, each to its own target; without targets, they are only watched."""

    # An object may stay the same and its tensor change: x.data = …, layer.to(…), unfreezing. Other strides, and
    # another device, do no harm: the copy goes by index, from any device.
    _FACTS: ClassVar[tuple[Callable[[Any], Any], ...]] = tuple(map(attrgetter, ("shape", "dtype", "stop_gradient")))

    def __init__(self, tensors: Sequence[Any], targets: Sequence[Any]) -> None:
        self._tensors = tensors
        self._pairs = [pair for pair in zip(targets, tensors, strict=False) if size_of(pair[1])]  # no copy of nothing
        self._facts = [list(map(fact, tensors)) for fact in self._FACTS]

    def unchanged(self) -> bool:
        """Do the targets still fit?"""
        # Whole lists compare by identity first; asking a dtype of Paddle whether it equals another takes 0.4 µs.
        return all(
            list(map(fact, self._tensors)) == known for fact, known in zip(self._FACTS, self._facts, strict=True)
        )

    def add_to(self, copies: Copies) -> None:
        """Have all of them copied."""
        copies.extend(self._pairs)
