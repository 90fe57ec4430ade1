"""The tensors of one part: which of them are copied, and how those that are not are known to be as they were stored.

trained      copied; a large one only if it has other bytes than its copy
frozen       copied once, and proven from then on, as `common.resting` tells
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from colabkeep.frameworks.common import resting
from colabkeep.frameworks.common.checksums import Reader
from colabkeep.frameworks.common.resting import Frozen, Resting
from colabkeep.frameworks.torch.state.copies import Copies
from colabkeep.frameworks.torch.state.host_memory import HostMemory
from colabkeep.frameworks.torch.state.staging import Slot, row_major, slot_leaf
from colabkeep.frameworks.torch.state.watch import Bulk
from colabkeep.vocabulary.errors import NotStorable
from colabkeep.vocabulary.priority import Breather
from colabkeep.vocabulary.state import Tree

__all__ = ["Entry", "Tensors"]

_TINY = 2**12  # bytes; fewer are copied by the interpreter itself in 0.1 µs, a tenth of what torch takes to begin
_LARGE = 2**16  # bytes; from here on a copy is worth more than the microsecond that a block of its own takes
_ADDRESS = torch.Tensor.data_ptr
_EXACT = (torch.Tensor, torch.nn.Parameter)


class Entry:
    """A tensor, its slot, its name for people, and the places of the tree that show it."""

    __slots__ = ("name", "slot", "spots", "tensor")

    def __init__(self, name: str, tensor: torch.Tensor, slot: Slot) -> None:
        self.name, self.tensor, self.slot = name, tensor, slot
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

    def __init__(self, entries: Sequence[Entry], memory: HostMemory) -> None:
        self._entries = entries
        self._memory = memory
        self._tensors = [entry.tensor for entry in entries]
        self.slots = [entry.slot for entry in entries]
        self._bulk = Bulk(self._tensors)
        self._addresses: list[int] = []
        self._frozen: list[Entry] = []
        self._blocks: list[Entry] = []
        self._small: list[Slot] = []
        self._sources: list[torch.Tensor] = []
        self._tiny: list[tuple[memoryview, memoryview]] = []  # where to, and where from
        self._resting: Resting[Slot] = Resting()

    def fits(self) -> bool:
        """Do the slots still fit the tensors?"""
        return self._bulk.unchanged()

    def add_to(self, copies: Copies) -> None:
        """Have copied by `copies` what is not to be proven.

        Raises:
            NotStorable: a tensor has no memory.
            MemoryFull: there is no room for what was let go of.
        """
        addresses = list(map(_ADDRESS, self._tensors))
        if addresses != self._addresses:
            self._sort(addresses)
        self._resting.begin()
        for entry in self._frozen:
            tensor, slot = entry.tensor, entry.slot
            version = None if tensor.is_inference() else tensor._version
            landing = copies.device.look(tensor, checksum=True) if tensor.is_cuda else None
            frozen = Frozen(tensor.data_ptr(), version, tensor.detach(), landing)
            if not self._resting.rests(slot, frozen, recalled=self._memory.recalled):
                self._copy(entry, copies)
        for entry in self._blocks:
            self._copy(entry, copies)
        for slot in self._small:
            slot.new = True
        copies.extend(self._small[len(self._tiny) :], self._sources)
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
            slot.let_go(proof, self._memory)

    def _copy(self, entry: Entry, copies: Copies) -> None:
        slot = entry.slot
        if slot.proof is not None:
            self._memory.expect([entry.tensor])
            slot.regain(self._memory)
        if entry.tensor.is_cuda:
            copies.device.add(slot, entry.tensor)
        else:
            copies.host.add(slot, slot.memory.data_ptr(), entry.tensor.data_ptr(), slot.size)

    def _sort(self, addresses: list[int]) -> None:
        self._frozen, self._blocks, self._sources, self._tiny = [], [], [], []
        tiny, others = list[Slot](), list[Slot]()
        for entry, address in zip(self._entries, addresses, strict=True):
            tensor, slot = entry.tensor, entry.slot
            if not address and slot.size:
                raise _gone(entry.name)
            straight = _is_straight(tensor, slot)
            provable = straight and (tensor.is_cuda or resting.READS)
            if provable and slot.host.frozen and slot.size >= resting.LET_GO and not slot.restless:
                self._frozen.append(entry)
            elif tensor.is_cuda or (straight and (slot.host.frozen or slot.size >= _LARGE)):
                self._blocks.append(entry)
            elif straight and slot.size <= _TINY:
                tiny.append(slot)
                self._tiny.append((slot.host.data, _view(address, slot.size)))
            else:
                others.append(slot)
                self._sources.append(tensor)
        self._small = tiny + others
        self._addresses = addresses


def _is_straight(tensor: torch.Tensor, slot: Slot) -> bool:
    """Is it one gapless block of memory, in the very order that its slot has?"""
    return (
        type(tensor) in _EXACT
        and (tensor.is_cpu or tensor.is_cuda)
        and tensor.numel() > 0
        and tensor.stride() == (row_major(slot.shape) if slot.stride is None else slot.stride)
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _view(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


def _gone(name: str) -> NotStorable:
    return NotStorable(
        problem=f"{name} has no memory: its storage was given back, as offloading does, so there is nothing to save.",
        remedy="Save where the weights are in place: after the step that gathers them, or without offloading.",
    )
