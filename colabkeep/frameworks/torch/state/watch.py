"""Seeing cheaply that nothing was replaced since the last capture, so that its plan still holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from operator import attrgetter, eq, is_, methodcaller
from typing import Any, ClassVar

import torch

__all__ = ["Bulk", "Watch"]

_VALUES = methodcaller("values")


class Watch:
    """The keys and values of some dicts, compared by identity: about 50 ns for each."""

    def __init__(self, dicts: Iterable[Mapping[Any, Any]]) -> None:
        self._all = list(dicts)
        self._filled = [each for each in self._all if each]  # of the many that are empty, the length says all
        self._keys = list(chain.from_iterable(self._filled))
        self._values = list(chain.from_iterable(map(_VALUES, self._filled)))

    def unchanged(self) -> bool:
        """Are the same objects under the same keys?"""
        return (
            sum(map(len, self._all)) == len(self._keys)
            and all(map(is_, chain.from_iterable(self._filled), self._keys))
            and all(map(is_, chain.from_iterable(map(_VALUES, self._filled)), self._values))
        )


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
