"""Which tensors of a part have changed since they were last copied, and whether a copy made later held.

Three things tell of a change: the version counter, which every ordinary in-place operation moves; the address, which
moves when other memory is put under a tensor (`x.data = …`); and the bytes. The counter does not see writes through
`x.data`, through NumPy, or by torch's fused optimizers, so it is never trusted alone: a tensor that seems unchanged is
sampled at once and compared whole in the background, and one that is copied later is sampled before and after.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch

from colabkeep.frameworks.common.moves import Move, compares
from colabkeep.frameworks.torch.state.blocks import Block, Group, Prompt
from colabkeep.frameworks.torch.state.leaves import slot_leaf
from colabkeep.frameworks.torch.state.owners import FREE, RESTLESS, WATCHED
from colabkeep.frameworks.torch.state.staging import Copies, Slot
from colabkeep.frameworks.torch.state.watch import Bulk
from colabkeep.vocabulary.errors import NotStorable
from colabkeep.vocabulary.priority import Breather
from colabkeep.vocabulary.state import Tree

__all__ = ["Entry", "Tracked"]

_LARGE = 2**16  # bytes; a smaller tensor is copied at once in less time than it takes to put it off
_UNKNOWN = -1  # no version that a tensor counts
_ADDRESS = torch.Tensor.data_ptr
_STORAGE = torch.Tensor.untyped_storage
_VERSION = attrgetter("_version")


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
    copies, `amend`. Then `release`, and `renew` if it holds.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries
        self._tensors = [entry.tensor for entry in entries]
        self._slots = [entry.slot for entry in entries]
        self._bulk = Bulk(self._tensors)
        self._all = list(range(len(entries)))
        self._copied = [_UNKNOWN] * len(entries)  # the versions that the slots hold
        self._blocks: list[Block | None] = [None] * len(entries)
        self._addresses: list[int] = []
        self._storages: list[torch.UntypedStorage] = []  # of a capture: their memory lives until it is complete
        self._owners: Mapping[int, int] = {}
        self._versions: list[int] = []
        self._changed: list[int] = []
        self._steady: set[int] = set()  # may be seen to be as they were
        self._large: set[int] = set()  # in host memory, and worth a move of their own
        self._patient: set[int] = set()  # may be copied under the next step
        self._owned: set[int] = set()
        self._at_once, self._late, self._still = Prompt(), Group(), Group()
        # Changed past their counters: seeming the same means nothing. Buffers are, by kernels such as batch norm's; a
        # parameter is by somebody's hand, which will not stop at one.
        self._secretive = {i for i, entry in enumerate(entries) if entry.buffer and entry.slot.memory.nbytes < _LARGE}
        self._lively: set[int] = set()
        self._cold = True

    def fits(self) -> bool:
        """Do the slots still fit the tensors?"""
        return self._bulk.unchanged()

    def sort(self, owners: Mapping[int, int], copies: Copies, *, hidden: bool) -> None:
        """Find what has changed. Small tensors are copied by `copies`, large ones by those who ask for what is `late`;
        if the copy is `hidden`, these are only what a watched step alone changes."""
        self._storages = list(map(_STORAGE, self._tensors))
        self._look(owners)
        self._versions = _versions(self._tensors)
        pairs = enumerate(zip(self._versions, self._copied, strict=True))
        self._still = self._grouped(self._still, [i for i, (now, then) in pairs if now == then and i in self._steady])
        self._still.samples.take()
        wrong = self._still.samples.differing()
        if wrong:
            self._blame(wrong)
            self._still = self._grouped(self._still, [i for i in self._still.numbers if i in self._steady])
        self._changed = self._all
        if self._still.numbers:
            self._changed = sorted(set(self._all).difference(self._still.numbers))
        later = self._patient if hidden else self._large
        self._late = self._grouped(self._late, [i for i in self._changed if i in later])
        at_once = [i for i in self._changed if i not in later]
        if at_once != self._at_once.numbers:
            self._at_once = Prompt(at_once, self._tensors, self._slots, self._blocks)
        self._at_once.copy(copies)
        for i in self._changed:
            self._copied[i] = _UNKNOWN  # until it is known that the copy holds
        if hidden:
            self._late.samples.take()

    @property
    def late(self) -> Group:
        """What is to be copied before the next step, or, where nothing is hidden, before training goes on."""
        return self._late

    def still(self, *, watched: bool) -> Sequence[Move]:
        """What seems the same and is to be compared: before the next step, where a `watched` one may change it."""
        return self._still.comparisons[watched]

    def seal(self) -> str | None:
        """The next step may begin: the name of a tensor that was changed since `sort`, None if none was."""
        late = self._late
        now, then = _versions(late.tensors), [self._versions[i] for i in late.numbers]
        changed = [i for i, a, b in zip(late.numbers, now, then, strict=True) if a != b] if now != then else []
        places = list(map(_ADDRESS, late.tensors))
        if not changed and places != late.addresses:
            moved = (i for i, a, b in zip(late.numbers, places, late.addresses, strict=True) if a != b)
            # A tensor that has another storage now does no harm: the copy read the old one.
            changed = [i for i in moved if _STORAGE(self._tensors[i]) is self._storages[i]]
        return self._entries[changed[0]].name if changed else None

    def verdict(self, different: set[int]) -> str | None:
        """All copies are made, and those targets differed: the name of a tensor whose copy is not that of `sort`'s
        moment, None if there is none."""
        found = self._differing(different)
        # A counter that has moved tells who did it after the save, but not that nobody had done it before.
        lively = self._changed_since() if found else set()
        self._lively |= lively  # such as an average that follows some steps: copied at every save from now on
        self._steady -= lively
        wrong = [*self._late.samples.differing(), *(i for i in found if i not in lively)]
        self._blame(wrong)
        return next((self._entries[i].name for i in (*wrong, *found)), None)

    def amend(self, different: set[int], copies: Copies) -> None:
        """Nothing has run since `sort`: have copied what only seemed the same."""
        wrong = self._differing(different)
        if wrong:
            self._blame(wrong)
            self._changed = [*self._changed, *wrong]
            copies.extend([self._slots[i].memory for i in wrong], [self._tensors[i] for i in wrong])

    def renew(self) -> None:
        """The copies hold: show what is new as new. After `release`."""
        breather = Breather()
        for i in self._changed:
            self._copied[i] = self._versions[i]
            self._entries[i].renew()
            breather.breathe()
        if list(map(_ADDRESS, self._tensors)) != self._addresses:
            self._addresses = []  # other memory was put under a tensor: let go of what was
            self._blocks = [None] * len(self._blocks)
            self._copied = [_UNKNOWN] * len(self._copied)
            self._regroup()

    def release(self) -> None:
        """Nothing is read any more: let go of memory that no tensor has."""
        self._storages = []

    @property
    def slots(self) -> Sequence[Slot]:
        """The slots of all tensors."""
        return self._slots

    def first_use(self) -> bool:
        """Does a copy of this capture touch memory for the first time? From now on nobody else may, to warm it up."""
        if not self._cold:
            return False
        cold = [slot for i in self._changed if not (slot := self._slots[i]).touched]
        for slot in cold:
            slot.touched = True
        self._cold = not all(slot.touched for slot in self._slots)
        return bool(cold)

    def _look(self, owners: Mapping[int, int]) -> None:
        """Blocks for tensors that have other memory than before, and what may be done with each."""
        addresses = list(map(_ADDRESS, self._tensors))
        if addresses == self._addresses and owners is self._owners:
            return
        old = self._addresses or [-1] * len(addresses)
        for i, (address, before) in enumerate(zip(addresses, old, strict=True)):
            if address != before:
                tensor, slot = self._tensors[i], self._slots[i]
                if not address and slot.memory.nbytes:
                    raise _gone(self._entries[i].name)
                self._blocks[i] = Block(tensor, slot) if Block.fits(tensor, slot) else None
                self._copied[i] = _UNKNOWN
        self._addresses, self._owners = addresses, owners
        self._regroup()

    def _regroup(self) -> None:
        self._at_once, self._late, self._still = Prompt(), Group(), Group()
        self._steady, self._large, self._patient, self._owned = set(), set(), set(), set()
        for i, (tensor, block) in enumerate(zip(self._tensors, self._blocks, strict=True)):
            owner = self._owners.get(id(tensor), FREE)
            if owner != FREE:
                self._owned.add(i)
            if block is None:
                continue
            if block.size >= _LARGE:
                if block.on_cpu:
                    self._large.add(i)
                if owner in (WATCHED, RESTLESS):
                    self._patient.add(i)
            # Of a GPU's memory there is no cheap comparison: what may be trained is copied, which is quick there.
            comparable = compares() if block.on_cpu else self._slots[i].host.frozen
            if comparable and owner <= WATCHED and i not in self._secretive and i not in self._lively:
                self._steady.add(i)

    def _grouped(self, before: Group, numbers: list[int]) -> Group:
        same = numbers == before.numbers
        return before if same else Group(numbers, self._tensors, self._blocks, self._owned)

    def _blame(self, wrong: Sequence[int]) -> None:
        self._secretive.update(wrong)
        if not all(self._entries[i].buffer for i in wrong):
            self._secretive.update(self._all)
        self._steady -= self._secretive

    def _differing(self, different: set[int]) -> list[int]:
        """What seemed the same and is not."""
        if not different:
            return []
        blocks = ((i, self._blocks[i]) for i in self._still.numbers)
        return [i for i, block in blocks if block is not None and block.target in different]

    def _changed_since(self) -> set[int]:
        """What seemed the same, may be changed by anybody, and has been since, as its counter says."""
        still = [i for i in self._still.numbers if i not in self._owned]
        now = _versions([self._tensors[i] for i in still])
        return {i for i, version in zip(still, now, strict=True) if version != self._versions[i]}


def _gone(name: str) -> NotStorable:
    return NotStorable(
        problem=f"{name} has no memory: its storage was given back, as offloading does, so there is nothing to save.",
        remedy="Save where the weights are in place: after the step that gathers them, or without offloading.",
    )


def _versions(tensors: Iterable[Any]) -> list[int]:
    try:
        return list(map(_VERSION, tensors))
    except RuntimeError:  # tensors made in inference mode count nothing
        return [_UNKNOWN if tensor.is_inference() else tensor._version for tensor in tensors]
