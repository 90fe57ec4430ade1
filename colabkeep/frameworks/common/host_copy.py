"""Blocks of host memory copied while training stands still: in pieces, by this machine's cores together.

`memmove` and `memcmp` are called through ctypes, which lets go of the interpreter, and each core takes the next piece
when it is done with one. Torch's own threads share a copy out beforehand: where loader workers had one of two cores,
its copy of 500 MB took eight times as long with two threads as with one, and this one less than with one.
"""

from __future__ import annotations

import _thread
import ctypes
import os
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

__all__ = ["HostCopy", "Owner", "first_touch", "move_if_different"]

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
