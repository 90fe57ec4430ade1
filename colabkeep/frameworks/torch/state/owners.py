"""Who may change a tensor between two captures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain

import torch

from colabkeep.frameworks.torch.state.steps import Steps, tells_versions

__all__ = ["FREE", "RESTLESS", "UNHEARD", "WATCHED", "Owners"]

# Anybody; an optimizer that is heard before it does; one that is heard, has stepped and leaves the counters as they
# are; one that is not heard.
FREE, WATCHED, RESTLESS, UNHEARD = range(4)


class Owners:
    """Finds the owner of each tensor. As long as nothing changes, the answer is the very same mapping."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._counts: dict[int, int] = {}  # of steps heard of each optimizer, at the capture before
        self._kinds: list[tuple[torch.optim.Optimizer, int]] = []
        self._owners: Mapping[int, int] = {}

    def find(self, optimizers: Iterable[torch.optim.Optimizer], *, moved: bool) -> Mapping[int, int]:
        """The owner of each tensor that is not free, by its id. `moved`: an optimizer may hold others than before."""
        kinds = [(optimizer, self._kind(optimizer)) for optimizer in optimizers]
        if moved or kinds != self._kinds:
            self._kinds, self._owners = kinds, _owners(kinds)
        return self._owners

    def _kind(self, optimizer: torch.optim.Optimizer) -> int:
        before, count = self._counts.get(id(optimizer)), self._steps.count(optimizer)
        self._counts[id(optimizer)] = count
        if self._steps.doubt(optimizer) is not None:
            return UNHEARD
        return RESTLESS if count != before and not tells_versions(optimizer) else WATCHED


def _owners(kinds: Iterable[tuple[torch.optim.Optimizer, int]]) -> Mapping[int, int]:
    owners: dict[int, int] = {}
    for optimizer, kind in kinds:
        parameters = chain.from_iterable(group["params"] for group in optimizer.param_groups)
        entries = (entry.values() for entry in optimizer.state.values() if isinstance(entry, dict))
        for tensor in chain(parameters, chain.from_iterable(entries)):
            if kind >= owners.get(id(tensor), WATCHED):
                owners[id(tensor)] = kind
    return owners
