"""The memory that a run's tensors are copied to: the best kind that the machine has to spare.

    ordinary      where there is enough
    a file        of this machine's disk, mapped into memory: where even one ordinary copy would get the process killed
                  (Colab's 12.7 GB beside a T4 of 15 GB; a model that is trained on the CPU and takes 60 % of memory)

A kind is chosen for all tensors of a plan at once, before the first of them is allocated.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Protocol

import torch

from colabkeep.frameworks.common.room import MappedFile, MemoryRoom, mapped_file, memory_room
from colabkeep.vocabulary.environment import Environment
from colabkeep.vocabulary.errors import MemoryFull

__all__ = ["FILE", "ORDINARY", "HostMemory", "Lent"]

ORDINARY, FILE = "ordinary", "file"

_RESERVE = 0.1  # of the machine's memory stays available beside ours: what training takes at its peaks
_LARGE = 2**20  # bytes; less than that is not worth a decision
_SMALLEST_FILE = 2**26  # bytes: few files, for each takes one of a process's 1024 descriptors
_PROMISED = 4  # times what was promised here: other runs of this process may be promised as much, unseen


class Lent(Protocol):
    """Who holds memory of ours: a slot."""

    memory: torch.Tensor
    kind: str
    touched: bool
    """Has it been written to: are its pages there?"""


class HostMemory:
    """Gives host memory, and keeps count of what it gave: the system counts pages only once they are touched, so a
    hundred tensors would each be told that there is room."""

    def __init__(self, environment: Environment | None = None) -> None:
        self._environment = environment or Environment.here()
        self._lent: weakref.WeakSet[Lent] = weakref.WeakSet()
        self._file: MappedFile | None = None
        self._filed = False  # is memory taken of the file?
        self._short = False
        self._touches = False
        self._word: str | None = None
        self.recalled = False  # are bytes that were let go of needed once more?

    def expect(self, tensors: Iterable[torch.Tensor], held: Iterable[Lent] = ()) -> None:
        """New memory for copies of `tensors` will be asked for, and what is `held` be let go: choose of what kind.

        Raises:
            MemoryFull: there is room neither in memory nor on the disk.
        """
        self._word = None
        sizes = {id(tensor): _size(tensor) for tensor in tensors}.values()
        size = sum(sizes) - sum(lent.memory.nbytes for lent in held if lent.kind != FILE)
        if size < _LARGE:
            return
        room = memory_room(self._environment)
        if room is None:
            return
        promised = sum(lent.memory.nbytes for lent in self._lent if _is_promised(lent))
        left, reserve = room.available - promised, _RESERVE * room.total
        self._touches = room.available - _PROMISED * (promised + size) < reserve
        short = left - size < reserve
        self._filed = short and self._has_file(MappedFile.size_for(iter(sizes)))
        self._short = short and not self._filed
        if self._short and left + room.swap < size:
            raise _no_room(size, room)

    def take(self, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> tuple[torch.Tensor, str]:
        """Memory for a copy of such a tensor, and its kind."""
        places = 0 if 0 in shape else sum((n - 1) * step for n, step in zip(shape, stride, strict=True)) + 1
        part = self._file.take(places * dtype.itemsize) if self._file is not None and self._filed and places else None
        if part is None:
            return torch.empty_strided(shape, stride, dtype=dtype, device="cpu"), ORDINARY
        return torch.frombuffer(part, dtype=torch.uint8).view(dtype).as_strided(shape, stride), FILE

    def note(self, lent: Lent) -> None:
        """What `take` gave is `lent`'s, as long as that lives."""
        if self._touches and lent.kind == ORDINARY:
            lent.memory.zero_()  # from here on the system counts it, for other runs of this process too
            lent.touched = True
        self._lent.add(lent)

    def take_back(self, lent: Lent) -> None:
        """It is lent no more."""
        self._lent.discard(lent)

    def recall(self) -> None:
        """All is to be copied at the next capture. Any thread may call it."""
        self.recalled = True

    @property
    def remark(self) -> str:
        """A clause on the memory, if it is not the best."""
        if self._word is None:
            self._word = self._clause()
        return self._word

    def _has_file(self, need: int) -> bool:
        """Is there a file with so much room, the one in use if it can be?"""
        if self._file is None or self._file.left < need:
            self._file = mapped_file(self._environment, max(_SMALLEST_FILE, need))
        return self._file is not None

    def _clause(self) -> str:
        if filed := sum(lent.memory.nbytes for lent in self._lent if lent.kind == FILE):
            return f"memory is short, so {_gigabytes(filed)} of it go to a file on this machine's disk first"
        return "memory is short, and this machine's disk has no room to stand in for it" if self._short else ""


def _size(tensor: torch.Tensor) -> int:
    if torch.nn.parameter.is_lazy(tensor) or tensor.is_nested or tensor.layout is not torch.strided:
        return 0  # refused later, or asked for in parts
    return tensor.nbytes


def _is_promised(lent: Lent) -> bool:
    return lent.kind == ORDINARY and not lent.touched


def _no_room(size: int, room: MemoryRoom) -> MemoryFull:
    return MemoryFull(
        problem=f"The state cannot be copied: {_gigabytes(size)} are needed, {_gigabytes(room.available)} of this "
        "machine's memory are left, and its disk has not three times as much free. Copying it all the same would get "
        "the training killed.",
        remedy="Free disk space (see what takes it: !du -xsh /tmp/* /content/* | sort -h), or choose a machine with "
        "more memory (on Colab: Runtime → Change runtime type → High-RAM). Nothing was changed.",
    )


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.3g} GB"
