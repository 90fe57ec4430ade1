"""Many tensors that are copied together, and seeing cheaply that they still fit where they are copied to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter, eq
from typing import Any, ClassVar

import torch

__all__ = ["Bulk"]


class Bulk:
    """Tensors that are copied together, each to a target of its own."""

    # An object may stay the same and its tensor change: x.data = …, module.to(…), unfreezing. One pass for each fact
    # is cheaper than one tuple for each tensor. Other strides alone do no harm: the copy goes by index.
    _FACTS: ClassVar[tuple[Callable[[Any], Any], ...]] = tuple(
        map(attrgetter, ("shape", "dtype", "is_cuda", "requires_grad"))
    )

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tensors
        self._facts = [list(map(fact, tensors)) for fact in self._FACTS]

    def unchanged(self) -> bool:
        """Do the targets still fit?"""
        # Compared one by one: lists of new shapes would be work for the garbage collector.
        return all(
            all(map(eq, map(fact, self._tensors), known)) for fact, known in zip(self._FACTS, self._facts, strict=True)
        )
