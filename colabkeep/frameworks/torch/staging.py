"""Host memory that torch's tensors are copied to: the best kind the machine has to spare, allocated once and reused."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Protocol

import torch

from colabkeep.core.errors import MemoryFull
from colabkeep.core.state import HostTensor, Tagged, Tree
from colabkeep.core.system import Environment
from colabkeep.frameworks.shared.host_memory import MappedFile, MemoryRoom, Proof, mapped_file, memory_room
from colabkeep.frameworks.shared.trees import SlotCache

__all__ = [
    "FILE",
    "ORDINARY",
    "BorrowedBuffer",
    "HostMemory",
    "Slot",
    "dtype_name",
    "dtype_of",
    "expect_slots",
    "memory_order",
    "plain_name",
    "row_major",
    "slot_leaf",
]

_PAIRS = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip
# An older torch lacks the youngest of them.
_NAMES = {getattr(torch, plain): name for plain, name in _PAIRS.items() if hasattr(torch, plain)}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def dtype_name(dtype: torch.dtype) -> str | None:
    """The safetensors name; None if there is none (complex128, odd floats)."""
    return _NAMES.get(dtype)


def dtype_of(name: str) -> torch.dtype | None:
    """The dtype of a safetensors name or of a plain one ("complex128"); None if this torch has none."""
    found: Any = _DTYPES.get(name) or getattr(torch, name, None)
    return found if isinstance(found, torch.dtype) else None


def plain_name(dtype: torch.dtype | torch.layout | torch.memory_format) -> str:
    """The name without "torch."."""
    return str(dtype).rpartition(".")[2]


#     ordinary      where there is enough
#     a file        of this machine's disk, mapped into memory: where even one ordinary copy would get the process
#   killed
#                   (Colab's 12.7 GB beside a T4 of 15 GB; a model that is trained on the CPU and takes 60 % of memory)
#
# A kind is chosen for all tensors of a plan at once, before the first of them is allocated.


ORDINARY, FILE = "ordinary", "file"

_RESERVE = 0.1  # of the machine's memory stays available beside ours: what training takes at its peaks
_LARGE = 2**20  # bytes; less than that is not worth a decision
_SMALLEST_FILE = 2**26  # bytes: few files, for each takes one of a process's 1024 descriptors
_PROMISED = 4  # times what was promised here: other runs of this process may be promised as much, unseen


class BorrowedBuffer(Protocol):
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
        self._lent: weakref.WeakSet[BorrowedBuffer] = weakref.WeakSet()
        self._file: MappedFile | None = None
        self._filed = False  # is memory taken of the file?
        self._short = False
        self._touches = False
        self._word: str | None = None
        self.recalled = False  # are bytes that were let go of needed once more?

    def expect(self, tensors: Iterable[torch.Tensor], held: Iterable[BorrowedBuffer] = ()) -> None:
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

    def note(self, lent: BorrowedBuffer) -> None:
        """What `take` gave is `lent`'s, as long as that lives."""
        if self._touches and lent.kind == ORDINARY:
            lent.memory.zero_()  # from here on the system counts it, for other runs of this process too
            lent.touched = True
        self._lent.add(lent)

    def take_back(self, lent: BorrowedBuffer) -> None:
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


def _is_promised(lent: BorrowedBuffer) -> bool:
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


# Fresh memory costs seven times the copy in page faults, so a slot lives as long as its tensor keeps its shape.


class Slot:
    """Host memory for one tensor, and the `HostTensor` that shows it.

    With `keep_order` the memory has the tensor's own order of dimensions (channels last, transposed),
    so that the copy is one straight move; `host` then shows the dimensions in that order.
    Otherwise the memory is row-major, which any reader of the file understands.

    `new`: its bytes are others than those that `host` was shown with. `touched`: it has been written to, so its pages
    are there. `proof` is that of a tensor whose bytes are stored and were let go of; one that was proven to be
    `restless` keeps its memory.
    """

    __slots__ = (
        "__weakref__", "device", "dtype", "host", "kind", "memory", "new", "proof", "restless", "shape",
        "source_stride", "stride", "touched",
    )  # fmt: skip

    def __init__(
        self, tensor: torch.Tensor, memory: HostMemory, *, keep_order: bool = False, frozen: bool = False
    ) -> None:
        self.shape, self.source_stride = tensor.shape, tensor.stride()
        self.dtype, self.device = tensor.dtype, tensor.device
        order = memory_order(self.shape, self.source_stride) if keep_order else None
        dims = tuple(self.shape) if order is None else tuple(self.shape[d] for d in order)
        stride = row_major(self.shape) if order is None else self.source_stride
        self.memory, self.kind = memory.take(self.shape, stride, self.dtype)
        kept = self.memory.stride()
        self.stride = None if kept == row_major(self.shape) else kept  # None: those of row-major memory
        self.touched, self.new, self.restless = False, True, False
        self.proof: Proof | None = None
        memory.note(self)
        name = dtype_name(self.dtype)
        if name is None:  # safetensors does not know it: its bytes
            name, dims = "U8", (*dims, self.dtype.itemsize)
        self.host = HostTensor(dtype=name, shape=dims, data=_view(self.memory), frozen=frozen, lasting=True)

    @property
    def size(self) -> int:
        """Bytes of the tensor."""
        return self.host.data.nbytes

    @property
    def address(self) -> int:
        """Where the copy is."""
        return self.memory.data_ptr()

    def show(self, *, frozen: bool) -> None:
        """Show the same memory as trained or frozen from now on."""
        self.host = replace(self.host, frozen=frozen)

    def renew(self) -> None:
        """Show the memory by another object: its bytes are new."""
        self.host = replace(self.host, data=self.host.data)
        self.touched, self.new = True, False

    def let_go(self, proof: Proof, memory: HostMemory) -> None:
        """The bytes are stored, and `proof` tells whether the tensor still has them."""
        self.proof = proof
        self.host.let_go(memory.recall)
        memory.take_back(self)
        self.memory = self.memory.new_empty(0)

    def regain(self, memory: HostMemory) -> None:
        """It is to be copied once more."""
        self.proof, self.touched, self.new = None, False, True
        stride = row_major(self.shape) if self.stride is None else self.stride
        self.memory, self.kind = memory.take(self.shape, stride, self.dtype)
        self.host = replace(self.host, data=_view(self.memory))
        memory.note(self)

    def fits(self, tensor: torch.Tensor) -> bool:
        """Can this slot take the tensor as it is now?"""
        return (
            tensor.shape == self.shape
            and tensor.dtype is self.dtype
            and tensor.stride() == self.source_stride
            and tensor.device == self.device
        )


def slot_leaf(slot: Slot, **details: Tree) -> Tree:
    """The leaf of a slot: bare where the bytes, shape and dtype say all, else tagged with the rest."""
    if dtype_name(slot.dtype) is None:
        details["dtype"] = plain_name(slot.dtype)
    if slot.stride is not None:
        details["stride"] = tuple(slot.stride)
    return Tagged("torch.tensor", {"data": slot.host, **details}) if details else slot.host


def expect_slots(memory: HostMemory, shelf: SlotCache[Slot], wanted: Mapping[str, torch.Tensor]) -> None:
    """Slots for all of these tensors, and no others, will be asked of a shelf that has turned: plan for the new ones.

    Raises:
        MemoryFull: there is no room for them.
    """
    kept = {path for path, slot in shelf.before.items() if path in wanted and slot.fits(wanted[path])}
    new = [tensor for path, tensor in wanted.items() if path not in kept]
    memory.expect(new, [slot for path, slot in shelf.before.items() if path not in kept])


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of gapless memory whose last dimension runs fastest, as torch counts them."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def memory_order(shape: Sequence[int], stride: Sequence[int]) -> list[int] | None:
    """The dimensions from the slowest to the fastest; None if memory has gaps or overlaps.

    The order depends on the strides alone, so that it can be found again without the shape.
    """
    order = sorted(range(len(stride)), key=lambda d: -stride[d])
    step = 1
    for d in reversed(order):
        if shape[d] != 1 and stride[d] != step:
            return None
        step *= shape[d]
    return order if prod(shape) else None


def _view(memory: torch.Tensor) -> memoryview:
    """The bytes of gapless memory. The view keeps the memory alive."""
    size = memory.numel() * memory.element_size()
    if size == 0:
        return memoryview(b"")
    # Not through NumPy: it need not be installed, and has no bfloat16.
    buffer = (ctypes.c_ubyte * size).from_address(memory.data_ptr())
    buffer.memory = memory  # type: ignore[attr-defined]
    return memoryview(buffer).cast("B")
