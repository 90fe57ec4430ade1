"""Host memory of a capture: how much there is, filled in pieces by all cores; and frozen tensors proven by checksums
instead of copied.
"""

from __future__ import annotations

import _thread
import ctypes
import hashlib
import mmap
import os
import re
import tempfile
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from colabkeep.core.errors import MemoryFull
from colabkeep.core.system import Environment

# Linux limits them by control groups, which lie in each other; the narrowest counts. Source: kernel.org, "Control Group
# v2" and "Memory Resource Controller" (version 1).


class _Version(NamedTuple):
    """Where a version of control groups keeps its figures, and what they are called."""

    folder: str
    controller: str  # as /proc/self/cgroup names it
    limit: str
    usage: str
    cached: tuple[str, ...]
    unwritten: tuple[str, ...]


_VERSIONS = (
    _Version(
        "/sys/fs/cgroup",
        "",
        "memory.max",
        "memory.current",
        ("active_file", "inactive_file"),
        ("file_dirty", "file_writeback"),
    ),
    _Version(
        "/sys/fs/cgroup/memory",
        "memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_active_file", "total_inactive_file"),
        ("total_dirty", "total_writeback"),
    ),
)


def _container_limits(environment: Environment) -> Iterator[tuple[int, int]]:
    """Of each group that has a limit: this, and what it uses but for files that the kernel can drop at once."""
    for version in _VERSIONS:
        for folder in _groups(environment, version):
            most, used = (environment.text(f"{folder}/{name}", 64).strip() for name in (version.limit, version.usage))
            if most.isdecimal() and used.isdecimal():
                yield int(most), int(used) - _droppable(environment.text(f"{folder}/memory.stat"), version)


def _groups(environment: Environment, version: _Version) -> Iterator[str]:
    """The folders of our own group and of those around it, as far as they are mounted; the outermost always."""
    own = PurePosixPath("/")
    for line in environment.text("/proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if version.controller in controllers.split(",") and ".." not in PurePosixPath(path).parts:
            own = PurePosixPath("/", path)
    for group in (own, *own.parents):
        yield f"{version.folder}{group}".rstrip("/")


def _droppable(stat: str, version: _Version) -> int:
    """Bytes of cached files, read once or often, but for what must be written first."""
    told = {name: int(size) for name, size in re.findall(r"^(\w+) ([0-9]{1,18})$", stat, re.MULTILINE)}
    cached, unwritten = (sum(told.get(name, 0) for name in names) for names in (version.cached, version.unwritten))
    return max(0, cached - unwritten)


# Linux tells; of other systems nothing is known, and they swap.


_FOLDERS = ("/var/tmp", "/tmp")  # noqa: S108  # files without a name are made there; the first is kept off memory
_ELSEWHERE = ("tmpfs", "ramfs", "nfs", "cifs", "smb", "fuse")  # beginnings of kinds: in memory, or behind a network
_LEFT_FREE = 2  # times the file: the checkpoints that are made of it go to a disk too, mostly to this one
_ALIGNED = 64  # bytes, as torch aligns what it allocates


class FreeMemory(NamedTuple):
    """Bytes: what can be taken without swapping, what there is in all, and what can be swapped out."""

    available: int
    total: int
    swap: int


def free_memory(environment: Environment) -> FreeMemory | None:
    """What the machine has to give now, or the narrowest of its containers if that has less; None if nobody tells.

    Pages that nobody has touched yet are not missing in these figures.
    """
    told = re.findall(r"^(\w+): +([0-9]{1,15}) kB$", environment.text("/proc/meminfo"), re.MULTILINE)
    facts = {name: int(kilobytes) * 1024 for name, kilobytes in told}
    if not {"MemAvailable", "MemTotal"} <= facts.keys():
        return None
    room = FreeMemory(facts["MemAvailable"], facts["MemTotal"], facts.get("SwapFree", 0))
    machine = room.total  # a group without a limit tells more than that
    for limit, used in _container_limits(environment):
        if limit < machine:
            room = FreeMemory(min(room.available, max(0, limit - used)), min(room.total, limit), 0)
    return room


class MappedFile:
    """Memory whose pages the kernel can write out to a file: one without a name, gone with the process.

    What is taken of it keeps it alive; when all of that is gone, so is the file.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._untouched: mmap.mmap | None = memory  # until something is taken of it
        self._memory = weakref.ref(memory)
        self._taken = 0

    @property
    def left(self) -> int:
        """Bytes that can be taken still."""
        memory = self._memory()
        return 0 if memory is None else len(memory) - _aligned(self._taken)

    def take(self, size: int) -> memoryview | None:
        """The next `size` bytes, aligned; None if it has not so many."""
        memory, start = self._memory(), _aligned(self._taken)
        if memory is None or start + size > len(memory):
            return None
        self._taken, self._untouched = start + size, None
        return memoryview(memory)[start : self._taken]


def mapped_file(environment: Environment, size: int) -> MappedFile | None:
    """`size` bytes in a file on this machine's own disk; None where there is no room for it and for checkpoints."""
    for folder in _FOLDERS:
        place = environment.path(folder)
        if _kind(environment, place).startswith(_ELSEWHERE):
            continue
        try:
            space = os.statvfs(place)
            if space.f_bavail * space.f_frsize < (1 + _LEFT_FREE) * size:
                continue
            with tempfile.TemporaryFile(dir=place) as file:
                # All of it at once: a page that finds the disk full later would end the process (SIGBUS).
                os.posix_fallocate(file.fileno(), 0, size)
                return MappedFile(mmap.mmap(file.fileno(), size))
        except OSError:  # not there, not ours to write to, or filled by somebody else meanwhile: the next folder
            continue
    return None


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _kind(environment: Environment, place: Path) -> str:
    """The kind of file system that `place` lies on, wherever links lead; "" if nobody tells."""
    root, real = os.path.realpath(environment.root), os.path.realpath(place)
    folder = "/" + os.path.relpath(real, root) if Path(real).is_relative_to(root) else real
    found = ("", "")
    for line in environment.text("/proc/mounts").splitlines():
        fields = line.split()
        if len(fields) > 2 and f"{folder}/".startswith(f"{fields[1].rstrip('/')}/") and len(fields[1]) >= len(found[0]):
            found = fields[1], fields[2]
    return found[1]


_RESERVE = 0.1  # of the machine's memory stays available beside ours: what training takes at its peaks
_DECIDED = 2**20  # bytes; less than that is not worth a decision
_SMALLEST_FILE = 2**26  # bytes: few files, for each takes one of a process's 1024 descriptors
_BLOCK = 2**16  # bytes: from here on, pages of its own


class HostMemory:
    """Gives the memory that tensors are copied to: ordinary where there is enough, else that of a file on this
    machine's disk, where one ordinary copy would get the process killed (Colab's 12.7 GB beside a T4 of 15 GB).

    Ordinary memory is written to at once, for the system counts pages only then, and no save shall wait for them. What
    is `late` is left alone: it is written to behind training.
    """

    def __init__(self, environment: Environment | None = None) -> None:
        self._environment = environment or Environment.here()
        self._file: MappedFile | None = None
        self._filed = False  # is memory taken of the file?
        self.remark = ""
        """A clause, if it is not the best memory."""
        self.recalled = False
        """Are bytes that were let go of needed once more?"""
        self._late = 0  # bytes that the system does not count yet

    def expect(self, sizes: Iterable[int]) -> None:
        """Memory of these sizes will be taken next: choose of what kind.

        Raises:
            MemoryFull: there is room neither in memory nor on the disk.
        """
        sizes = list(sizes)
        size = sum(sizes)
        room = free_memory(self._environment) if size >= _DECIDED else None
        if room is None:
            return
        need, room = sum(map(_aligned, sizes)), room._replace(available=room.available - self._late)
        self._filed = room.available - size < _RESERVE * room.total and self._has_file(need)
        if self._filed:
            self.remark = f"memory is short, so {_gigabytes(size)} of it go to a file on this machine's disk first"
        elif room.available + room.swap < size:
            raise _no_room(size, room)
        elif room.available - size < _RESERVE * room.total:
            self.remark = "memory is short, and this machine's disk has no room to replace it"

    def take(self, size: int, *, late: bool = False) -> memoryview:
        """So many bytes, as long as somebody holds them."""
        part = self._file.take(size) if self._file is not None and self._filed else None
        if part is not None or size < _BLOCK:
            return memoryview(bytearray(size)) if part is None else part
        memory = memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        if late:
            self._late += size
        else:
            _first_touch(address_of(memory), size)
        return memory

    def captured(self) -> None:
        """All is being copied: what was let go of, too, and to what is late."""
        self.recalled, self._late = False, 0

    def recall(self) -> None:
        """All is to be copied at the next capture. Any thread may call it."""
        self.recalled = True

    def _has_file(self, need: int) -> bool:
        """Is there a file with so much room, the one in use if it can be?"""
        if self._file is None or self._file.left < need:
            self._file = mapped_file(self._environment, max(_SMALLEST_FILE, need))
        return self._file is not None


def address_of(memory: memoryview) -> int:
    """Where it begins."""
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(memory)) if memory.nbytes else 0


def _no_room(size: int, room: FreeMemory) -> MemoryFull:
    return MemoryFull(
        problem=f"The state cannot be copied: {_gigabytes(size)} are needed, {_gigabytes(room.available)} of this "
        "machine's memory are left, and its disk has not three times as much free. Copying it anyway would get "
        "the training killed.",
        remedy="Free disk space (see what takes it: !du -xsh /tmp/* /content/* | sort -h), or choose a machine with "
        "more memory (on Colab: Runtime → Change runtime type → High-RAM). Nothing was changed.",
    )


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.3g} GB"


# BLAKE2b, 256 bits: nobody finds two texts with the same one. It needs no instructions of its own to be quick, unlike
# SHA-256, which takes twice the time on processors without them.
#
# Memory is read by a call to the kernel, which answers that it is not there where a plain read would end the process
# (process_vm_readv(2), from Linux 3.2 on; a container may forbid it).


_SUMMED = 2**20  # bytes: read and summed while they are in the second cache


class _Extent(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _of_c(name: str, result: Any, *arguments: Any) -> Any:
    """A function of the C library; None where it has none of that name: on Windows, or not on Linux."""
    try:
        found = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError, TypeError):
        return None
    found.argtypes, found.restype = arguments, result
    return found


_EXTENTS = (ctypes.POINTER(_Extent), ctypes.c_ulong)
_READV = _of_c("process_vm_readv", ctypes.c_ssize_t, ctypes.c_int, *_EXTENTS, *_EXTENTS, ctypes.c_ulong)


class Reader:
    """Reads memory of this process piece by piece."""

    def __init__(self) -> None:
        self._buffer = (ctypes.c_ubyte * _SUMMED)()
        self._bytes = memoryview(self._buffer).cast("B")

    @staticmethod
    def works() -> bool:
        """Can memory be read so here?"""
        probe = ctypes.create_string_buffer(b"here", 4)
        return Reader().checksum(ctypes.addressof(probe), 4) == hashlib.blake2b(b"here", digest_size=32).digest()

    def checksum(self, address: int, size: int) -> bytes | None:
        """That of `size` bytes there; None if there is no such memory any more."""
        if _READV is None:
            return None
        digest = hashlib.blake2b(digest_size=32)
        here, process = ctypes.addressof(self._buffer), os.getpid()
        for start in range(0, size, _SUMMED):
            length = min(_SUMMED, size - start)
            ours, theirs = _Extent(here, length), _Extent(address + start, length)
            if _READV(process, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0) != length:
                return None
            digest.update(self._bytes[:length])
        return digest.digest()


# `memmove` and `memcmp` are called through ctypes, which lets go of the interpreter, and each core takes the next piece
# when it is done with one. Torch's own threads share a copy out beforehand: where loader workers had one of two cores,
# its copy of 500 MB took eight times as long with two threads as with one, and this one less than with one.


_PIECE = 2**21  # bytes: 0.1 to 0.6 ms, the longest that a core is waited for
_GLANCE = 2**12  # bytes: what training has changed differs here already
_SHARED = 2**23  # bytes; for less, another thread begins too late to be of use
_CORES = 4  # a machine's memory is not faster for more

Job = Callable[[], object]


_MEMCMP = _of_c("memcmp", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class HostCopy:
    """Blocks that are copied unless their target has these very bytes; then its owner (a slot) is not `new`."""

    def __init__(self) -> None:
        self._blocks: list[tuple[Any, int, int, int]] = []

    def add(self, owner: Any, target: int, source: int, size: int) -> None:
        """`size` bytes at the address `source`. Both must stay where they are until `run` has returned."""
        self._blocks.append((owner, target, source, size))

    def run(self, meanwhile: Job) -> None:
        """Copy them all. `meanwhile` is done by the calling thread, beside the others."""
        jobs: deque[Job] = deque()
        for owner, target, source, size in self._blocks:
            # First: a copy that is broken off leaves an owner that knows of it.
            owner.new = owner.new or _MEMCMP is None or bool(_MEMCMP(target, source, min(size, _GLANCE)))
            how = ctypes.memmove if owner.new else partial(move_if_different, owner)
            for start in range(0, size, _PIECE):
                jobs.append(partial(how, target + start, source + start, min(_PIECE, size - start)))
        _share(jobs, sum(size for *_, size in self._blocks), meanwhile)


def _first_touch(address: int, size: int) -> None:
    """Write zeros: the first touch of fresh memory takes several times the copy that follows."""
    starts = range(0, size, _PIECE)
    _share(deque(partial(ctypes.memset, address + at, 0, min(_PIECE, size - at)) for at in starts), size, lambda: None)


def move_if_different(owner: Any, target: int, source: int, size: int) -> None:
    """One piece, `size` bytes from the address `source` to `target`."""
    if owner.new or _MEMCMP is None or _MEMCMP(target, source, size):
        owner.new = True
        ctypes.memmove(target, source, size)


def _share(jobs: deque[Job], size: int, meanwhile: Job) -> None:
    """Return when all jobs are done, by the caller and by threads that end with them. An interrupt drops what had not
    begun."""
    over = []
    try:
        for _ in range(min(_cores(), _CORES) - 1 if size >= _SHARED else 0):
            lock = _thread.allocate_lock()
            lock.acquire()
            over.append(lock)
            try:  # Thread.start() would wait until the thread runs, which takes milliseconds where all cores are busy
                _thread.start_new_thread(_help, (jobs, lock))
            except RuntimeError:  # no more threads are to be had
                over.pop()
                break
        meanwhile()
        _work(jobs)
    finally:
        jobs.clear()
        for lock in over:
            lock.acquire()


def _help(jobs: deque[Job], over: Any) -> None:
    try:
        _work(jobs)
    finally:
        over.release()


def _work(jobs: deque[Job]) -> None:
    while True:
        try:
            job = jobs.popleft()
        except IndexError:
            return
        job()


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # only Linux tells which of them are ours
        return os.cpu_count() or 1


# A frozen tensor is copied once. When that is stored, the copy is let go of, and from then on the checksum of all the
# tensor's bytes, taken behind training, says whether they are those that are stored. If they are not, the snapshot is
# stale, and the tensor counts as trained from then on.
#
# Nothing is concluded from version counters: they do not see writes through NumPy, and by much else. One that has moved
# is a reason to copy, no more.


LET_GO = 2**17
"""Bytes; fewer are not worth a proof."""

READS = Reader.works()
"""Can memory be read here that may be given back meanwhile?"""


class Proof(NamedTuple):
    """What tells that a tensor is as it was stored: the checksum of its bytes. The address and the version that it had
    only tell when it is not."""

    address: int
    version: int | None
    checksum: bytes | None


class FrozenTensor(NamedTuple):
    """A frozen tensor at a capture. Its memory is held, so that nobody else is given it meanwhile. `landing`: of a
    device, where its checksum comes to, as `bytes`, None if it was lost."""

    address: int
    version: int | None
    held: object
    landing: Any = None


class FrozenTensors:
    """Those of one part, each with its slot. One capture is `begin`, `as_stored` for each, `prove`; then `stored`, if
    it is."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A capture begins."""
        self._to_prove: list[tuple[Any, FrozenTensor]] = []
        self._copied: list[tuple[Any, FrozenTensor]] = []
        self._proofs: list[tuple[Any, Proof]] = []

    def as_stored(self, slot: Any, frozen: FrozenTensor, *, recalled: bool) -> bool:
        """Does it seem to be as it is stored? It is proven later then; else it is to be copied now."""
        known = slot.proof is not None and slot.proof[:2] == frozen[:2] and not recalled
        known = known or bool(slot.host.referred)  # no copy is of use: its bytes alone say whether it may be named so
        (self._to_prove if known else self._copied).append((slot, frozen))
        return known

    def prove(self, reader: Reader) -> bool:
        """The copies are made, and training goes on: has all that was not copied the bytes that are stored?"""
        wrong = [slot for slot, frozen in self._to_prove if not _is_as_stored(slot, frozen, reader)]
        for slot in wrong:
            slot.restless = True
        self._proofs = [(slot, _proof(slot, frozen, reader)) for slot, frozen in self._copied]
        self._to_prove, self._copied = [], []  # their memory is the user's alone again
        return not wrong

    def stored(self) -> list[tuple[Any, Proof]]:
        """The snapshot is stored: slots whose bytes need not be kept, with their proofs."""
        proofs, self._proofs = self._proofs, []
        return proofs


def _is_as_stored(slot: Any, frozen: FrozenTensor, reader: Reader) -> bool:
    now = reader.checksum(frozen.address, slot.size) if frozen.landing is None else frozen.landing.bytes
    return now is not None and bool(now == slot.proof.checksum)


def _proof(slot: Any, frozen: FrozenTensor, reader: Reader) -> Proof:
    """That of the copy, which is what is stored."""
    checksum = reader.checksum(slot.address, slot.size) if frozen.landing is None else frozen.landing.bytes
    return Proof(frozen.address, frozen.version, checksum)
