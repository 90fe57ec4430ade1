"""Many tensors, and seeing cheaply that they still fit where they are copied to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter, methodcaller
from typing import Any, ClassVar

from colabkeep.frameworks.paddle.state.memory import on_cpu

__all__ = ["Bulk"]


class Bulk:
    """Tensors that are watched."""

    # An object may stay the same and its tensor change: x.data = …, layer.to(…), unfreezing.
    _FACTS: ClassVar[tuple[Callable[[Any], Any], ...]] = (
        *map(attrgetter, ("shape", "dtype", "stop_gradient")),
        methodcaller("is_contiguous"),  # copied by address
        on_cpu,
    )

    def __init__(self, tensors: Sequence[Any]) -> None:
        self._tensors = tensors
        self._facts = [list(map(fact, tensors)) for fact in self._FACTS]

    def unchanged(self) -> bool:
        """Does what was found out about them still hold?"""
        # Whole lists compare by identity first; asking a dtype of Paddle whether it equals another takes 0.4 µs.
        return all(
            list(map(fact, self._tensors)) == known for fact, known in zip(self._FACTS, self._facts, strict=True)
        )
