"""Which tensors of a part have changed since they were last copied, and whether a copy made later held.

Three things tell of a change: the version counter, which every ordinary in-place operation moves; the address, which
moves when other memory is put under a tensor (`x.data = …`); and the bytes. The counter does not see writes through
`x.data`, through NumPy, or by torch's fused optimizers, so it is never trusted alone: a tensor that seems unchanged is
sampled at once and compared whole in the background, and one that is copied later is sampled before and after.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter, methodcaller
from typing import Any

import torch

from colabkeep.frameworks.common.moves import Move, compares
from colabkeep.frameworks.torch.state.leaves import slot_leaf
from colabkeep.frameworks.torch.state.samples import Samples, sample_view
from colabkeep.frameworks.torch.state.staging import Copies, Slot
from colabkeep.frameworks.torch.state.watch import Bulk
from colabkeep.vocabulary.state import Tree

__all__ = ["FREE", "RESTLESS", "UNHEARD", "WATCHED", "Block", "Entry", "Tracked"]

# Who may change a tensor: anybody; an optimizer that is heard before it does; one that is heard, has stepped and leaves
# the counters as they are; one that is not heard.
FREE, WATCHED, RESTLESS, UNHEARD = range(4)

_LARGE = 2**16  # bytes; a smaller tensor is copied at once in less time than it takes to put it off
_ADDRESS = methodcaller("data_ptr")
_VERSION = attrgetter("_version")
_EXACT = (torch.Tensor, torch.nn.Parameter)


class Block:
    """A tensor's memory as one gapless block, with the slot that has the same order. Holds the memory alive, also when
    the tensor gets other memory."""

    __slots__ = ("alias", "comparison", "copy", "memory", "size", "taken")

    def __init__(self, tensor: torch.Tensor, slot: Slot) -> None:
        self.alias, self.memory = tensor.detach(), slot.memory
        self.size = slot.memory.nbytes
        self.copy = Move(slot.memory.data_ptr(), tensor.data_ptr(), self.size)
        self.comparison = self.copy._replace(compare=True)
        self.taken = sample_view(self.alias), sample_view(slot.memory)

    @staticmethod
    def fits(tensor: torch.Tensor, slot: Slot) -> bool:
        """Has the slot the very order of the tensor's own memory?"""
        return (
            type(tensor) in _EXACT
            and (tensor.is_cpu or (tensor.is_cuda and slot.pinned))
            and tensor.stride() == slot.memory.stride()
            and not tensor.is_conj()
            and not tensor.is_neg()
            and tensor.numel() > 0
        )


class Entry:
    """A tensor, its slot, its name for people, and the places of the tree that show it."""

    __slots__ = ("buffer", "name", "slot", "spots", "tensor")

    def __init__(self, name: str, tensor: torch.Tensor, slot: Slot, *, buffer: bool = False) -> None:
        self.name, self.tensor, self.slot, self.buffer = name, tensor, slot, buffer
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


class Tracked:
    """The tensors of one part.

    One capture is `sort`, the copies, `seal` when the next step may begin, and `verdict`; or, at once, `sort`, the
    copies, `amend`. Then `renew`.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries
        self._tensors = [entry.tensor for entry in entries]
        self._slots = [entry.slot for entry in entries]
        self._names = [entry.name for entry in entries]
        self._bulk = Bulk(self._tensors)
        self._keys = list(map(id, self._tensors))
        self._copied: list[int | None] = [None] * len(entries)  # the version that the slot holds
        self._blocks: list[Block | None] = [None] * len(entries)
        self._addresses: list[int] = []
        self._versions: list[int | None] = []
        self._changed: list[int] = []
        self._late: list[int] = []
        self._still: list[int] = []
        # Changed past their counters: seeming the same means nothing. Buffers are, by kernels such as batch norm's; a
        # parameter is by somebody's hand, which will not stop at one.
        self._secretive = {i for i, entry in enumerate(entries) if entry.buffer and entry.slot.memory.nbytes < _LARGE}
        self._samples = Samples()

    def fits(self) -> bool:
        """Do the slots still fit the tensors?"""
        return self._bulk.unchanged()

    def sort(self, owners: Mapping[int, int], copies: Copies, *, hidden: bool) -> None:
        """Find what has changed, and have it copied at once (`copies`), or later where a watched step alone changes
        it and the copy is `hidden`."""
        self._look()
        self._versions = _versions(self._tensors)
        self._still = list(self._seems_still(owners))
        self._samples.take(self._numbered(self._still))
        self._blame(self._samples.differing())
        self._still = [i for i in self._still if i not in self._secretive]
        still = set(self._still)
        self._changed = [i for i in range(len(self._tensors)) if i not in still]
        self._late = [i for i in self._changed if self._may_wait(i, owners)] if hidden else []
        late = set(self._late)
        now = [i for i in self._changed if i not in late]
        copies.extend([self._slots[i].memory for i in now], [self._tensors[i] for i in now])
        for i in self._changed:
            self._copied[i] = None  # until it is known that the copy holds
        self._samples.take(self._numbered(self._late))

    def late(self) -> Iterator[Block]:
        """What is to be copied before the next step."""
        return (block for i in self._late if (block := self._blocks[i]) is not None)

    def still(self, owners: Mapping[int, int], *, watched: bool) -> Iterator[Block]:
        """What seems the same and is to be compared: before the next step, where a `watched` one may change it."""
        for i in self._still:
            block = self._blocks[i]
            if block is not None and block.alias.is_cpu and (owners.get(self._keys[i], FREE) != FREE) is watched:
                yield block

    def seal(self) -> str | None:
        """The next step may begin: the name of a tensor that was changed since `sort`, None if none was."""
        now = _versions([self._tensors[i] for i in self._late])
        return next((self._names[i] for i, v in zip(self._late, now, strict=True) if v != self._versions[i]), None)

    def verdict(self, different: set[int]) -> str | None:
        """All copies are made, and those targets differed: the name of a tensor whose copy is not that of `sort`'s
        moment, None if there is none."""
        wrong = [*self._samples.differing(), *self._differing(different)]
        self._blame(wrong)
        return self._names[wrong[0]] if wrong else None

    def amend(self, different: set[int], copies: Copies) -> None:
        """Nothing has run since `sort`: have copied what only seemed the same."""
        wrong = list(self._differing(different))
        if wrong:
            self._blame(wrong)
            self._changed += wrong
            copies.extend([self._slots[i].memory for i in wrong], [self._tensors[i] for i in wrong])

    def renew(self) -> None:
        """The copies hold: show what is new as new."""
        for i in self._changed:
            self._copied[i] = self._versions[i]
            self._entries[i].renew()
        if any(map(int.__ne__, map(_ADDRESS, self._tensors), self._addresses)):
            self._addresses = []  # other memory was put under a tensor: let go of what was
            self._blocks = [None] * len(self._blocks)
            self._copied = [None] * len(self._copied)

    @property
    def slots(self) -> Sequence[Slot]:
        """The slots of all tensors."""
        return self._slots

    def cold(self) -> bool:
        """Does a copy of this capture touch memory for the first time?"""
        return not all(self._slots[i].touched for i in self._changed)

    def _look(self) -> None:
        """Blocks for tensors that have other memory than before."""
        addresses = list(map(_ADDRESS, self._tensors))
        if addresses == self._addresses:
            return
        old = self._addresses or [-1] * len(addresses)
        for i, (address, before) in enumerate(zip(addresses, old, strict=True)):
            if address != before:
                tensor, slot = self._tensors[i], self._slots[i]
                self._blocks[i] = Block(tensor, slot) if Block.fits(tensor, slot) else None
                self._copied[i] = None
        self._addresses = addresses

    def _may_wait(self, i: int, owners: Mapping[int, int]) -> bool:
        block = self._blocks[i]
        return (
            block is not None
            and block.size >= _LARGE
            and self._versions[i] is not None  # else it counts nothing
            and owners.get(self._keys[i], FREE) in (WATCHED, RESTLESS)
        )

    def _seems_still(self, owners: Mapping[int, int]) -> Iterator[int]:
        for i, (version, copied, key) in enumerate(zip(self._versions, self._copied, self._keys, strict=True)):
            if copied is None or version != copied or owners.get(key, FREE) > WATCHED or i in self._secretive:
                continue
            block = self._blocks[i]
            # Of a GPU's memory there is no cheap comparison: what may be trained is copied, which is quick there.
            if block is not None and (compares() if block.alias.is_cpu else self._slots[i].host.frozen):
                yield i

    def _blame(self, wrong: Sequence[int]) -> None:
        self._secretive.update(wrong)
        if not all(self._entries[i].buffer for i in wrong):
            self._secretive.update(range(len(self._entries)))

    def _numbered(self, indices: Sequence[int]) -> list[tuple[int, Block]]:
        return [(i, block) for i in indices if (block := self._blocks[i]) is not None]

    def _differing(self, different: set[int]) -> Iterator[int]:
        """What seemed the same and is not. A counter that has moved since says that it was the same at the time."""
        for i in self._still:
            block = self._blocks[i]
            unmoved = _versions([self._tensors[i]]) == [self._versions[i]]
            if unmoved and block is not None and block.copy.target in different:
                yield i


def _versions(tensors: Sequence[Any]) -> list[int | None]:
    try:
        return list(map(_VERSION, tensors))
    except RuntimeError:  # tensors made in inference mode count nothing
        return [None if tensor.is_inference() else tensor._version for tensor in tensors]
