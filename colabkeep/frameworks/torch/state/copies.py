"""The copies of one capture: collected first, made in one go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter

import torch

from colabkeep.frameworks.common.captures import Part
from colabkeep.frameworks.common.checksums import Reader
from colabkeep.frameworks.common.host_copy import HostCopy
from colabkeep.frameworks.torch.state.device_copy import DeviceCopy, Devices, Landing
from colabkeep.frameworks.torch.state.staging import Slot
from colabkeep.vocabulary.state import Stale, Tree

__all__ = ["Copies"]


class Copies:
    """Copies from the live tensors (held here, so that none goes away) to their slots."""

    def __init__(self, devices: Devices) -> None:
        self.host = HostCopy()
        self.device = DeviceCopy(devices)
        self._slots: list[Slot] = []
        self._sources: list[torch.Tensor] = []
        self._tiny: list[tuple[memoryview, memoryview]] = []
        self._tensors: list[Part[Copies]] = []
        self._late: list[tuple[dict[str, Tree], str, Landing]] = []

    def add(self, slot: Slot, source: torch.Tensor) -> None:
        """One copy."""
        if source.is_cuda:
            self.device.add(slot, source)
        else:
            self._slots.append(slot)
            self._sources.append(source)

    def extend(self, slots: Iterable[Slot], sources: Iterable[torch.Tensor]) -> None:
        """Many copies, of tensors that are on no GPU."""
        self._slots += slots
        self._sources += sources

    def assign(self, tiny: Iterable[tuple[memoryview, memoryview]]) -> None:
        """Many tiny copies, as views of where to and where from. The caller keeps the memory alive."""
        self._tiny += tiny

    def take(self, tensors: Part[Copies]) -> None:
        """Those of a part's tensors that are to be copied."""
        tensors.add_to(self)
        self._tensors.append(tensors)

    def fill(self, section: dict[str, Tree], numbers: Mapping[str, torch.Tensor]) -> None:
        """Put numbers of a device into a tree, by key, when they have come."""
        self._late += [(section, key, self.device.look(number)) for key, number in numbers.items()]

    def run(self) -> None:
        """Make all copies, or launch them. When this returns, training may go on."""
        self.device.run()
        self.host.run(meanwhile=self._copy_others)

    def finish(self) -> None:
        """Behind training: bring what was copied on devices, prove what was not copied, and show what is new.

        Raises:
            Stale: something that was not copied has other bytes than are stored.
        """
        self.device.finish()
        for section, key, landing in self._late:
            section[key] = landing.number
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
                    torch._foreach_copy_([slot.memory for slot in self._slots], self._sources)
            else:
                for slot, source in zip(self._slots, self._sources, strict=True):
                    slot.memory.copy_(source)
