"""The copies of one capture: collected first, made in one go."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Protocol

import torch

from colabkeep.frameworks.common.host_copy import HostCopy
from colabkeep.frameworks.torch.state.checksums import Reader
from colabkeep.frameworks.torch.state.staging import Slot
from colabkeep.vocabulary.state import Stale

__all__ = ["Copies"]


class Part(Protocol):
    """The tensors of one part of a run."""

    def add_to(self, copies: Copies) -> None:
        """Have copied what is to be copied."""
        ...

    def prove(self, reader: Reader) -> bool:
        """The copies are made: has all that was not copied the bytes that are stored?"""
        ...

    def renew(self) -> None:
        """Show what is new as new."""
        ...

    def stored(self) -> None:
        """The snapshot is stored."""
        ...


class Copies:
    """Copies from the live tensors (held here, so that none goes away) to their slots."""

    def __init__(self) -> None:
        self.host = HostCopy()
        self._targets: list[torch.Tensor] = []
        self._sources: list[torch.Tensor] = []
        self._tiny: list[tuple[memoryview, memoryview]] = []
        self._tensors: list[Part] = []

    def add(self, slot: Slot, source: torch.Tensor) -> None:
        """One copy."""
        self._targets.append(slot.memory)
        self._sources.append(source)

    def extend(self, targets: Iterable[torch.Tensor], sources: Iterable[torch.Tensor]) -> None:
        """Many copies."""
        self._targets += targets
        self._sources += sources

    def assign(self, tiny: Iterable[tuple[memoryview, memoryview]]) -> None:
        """Many tiny copies, as views of where to and where from. The caller keeps the memory alive."""
        self._tiny += tiny

    def take(self, tensors: Part) -> None:
        """Those of a part's tensors that are to be copied."""
        tensors.add_to(self)
        self._tensors.append(tensors)

    def run(self) -> None:
        """Make all copies. When this returns, training may go on."""
        self.host.run(meanwhile=self._copy_others)

    def finish(self) -> None:
        """Behind training: prove what was not copied, and show what is new.

        Raises:
            Stale: something that was not copied has other bytes than are stored.
        """
        reader = Reader()
        proven = [tensors.prove(reader) for tensors in self._tensors]  # all of them: no redoing one by one
        if not all(proven):
            raise Stale
        for tensors in self._tensors:
            tensors.renew()

    def stored(self) -> None:
        """A checkpoint holds what was copied."""
        for tensors in self._tensors:
            tensors.stored()

    def _copy_others(self) -> None:
        for place, live in self._tiny:
            place[:] = live
        with torch.no_grad():
            if all(map(attrgetter("is_cpu"), self._sources)):
                if self._sources:  # one call: the loop runs in C++
                    torch._foreach_copy_(self._targets, self._sources)
                return
            for target, source in zip(self._targets, self._sources, strict=True):
                target.copy_(source, non_blocking=source.is_cuda)
        for device in {source.device for source in self._sources if source.is_cuda}:
            torch.cuda.current_stream(device).synchronize()
