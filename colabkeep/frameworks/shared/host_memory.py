"""Host memory of a capture: how much there is, lent to one snapshot at a time, filled in pieces by all cores, and
frozen tensors proven by checksums instead of copied.
"""

from __future__ import annotations

import _thread
import builtins
import ctypes
import hashlib
import mmap
import os
import re
import tempfile
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from colabkeep.core.state import HostTensor, Tree
from colabkeep.core.system import Environment

__all__ = [
    "LARGE",
    "LET_GO",
    "READS",
    "Captures",
    "Complete",
    "Frozen",
    "HostCopy",
    "MappedFile",
    "MemoryRoom",
    "Owner",
    "Part",
    "Proof",
    "Reader",
    "Resting",
    "container_limits",
    "copy_pairs",
    "first_touch",
    "large_ones",
    "mapped_file",
    "memory_room",
    "move_if_different",
]

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


def container_limits(environment: Environment) -> Iterator[tuple[int, int]]:
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


class MemoryRoom(NamedTuple):
    """Bytes: what can be taken without swapping, what there is in all, and what can be swapped out."""

    available: int
    total: int
    swap: int


def memory_room(environment: Environment) -> MemoryRoom | None:
    """What the machine has to give now, or the narrowest of its containers if that has less; None if nobody tells.

    Pages that nobody has touched yet are not missing in these figures.
    """
    told = re.findall(r"^(\w+): +([0-9]{1,15}) kB$", environment.text("/proc/meminfo"), re.MULTILINE)
    facts = {name: int(kilobytes) * 1024 for name, kilobytes in told}
    if not {"MemAvailable", "MemTotal"} <= facts.keys():
        return None
    room = MemoryRoom(facts["MemAvailable"], facts["MemTotal"], facts.get("SwapFree", 0))
    machine = room.total  # a group without a limit tells more than that
    for limit, used in container_limits(environment):
        if limit < machine:
            room = MemoryRoom(min(room.available, max(0, limit - used)), min(room.total, limit), 0)
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

    @staticmethod
    def size_for(sizes: Iterator[int]) -> int:
        """How large it must be for parts of these sizes, in bytes."""
        return sum(map(_aligned, sizes))


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


# BLAKE2b, 256 bits: nobody finds two texts with the same one. It needs no instructions of its own to be quick, unlike
# SHA-256, which takes twice the time on processors without them.
#
# Memory is read by a call to the kernel, which answers that it is not there where a plain read would end the process
# (process_vm_readv(2), from Linux 3.2 on; a container may forbid it).


_SUMMED = 2**20  # bytes: read and summed while they are in the second cache


class _Extent(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _readv() -> Any:
    try:
        call = ctypes.CDLL(None).process_vm_readv
    except (OSError, AttributeError, TypeError):  # not Linux
        return None
    extent = ctypes.POINTER(_Extent)
    call.argtypes = (ctypes.c_int, extent, ctypes.c_ulong, extent, ctypes.c_ulong, ctypes.c_ulong)
    call.restype = ctypes.c_ssize_t
    return call


_READV = _readv()


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


def _memcmp() -> Any:
    try:
        found = ctypes.CDLL(None).memcmp
    except (OSError, AttributeError, TypeError):  # no C library under that name: Windows
        return None
    found.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    found.restype = ctypes.c_int
    return found


_MEMCMP = _memcmp()


class Owner(Protocol):
    """Of memory that blocks are copied to."""

    new: bool
    """Are its bytes other than those that it was seen with last?"""


class HostCopy:
    """Blocks that are copied unless their target has these very bytes; then its owner is not `new`."""

    def __init__(self) -> None:
        self._blocks: list[tuple[Owner, int, int, int]] = []

    def add(self, owner: Owner, target: int, source: int, size: int) -> None:
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


def first_touch(blocks: Iterable[tuple[int, int]]) -> None:
    """Write zeros to (address, size): the first touch of fresh memory takes several times the copy that follows."""
    blocks = list(blocks)
    pieces = ((at + start, min(_PIECE, size - start)) for at, size in blocks for start in range(0, size, _PIECE))
    jobs = deque[Job](partial(ctypes.memset, at, 0, size) for at, size in pieces)
    _share(jobs, sum(size for _, size in blocks), lambda: None)


def move_if_different(owner: Owner, target: int, source: int, size: int) -> None:
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


# Most of the time of a restore is the first touch of fresh memory, and that goes on in parallel: 336 MB of moments took
# 0.10 s in one thread and 0.03 s in two on a warm machine of two cores, ten times that on a cold one.


LARGE = 2**20
"""Bytes; below, handing a copy to another thread costs more than the copy."""

_THREADS = 2  # free notebooks have two cores

Target = TypeVar("Target")
Source = TypeVar("Source")


def copy_pairs(
    pairs: Sequence[tuple[Target, Source]], copy: Callable[[Target, Source], object], large: Callable[[Target], bool]
) -> None:
    """Call `copy` for each pair, in parallel for those whose target is `large`."""
    big = [pair for pair in pairs if large(pair[0])]
    if len(big) < 2:
        big = []
    done = {id(target) for target, _ in big}
    if big:
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="colabkeep-restore") as pool:
            list(pool.map(copy, *zip(*big, strict=True)))
    for target, source in pairs:
        if id(target) not in done:
            copy(target, source)


def large_ones(tree: Tree) -> Iterator[HostTensor]:
    """The large tensors in the containers of a tree, each once; not those inside tagged values."""
    seen: set[int] = set()
    todo: list[Iterable[Tree]] = [[tree]]
    while todo:
        for node in todo.pop():
            if isinstance(node, HostTensor):
                if node.data.nbytes >= LARGE and id(node) not in seen:
                    seen.add(id(node))
                    yield node
            elif isinstance(node, dict):
                todo.append(chain(node.keys(), node.values()))
            elif isinstance(node, (list, tuple)):
                todo.append(node)


Copies_contra = TypeVar("Copies_contra", contravariant=True)


class Part(Protocol[Copies_contra]):
    """The tensors of one part of a run, for the copies of a capture."""

    def add_to(self, copies: Copies_contra) -> None:
        """Have copied what is to be copied."""
        ...

    def prove(self, reader: Reader) -> bool:
        """The copies are made: has all that was not copied the bytes that are stored?"""
        ...

    def renew(self) -> None:
        """Show what is new as new."""
        ...

    def stored(self) -> None:
        """The snapshot is stored."""
        ...


class Complete:
    """A capture, and the snapshot it becomes. `finish` does what is `rest`; `keep` hears that it is stored.

    As a context, it takes the staging memory back if filling the trees fails.
    """

    def __init__(self, owner: Captures) -> None:
        self._owner = owner
        self.trees: dict[str, Tree] = {}
        self.rest: Callable[[], object] = _nothing
        self.keep: Callable[[], object] = _nothing
        self.remark = ""

    @property
    def parts(self) -> dict[str, Tree]:
        """The trees, by part."""
        return self.trees

    def finish(self) -> Complete:
        """The snapshot, which is this object.

        Raises:
            Stale: as `Capture.finish`.
        """
        try:
            self.rest()
        except BaseException:
            self.release()
            raise
        return self

    def stored(self) -> None:
        """A checkpoint holds it."""
        self.keep()

    def release(self) -> None:
        """The memory may be reused."""
        self._owner.take_back(self)

    def __enter__(self) -> Complete:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self.release()


class Captures:
    """Knows whether the staging memory is lent out."""

    def __init__(self) -> None:
        self._lent: Complete | None = None

    @property
    def lent(self) -> bool:
        """Is there a snapshot that was not released?"""
        return self._lent is not None

    def begin(self) -> Complete:
        """A new capture, to be filled.

        Raises:
            RuntimeError: the snapshot before has not been released; its memory would change under its reader.
        """
        if self._lent is not None:
            raise RuntimeError("capture() was called while the snapshot before it is in use; release() it first")
        self._lent = Complete(self)
        return self._lent

    def take_back(self, snapshot: Complete) -> None:
        """The snapshot is released. A late second call does not take a newer one's memory."""
        if self._lent is snapshot:
            self._lent = None


def _nothing() -> None:
    """All is copied already."""


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


class FrozenSlot(Protocol):
    """Of the copy of a frozen tensor: a slot."""

    proof: Proof | None
    restless: bool

    @property
    def size(self) -> int:
        """Bytes of the tensor."""
        ...

    @property
    def address(self) -> int:
        """Where its copy is."""
        ...


class Sum(Protocol):
    """A checksum on its way from a device."""

    @property
    def bytes(self) -> builtins.bytes | None:
        """It has come; None if it was lost."""
        ...


Slot = TypeVar("Slot", bound=FrozenSlot)


class Frozen(NamedTuple):
    """A frozen tensor at a capture. Its memory is held, so that nobody else is given it meanwhile."""

    address: int
    version: int | None
    held: object
    landing: Sum | None = None
    """Of a device, where its checksum comes to."""


class Resting(Generic[Slot]):
    """The frozen tensors of one part. One capture is `begin`, `rests` for each, `prove`; then `stored`, if it is."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A capture begins."""
        self._resting: list[tuple[Slot, Frozen]] = []  # not copied, to be proven
        self._copied: list[tuple[Slot, Frozen]] = []  # will rest
        self._proofs: list[tuple[Slot, Proof]] = []

    def rests(self, slot: Slot, frozen: Frozen, *, recalled: bool) -> bool:
        """Does it seem to be as it is stored? It is proven later then; else it is to be copied now."""
        known = slot.proof is not None and slot.proof[:2] == frozen[:2] and not recalled
        (self._resting if known else self._copied).append((slot, frozen))
        return known

    def prove(self, reader: Reader) -> bool:
        """The copies are made, and training goes on: has all that was not copied the bytes that are stored?"""
        wrong = [slot for slot, frozen in self._resting if not _is_as_stored(slot, frozen, reader)]
        for slot in wrong:
            slot.restless = True
        self._proofs = [(slot, _proof(slot, frozen, reader)) for slot, frozen in self._copied]
        self._resting, self._copied = [], []  # their memory is the user's alone again
        return not wrong

    def stored(self) -> list[tuple[Slot, Proof]]:
        """The snapshot is stored: what rests from now on, with its proof."""
        proofs, self._proofs = self._proofs, []
        return proofs


def _is_as_stored(slot: FrozenSlot, frozen: Frozen, reader: Reader) -> bool:
    now = reader.checksum(frozen.address, slot.size) if frozen.landing is None else frozen.landing.bytes
    return slot.proof is not None and now is not None and now == slot.proof.checksum


def _proof(slot: FrozenSlot, frozen: Frozen, reader: Reader) -> Proof:
    """That of the copy, which is what is stored."""
    checksum = reader.checksum(slot.address, slot.size) if frozen.landing is None else frozen.landing.bytes
    return Proof(frozen.address, frozen.version, checksum)
