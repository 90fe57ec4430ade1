"""The tensors of one part: which of them are copied, and how those that are not are known to be as they were stored.

    trained      copied; a large one only if it has other bytes than its copy
    frozen       copied once, and proven from then on, as `common.resting` tells; on a device always copied

Nothing is concluded from `tensor.inplace_version`: it stays as it is when an optimizer steps, when batch norm moves
its means, and in `set_value` (tried with all optimizers of Paddle 3.3.1). One that has moved is a reason to copy.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import paddle

from colabkeep.frameworks.common import resting
from colabkeep.frameworks.common.checksums import Reader
from colabkeep.frameworks.common.resting import Frozen, Resting
from colabkeep.frameworks.paddle.state.copies import Copies
from colabkeep.frameworks.paddle.state.leaves import slot_leaf
from colabkeep.frameworks.paddle.state.memory import holding, on_cpu
from colabkeep.frameworks.paddle.state.staging import Slot
from colabkeep.frameworks.paddle.state.watch import Bulk
from colabkeep.vocabulary.priority import Breather
from colabkeep.vocabulary.state import Tree

__all__ = ["Entry", "Recall", "Tensors"]

_TINY = 2**12  # bytes; fewer are copied by the interpreter itself in 0.1 µs
_ADDRESS = paddle.Tensor.data_ptr


class Recall:
    """Whether bytes that were let go of are `needed` once more."""

    def __init__(self) -> None:
        self.needed = False

    def ask(self) -> None:
        """All is to be copied at the next capture. Any thread may call it."""
        self.needed = True


class Entry:
    """A tensor, its slot, and the places of the tree that show it."""

    __slots__ = ("slot", "spots", "tensor")

    def __init__(self, tensor: Any, slot: Slot) -> None:
        self.tensor, self.slot = tensor, slot
        self.spots: list[tuple[dict[str, Tree], str]] = []

    def show(self, section: dict[str, Tree], key: str) -> None:
        """Let `section[key]` show what the slot holds, now and whenever that is new."""
        self.spots.append((section, key))
        section[key] = slot_leaf(self.slot)

    def renew(self) -> None:
        """The slot's bytes are new."""
        self.slot.renew()
        leaf = slot_leaf(self.slot)
        for section, key in self.spots:
            section[key] = leaf


class Tensors:
    """The tensors of one part. One capture is `add_to`, the copies, `prove` and `renew`; then `stored`, if it is."""

    def __init__(self, entries: Sequence[Entry], recall: Recall) -> None:
        self._entries = entries
        self._recall = recall
        self._tensors = [entry.tensor for entry in entries]
        self.slots = [entry.slot for entry in entries]
        self._bulk = Bulk(self._tensors)
        self._addresses: list[int] = []
        self._frozen: list[Entry] = []
        self._others: list[Entry] = []
        self._small: list[Slot] = []
        self._tiny: list[tuple[memoryview, memoryview]] = []  # where to, and where from
        self._resting: Resting[Slot] = Resting()

    def fits(self) -> bool:
        """Do the slots still fit the tensors?"""
        return self._bulk.unchanged()

    def add_to(self, copies: Copies) -> None:
        """Have copied by `copies` what is not to be proven."""
        addresses = [
            _ADDRESS(tensor) if slot.size else 0 for tensor, slot in zip(self._tensors, self.slots, strict=True)
        ]
        if addresses != self._addresses:
            self._sort(addresses)
        self._resting.begin()
        for entry in self._frozen:
            tensor, slot = entry.tensor, entry.slot
            frozen = Frozen(tensor.data_ptr(), tensor.inplace_version, holding(tensor))
            if not self._resting.rests(slot, frozen, recalled=self._recall.needed):
                _copy(entry, copies)
        for entry in self._others:
            _copy(entry, copies)
        for slot in self._small:
            slot.new = True
        copies.assign(self._tiny)

    def prove(self, reader: Reader) -> bool:
        """The copies are made, and training goes on: has all that was not copied the bytes that are stored?"""
        proven = self._resting.prove(reader)
        if not proven:
            self._addresses = []
        return proven

    def renew(self) -> None:
        """Show what is new as new."""
        breather = Breather()
        for entry in self._entries:
            if entry.slot.new:
                entry.renew()
                breather.breathe()

    def stored(self) -> None:
        """The snapshot is stored: let go of what rests from now on."""
        for slot, proof in self._resting.stored():
            slot.let_go(proof, self._recall.ask)

    def _sort(self, addresses: list[int]) -> None:
        self._frozen, self._others, self._small, self._tiny = [], [], [], []
        for entry, address in zip(self._entries, addresses, strict=True):
            tensor, slot = entry.tensor, entry.slot
            straight = slot.landing is None and on_cpu(tensor) and tensor.is_contiguous()
            if straight and resting.READS and slot.host.frozen and slot.size >= resting.LET_GO and not slot.restless:
                self._frozen.append(entry)
            elif straight and not slot.host.frozen and 0 < slot.size <= _TINY:
                self._small.append(slot)
                self._tiny.append((slot.host.data, _view(address, slot.size)))
            else:
                self._others.append(entry)
        self._addresses = addresses


def _copy(entry: Entry, copies: Copies) -> None:
    if entry.slot.proof is not None:
        entry.slot.regain()
    copies.add(entry.slot, entry.tensor)


def _view(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")
