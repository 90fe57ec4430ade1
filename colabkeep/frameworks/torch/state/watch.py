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
    # is cheaper than one tuple for each tensor.
    _MARKS: ClassVar[tuple[Callable[[Any], Any], ...]] = tuple(map(attrgetter, ("dtype", "is_cuda", "requires_grad")))
    _SHAPE = attrgetter("shape")

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tensors
        self._marks = [list(map(mark, tensors)) for mark in self._MARKS]
        strided = [tensor for tensor in tensors if tensor.layout is torch.strided]  # compressed ones have no strides
        self._sizes = [
            (fact, seen, list(map(fact, seen)))
            for fact, seen in ((self._SHAPE, tensors), (torch.Tensor.stride, strided))
        ]

    def unchanged(self) -> bool:
        """Do the targets still fit?"""
        return all(
            list(map(mark, self._tensors)) == known for mark, known in zip(self._MARKS, self._marks, strict=True)
        ) and all(
            # Compared one by one: lists of new shapes would be work for the garbage collector.
            all(map(eq, map(fact, seen), known))
            for fact, seen, known in self._sizes
        )
