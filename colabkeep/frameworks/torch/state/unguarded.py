"""Parameters that may change before an optimizer's step is heard: by the script's own hand, in a forward pass, or by an
optimizer with more methods than `step`."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

import torch

from colabkeep.frameworks.torch.state.places import Places

__all__ = ["Unguarded", "is_torchs_own"]

_VERSION = attrgetter("_version")


class Unguarded:
    """Those parameters, and whether they were changed since the last mark. 0.14 µs for each at a mark.

    What optimizers of torch's own train changes in a step that is heard, and is left out. Not seen is what writes
    through `.data` in place.
    """

    def __init__(self, modules: Iterable[torch.nn.Module], optimizers: Iterable[torch.optim.Optimizer]) -> None:
        optimizers = list(optimizers)
        heard = {
            id(parameter)
            for optimizer in optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.requires_grad
        }
        if not all(map(is_torchs_own, optimizers)):
            heard = set()
        held = {id(p): p for module in modules for _, p in Places(module).parameters()}
        self.parameters = [p for key, p in held.items() if key not in heard and _tells(p)]
        self._marked: tuple[list[int], list[int]] = [], []

    def mark(self) -> None:
        """The training is between two steps."""
        self._marked = self._look()

    @property
    def changed(self) -> bool:
        """Was one of them changed since?"""
        return self._look() != self._marked

    def _look(self) -> tuple[list[int], list[int]]:
        return list(map(_VERSION, self.parameters)), list(map(torch.Tensor.data_ptr, self.parameters))


def is_torchs_own(optimizer: torch.optim.Optimizer) -> bool:
    """Is it of one of torch's own classes, whose ways are known?"""
    return type(optimizer).__module__.startswith("torch.optim.")


def _tells(parameter: torch.Tensor) -> bool:
    """Has it a version and an address?"""
    strided = parameter.layout is torch.strided and not torch.nn.parameter.is_lazy(parameter)
    return strided and not parameter.is_inference()
