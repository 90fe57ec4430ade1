"""The copies of one capture: collected first, made in one go while training stands still.

What lies on a GPU is launched first, on the stream that Paddle works on, so it is of the moment that the stream has
come to; what lies in host memory is copied meanwhile; then each device is waited for, whatever happened, for no host
may read what a device still writes. Only of a tensor with gaps does Paddle make a gapless one on the device first.
The way of a GPU was reviewed by reading, against the rules that torch's keeps; it has never been run on a card.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import paddle

from colabkeep.frameworks.common.captures import Part
from colabkeep.frameworks.common.checksums import Reader
from colabkeep.frameworks.common.host_copy import HostCopy
from colabkeep.frameworks.paddle.state.memory import cpu_tensor, on_cpu, place_name
from colabkeep.frameworks.paddle.state.staging import Slot
from colabkeep.vocabulary.state import Stale

__all__ = ["Copies"]


class Copies:
    """Copies from the live tensors (held here, so that none goes away) to their slots."""

    def __init__(self) -> None:
        self._host = HostCopy()
        self._device: list[tuple[Slot, Any, Any]] = []
        self._tiny: list[tuple[memoryview, memoryview]] = []
        self._held: list[Any] = []
        self._parts: list[Part[Copies]] = []

    def add(self, slot: Slot, source: Any) -> None:
        """One copy."""
        if not slot.size:
            return
        if slot.landing is not None:
            self._device.append((slot, slot.landing, source))
            return
        straight = source if source.is_contiguous() else _gapless(source)
        self._held.append(straight)
        self._host.add(slot, slot.address, straight.data_ptr(), slot.size)

    def assign(self, tiny: Iterable[tuple[memoryview, memoryview]]) -> None:
        """Many tiny copies, as views of where to and where from. The caller keeps the memory alive."""
        self._tiny += tiny

    def take(self, part: Part[Copies]) -> None:
        """Those of a part's tensors that are to be copied."""
        part.add_to(self)
        self._parts.append(part)

    def run(self) -> None:
        """Make all copies. When this returns, training may go on."""
        devices = set()
        try:
            for slot, landing, source in self._device:
                slot.new = True
                here = on_cpu(source)
                if not here:
                    devices.add(place_name(source.place))
                landing.copy_(source, here)
            self._host.run(meanwhile=self._copy_tiny)
        finally:  # a copy that is broken off must not go on into memory that others are given
            for device in devices:
                paddle.device.synchronize(device)

    def finish(self) -> None:
        """Behind training: prove what was not copied, and show what is new.

        Raises:
            Stale: something that was not copied has other bytes than are stored.
        """
        reader = Reader()
        proven = [part.prove(reader) for part in self._parts]  # all of them: no redoing one by one
        if not all(proven):
            raise Stale
        for part in self._parts:
            part.renew()

    def stored(self) -> None:
        """A checkpoint holds what was copied."""
        for part in self._parts:
            part.stored()

    def _copy_tiny(self) -> None:
        for place, live in self._tiny:
            place[:] = live


def _gapless(source: Any) -> Any:
    """A row-major copy. Not by `source.contiguous()`, which turns the live tensor itself (Paddle 3.3.1)."""
    copy = cpu_tensor(source.shape, source.dtype)
    copy.copy_(source, True)
    return copy
