"""The copies of one capture: collected first, made in one go, on the GPU in stream order, brought to host memory
behind training.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import cycle
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from colabkeep.core.state import Tree
from colabkeep.frameworks.shared import capture
from colabkeep.frameworks.shared.capture import Slot
from colabkeep.frameworks.shared.host_memory import move_if_different

# Each row of 2^18 words of 32 bits is multiplied by as many secret 64-bit numbers, and summed up modulo 2^64:
# multilinear hashing (D. Lemire and O. Kaser, "Strongly universal string hashing is fast", 2014). Of two rows that
# differ, whatever in, the sums are equal with a probability of 2^-33 at most; nothing else is concluded from them. A
# matrix of gigabytes is read once, and as much goes through a buffer of 16 MiB.


_WORDS_OF_A_ROW = 2**18  # of a row
_ROWS = 8  # at a time

cuda: Any = torch.cuda
# Many tensors of a type in one, as DistributedDataParallel does it with what it broadcasts: contiguous, by one call.
flattened: Any = torch._utils._flatten_dense_tensors


def outlives_forks(owner: object) -> None:
    """In a forked child, `owner` and what it holds is never freed, not even as garbage: an event, or page-locked memory
    that a stream has used, ends the process that frees it with SIGABRT, unless it began to use the device itself
    (pytorch/pytorch, c10/cuda/CUDAEvent.h: a destructor that asks the device). So would a loader's worker that collects
    what an earlier training left behind. Seen on an H200 with torch 2.11."""
    os.register_at_fork(after_in_child=partial(_never_freed, weakref.ref(owner)))


def _never_freed(owner: weakref.ref[object]) -> None:
    found = owner()
    if found is not None:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(found))


class Checksums:
    """Those of one device, comparable as long as this object lives."""

    def __init__(self, device: torch.device) -> None:
        generator = torch.Generator(device).manual_seed(int.from_bytes(os.urandom(8), "little", signed=True))
        self._numbers = torch.randint(-(2**63), 2**63 - 1, (_WORDS_OF_A_ROW,), generator=generator, device=device)
        self._ready = cuda.Event()  # the stream that is current may be another one next time
        self._done(device)

    @staticmethod
    def size(nbytes: int) -> int:
        """Bytes of the checksum of so many bytes."""
        return 8 * (-(-(nbytes // 4) // _WORDS_OF_A_ROW) + (nbytes % 4 > 0))

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The checksum of a tensor that is one gapless block."""
        device = tensor.device
        cuda.current_stream(device).wait_event(self._ready)
        data = tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)
        if data.storage_offset() % 4:
            data = data.clone()
        whole = data.numel() // 4
        words, odd = data[: 4 * whole].view(torch.int32), data[4 * whole :]
        found = torch.empty(self.size(data.numel()) // 8, dtype=torch.int64, device=device)
        products = torch.empty((_ROWS, _WORDS_OF_A_ROW), dtype=torch.int64, device=device)
        full = whole // _WORDS_OF_A_ROW
        rows = words[: full * _WORDS_OF_A_ROW].view(full, _WORDS_OF_A_ROW)
        for start in range(0, full, _ROWS):
            self._sum(products, rows[start : start + _ROWS], found[start : min(start + _ROWS, full)])
        for at, rest in ((full, words[full * _WORDS_OF_A_ROW :]), (len(found) - 1, odd)):
            if rest.numel():
                self._sum(products, rest.view(1, -1), found[at : at + 1])
        self._done(device)
        return found

    def _sum(self, products: torch.Tensor, rows: torch.Tensor, found: torch.Tensor) -> None:
        products = products[: rows.shape[0], : rows.shape[1]]
        torch.mul(rows, self._numbers[: rows.shape[1]], out=products)
        torch.sum(products, dim=1, out=found)

    def _done(self, device: torch.device) -> None:
        self._ready.record(cuda.current_stream(device))


#     run     memory of the device, copies and checksums, an event: launched on the stream that training is on, which
#             goes on at once                                                                             training
#   thread
#     bring   a stream of its own waits for that event, and brings piece after piece to page-locked memory, one ahead of
#             the one that goes on to its slot; what has come is given back to the device                   writer
#   thread
#
# What keeps them whole (https://pytorch.org/docs/stable/notes/cuda.html, "CUDA streams", "Use pinned memory buffers"):
# memory taken and given back on training's own stream is used again in that stream's order, and nothing of a copy is
# let go of before the event of its last piece has come. So `record_stream` is not needed.


_PIECE = 2**25  # bytes: 3 ms on the wire, and twice of it is all the page-locked memory that is taken
_GATHERED = 2**20  # bytes: a smaller tensor is gathered with others, for a copy of its own is ten microseconds
_RELAXED = 2  # cudaStreamCaptureModeRelaxed
_MARGIN = 1 / 16  # of a device: what a step may need beyond the peak so far, and what lies in too small pieces
Pair = tuple[Slot, torch.Tensor]


class Landing:
    """Some bytes of a device, to be looked at behind training."""

    def __init__(self, dtype: torch.dtype, size: int) -> None:
        self.new, self.lost = True, False
        self._dtype, self._size = dtype, size
        self._memory = bytearray(size)
        self._view = (ctypes.c_ubyte * size).from_buffer(self._memory)

    @property
    def target(self) -> _Target:
        """Where they go."""
        return _Target(self, ctypes.addressof(self._view), 0, self._size)

    @property
    def bytes(self) -> bytes | None:
        """What has come; None if it was lost."""
        return None if self.lost else bytes(self._memory)

    @property
    def number(self) -> Any:
        """What has come, of one element."""
        return torch.frombuffer(self._memory, dtype=self._dtype).item()


class _Target(NamedTuple):
    """Where bytes of a parcel go: from `start` on, `size` bytes, to an address of `owner`'s."""

    owner: Any  # a slot, or a landing
    address: int
    start: int
    size: int


class _Block(NamedTuple):
    """Bytes of a device on their way, one gapless block."""

    data: torch.Tensor
    targets: Sequence[_Target]


class Devices:
    """What is kept from one capture to the next: two page-locked pieces, and of each device a stream, events, its
    checksums and the peak of the steps so far."""

    def __init__(self) -> None:
        self.remark = ""
        self._peaks: dict[torch.device, int] = {}
        self._pieces: list[torch.Tensor] = []
        self._sides: dict[torch.device, Any] = {}
        self._events: dict[torch.device, Sequence[Any]] = {}
        self._checksums: dict[torch.device, Checksums] = {}
        outlives_forks(self)

    @staticmethod
    def capturing() -> bool:
        """Is a CUDA graph being captured? Nothing may be allocated or waited for then."""
        return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())

    @property
    def pieces(self) -> Sequence[torch.Tensor]:
        """Two of them."""
        if not self._pieces:
            try:
                self._pieces = [_piece(pin_memory=True) for _ in range(2)]
            except RuntimeError:  # the driver has none left: through ordinary memory then, which takes longer
                self._pieces = [_piece(pin_memory=False) for _ in range(2)]
                self.remark = "page-locked memory is not available"
        return self._pieces

    def has_room(self, device: torch.device, size: int) -> bool:
        """Has a device `size` bytes beyond what a step needs at its peak? Where our own copies made the peak, it counts
        as the steps' all the same: nobody could tell."""
        stats = cuda.memory_stats(device)
        peak = max(self._peaks.get(device, 0), stats.get("allocated_bytes.all.peak", 0))  # the user may have reset it
        self._peaks[device] = peak
        free, total = cuda.mem_get_info(device)
        return bool(size <= free + stats.get("reserved_bytes.all.current", 0) - peak - _MARGIN * total)

    def side(self, device: torch.device) -> Any:
        """The stream that brings what is on a device."""
        if device not in self._sides:
            self._sides[device] = cuda.Stream(device)
        return self._sides[device]

    def events(self, device: torch.device) -> Sequence[Any]:
        """Three: that a capture's copies were made in the device's memory, and that each of the two pieces has come."""
        if device not in self._events:
            self._events[device] = [cuda.Event() for _ in range(3)]
        return self._events[device]

    def checksums(self, device: torch.device) -> Checksums:
        """Those of a device."""
        if device not in self._checksums:
            self._checksums[device] = Checksums(device)
        return self._checksums[device]


class DeviceCopy:
    """The copies of one capture."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        self._pairs: dict[torch.device, list[Pair]] = {}
        self._looks: dict[torch.device, list[tuple[Landing, torch.Tensor, bool]]] = {}
        self._blocks: dict[torch.device, deque[_Block]] = {}

    def add(self, slot: Slot, source: torch.Tensor) -> None:
        """One copy."""
        self._pairs.setdefault(source.device, []).append((slot, source))

    def look(self, tensor: torch.Tensor, *, checksum: bool = False) -> Landing:
        """Have the bytes of a small gapless tensor brought, or the checksum of a large one."""
        landing = Landing(tensor.dtype, Checksums.size(tensor.nbytes) if checksum else tensor.nbytes)
        self._looks.setdefault(tensor.device, []).append((landing, tensor, checksum))
        return landing

    def run(self) -> None:
        """Launch everything. Where a device has no room, wait until it is in host memory."""
        for device in {*self._pairs, *self._looks}:
            with cuda.device(device), torch.no_grad():
                blocks = self._looked(device)
                blocks += self._taken(device, self._pairs.get(device, []))
                self._devices.events(device)[0].record(cuda.current_stream(device))
                self._blocks[device] = deque(blocks)
        self._pairs, self._looks = {}, {}

    def finish(self) -> None:
        """Return when all is in host memory. Whatever the device raises is raised here."""
        with _beside_captures():
            for device, blocks in self._blocks.items():
                side = self._devices.side(device)
                side.wait_event(self._devices.events(device)[0])
                with cuda.device(device), cuda.stream(side), torch.no_grad():
                    self._bring(_emptied(blocks), side)

    def _looked(self, device: torch.device) -> list[_Block]:
        blocks = []
        for landing, tensor, checksum in self._looks.get(device, ()):
            try:
                found = self._devices.checksums(device).of(tensor) if checksum else tensor.detach().clone()
                blocks.append(_Block(found.view(-1).view(torch.uint8), [landing.target]))
            except cuda.OutOfMemoryError:
                landing.lost = checksum
                if not checksum:
                    few = _Block(tensor.detach().view(-1).view(torch.uint8), [landing.target])
                    self._bring([few], cuda.current_stream(device))
        return blocks

    def _taken(self, device: torch.device, pairs: Sequence[Pair]) -> list[_Block]:
        """Copies in the device's own memory; none if there was no room and all went to host memory."""
        size = sum(slot.size for slot, _ in pairs)
        if not size:
            return []
        if self._devices.has_room(device, size):
            try:
                return _copied(pairs)
            except cuda.OutOfMemoryError:  # it lies in pieces that are too small, or another program was quicker
                pass
        self._devices.remark = (
            f"the GPU has no room for a copy of {size / 1e9:.2g} GB beside what a step needs, so training waits "
            "until it is in host memory"
        )
        straight = [pair for pair in pairs if _is_flat(*pair)]
        blocks = (_Block(_flat(*pair), [_whole(pair[0])]) for pair in straight)
        self._bring(blocks, cuda.current_stream(device))
        for slot, source in pairs:
            if not _is_flat(slot, source):
                self._bring_span(slot, source)
        return []

    def _bring_span(self, slot: Slot, source: torch.Tensor) -> None:
        """Straight to host memory, what is not in the slot's order: that is made there, for it takes memory."""
        span = 1 + sum(step * (size - 1) for step, size in zip(source.stride(), source.shape, strict=True))
        memory = _seen_as(source, source.detach())
        data = memory.as_strided((span,), (1,)).view(torch.uint8)
        landing = Landing(source.dtype, data.nbytes)
        self._bring([_Block(data, [landing.target])], cuda.current_stream(source.device))
        there = torch.frombuffer(bytearray(landing.bytes or b""), dtype=source.dtype)
        _memory_of(slot, source).copy_(_seen_as(source, there.as_strided(source.shape, source.stride())))
        slot.new = True

    def _bring(self, blocks: Iterable[_Block], stream: Any) -> None:
        """Bring the blocks one by one, on the stream that is current."""
        before: Callable[[], None] | None = None
        pieces = cycle(zip(self._devices.pieces, self._devices.events(stream.device)[1:], strict=True))
        for data, targets in blocks:
            for start in range(0, data.nbytes, _PIECE):
                whole, event = next(pieces)
                piece = whole[: data.nbytes - start]
                piece.copy_(data[start : start + _PIECE], non_blocking=True)
                event.record(stream)
                if before is not None:
                    before()
                before = _Arrival(event, piece, start, data, targets)
        if before is not None:
            before()


class _Arrival:
    """A piece under way: when it has come, it goes on to its slots."""

    def __init__(
        self, event: Any, piece: torch.Tensor, start: int, data: torch.Tensor, targets: Sequence[_Target]
    ) -> None:
        self._event, self._piece, self._start, self._targets = event, piece, start, targets
        self._data = data  # not given back before this has come

    def __call__(self) -> None:
        self._event.synchronize()
        end, here = self._start + self._piece.nbytes, self._piece.data_ptr()
        for owner, address, start, size in self._targets:
            first, last = max(start, self._start), min(start + size, end)
            if first < last:
                move_if_different(owner, address + first - start, here + first - self._start, last - first)


@contextlib.contextmanager
def _beside_captures() -> Iterator[None]:
    """Training may capture a CUDA graph meanwhile. As torch captures by default, a wait for an event on this thread
    would end it with an error, unless the thread says that its calls are none of the graph's
    (https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__STREAM.html, cudaThreadExchangeStreamCaptureMode)."""
    exchange = getattr(ctypes.CDLL(None), "cudaThreadExchangeStreamCaptureMode", None)
    mode = ctypes.c_int(_RELAXED)
    if exchange is not None:  # there is none on ROCm, nor on a simulated device
        exchange(ctypes.byref(mode))
    try:
        yield
    finally:
        if exchange is not None:
            exchange(ctypes.byref(mode))  # what it was


def _copied(pairs: Iterable[Pair]) -> list[_Block]:
    blocks, small = [], dict[torch.dtype, list[tuple[Slot, torch.Tensor]]]()
    for slot, source in pairs:
        # Taken as it is, where torch copies it row by row: each call on the training thread is a microsecond.
        plain = type(source) in _EXACT and source.dtype in _COMMON and slot.form.stride is None and not source.is_neg()
        data = source if plain else _flat(slot, source)
        if slot.size < _GATHERED:
            small.setdefault(data.dtype, []).append((slot, data))
        else:
            own = data.data_ptr() != source.data_ptr()  # a copy in another order was made already
            blocks.append(_Block(data if own else _copy(data), [_whole(slot)]))
    for some in small.values():
        # One block for all small tensors of a type, by one call: where there is one only, that would be no copy.
        whole = _copy(some[0][1]) if len(some) == 1 else flattened([data for _, data in some])
        targets, start = [], 0
        for slot, _ in some:
            targets.append(_Target(slot, slot.address, start, slot.size))
            start += slot.size
        blocks.append(_Block(whole.view(torch.uint8), targets))
    return blocks


# The ordinary types, any number of which torch.cat puts into one tensor on every device; not so some rare ones.
_COMMON = {torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool}


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Its bytes, row by row, in memory of their own."""
    return tensor.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)


def _emptied(blocks: deque[_Block]) -> Iterator[_Block]:
    """Each of them, held nowhere else any more."""
    while blocks:
        yield blocks.popleft()


def _whole(slot: Slot) -> _Target:
    return _Target(slot, slot.address, 0, slot.size)


def _is_flat(slot: Slot, source: torch.Tensor) -> bool:
    """Has the tensor's own memory the order that the slot has?"""
    return not source.is_conj() and not source.is_neg() and (slot.form.stride is not None or source.is_contiguous())


def _seen_as(source: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    """A view with the marks of `source`, conjugate and negative, on it; one that has them loses them."""
    memory = memory.conj() if source.is_conj() else memory
    return torch._neg_view(memory) if source.is_neg() else memory


def _flat(slot: Slot, source: torch.Tensor) -> torch.Tensor:
    """The bytes in the order that the slot has: the tensor's own memory where it is that order."""
    source = source.detach().resolve_conj().resolve_neg()
    flat = source.contiguous().view(-1) if slot.form.stride is None else source.as_strided((source.numel(),), (1,))
    return flat.view(torch.uint8)


def _piece(*, pin_memory: bool) -> torch.Tensor:
    return torch.empty(_PIECE, dtype=torch.uint8, device="cpu", pin_memory=pin_memory)


_EXACT = (torch.Tensor, torch.nn.Parameter)
_LARGE = 2**16  # bytes; from here on a copy is worth more than the microsecond that a block of its own takes


def is_straight(tensor: torch.Tensor, slot: Slot) -> bool:
    """Is it one gapless block of memory, in the very order that its slot has?"""
    return is_gapless(tensor, slot.form.stride)


def is_gapless(tensor: torch.Tensor, stride: tuple[int, ...] | None) -> bool:
    """Is it one gapless block of memory, with these strides (None: row-major)?"""
    return (
        (type(tensor) in _EXACT or is_quantised(tensor))
        and (tensor.is_cpu or tensor.is_cuda)
        and (tensor.is_contiguous() if stride is None else tensor.stride() == stride)
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def is_quantised(tensor: torch.Tensor) -> bool:
    """Is it a weight of bitsandbytes? Its class only adds attributes: its bytes are where any tensor has them."""
    return type(tensor).__module__.startswith("bitsandbytes.")


def _memory_of(slot: Slot, source: torch.Tensor) -> torch.Tensor:
    """The slot's memory as a tensor like `source`."""
    if slot.view is None:
        flat, stride = torch.frombuffer(slot.memory, dtype=torch.uint8).view(source.dtype), slot.form.stride
        slot.view = flat.view(source.shape) if stride is None else flat.as_strided(source.shape, stride)
    view: torch.Tensor = slot.view
    return view


class Copies(capture.Copies):
    """Copies from the live tensors (held here, so that none goes away) to their slots."""

    def __init__(self, devices: Devices) -> None:
        super().__init__()
        self.device = DeviceCopy(devices)
        self._devices = devices
        self._held: list[torch.Tensor] = []
        self._late: list[tuple[dict[str, Tree], str, Landing]] = []
        self._slots: list[Slot] = []
        self._sources: list[torch.Tensor] = []

    @property
    def remark(self) -> str:  # type: ignore[override] # known once they are launched
        return self._devices.remark

    def add(self, slot: Slot, source: torch.Tensor) -> None:
        if not slot.size:
            return
        if source.is_cuda:
            self.device.add(slot, source)
        elif (slot.host.frozen or slot.size >= _LARGE) and is_straight(source, slot):
            self._held.append(source)
            self.host.add(slot, slot.address, source.data_ptr(), slot.size)
        else:
            slot.new = True
            self._slots.append(slot)
            self._sources.append(source)

    def run(self) -> None:
        self.device.run()
        super().run()

    def copy_small(self) -> None:
        super().copy_small()
        places = list(map(_memory_of, self._slots, self._sources))
        with torch.no_grad():
            if places and all(map(attrgetter("is_cpu"), self._sources)):
                torch._foreach_copy_(places, self._sources)  # one call: the loop runs in C++
            else:
                for place, source in zip(places, self._sources, strict=True):
                    place.copy_(source)

    def fill(self, section: dict[str, Tree], numbers: Mapping[str, torch.Tensor]) -> None:
        """Put numbers of a device into a tree, by key, when they have come."""
        self._late += [(section, key, self.device.look(number)) for key, number in numbers.items()]

    def finish(self) -> None:
        self.device.finish()
        for section, key, landing in self._late:
            section[key] = landing.number
        super().finish()
