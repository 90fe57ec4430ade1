"""Blocks of memory copied and compared without the interpreter's lock, by a thread and by who cannot wait for it.

`memmove` and `memcmp` are called through ctypes, which lets other threads run meanwhile: one such thread copies as
fast as torch does with two, and leaves the other core to the training.
"""

from __future__ import annotations

import _thread
import atexit
import ctypes
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from colabkeep.vocabulary.priority import give_way

__all__ = ["Move", "Moves", "compares"]

# Bytes: 0.03 to 0.15 ms, the longest that training waits for a piece in other hands. And less than the second cache of
# AMD's cores (512 KiB or 1 MiB): memmove of as much or more was a sixth slower (glibc 2.36 on an EPYC with 1 MiB).
_PIECE = 2**19 - 2**12


def _memcmp() -> Any:
    try:
        found = ctypes.CDLL(None).memcmp
    except (OSError, AttributeError, TypeError):  # no C library under that name: Windows
        return None
    found.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    found.restype = ctypes.c_int
    return found


_MEMCMP = _memcmp()


class Move(NamedTuple):
    """`size` bytes at `source` to be copied to `target`; or, with `compare`, to be found equal to those there."""

    target: int
    source: int
    size: int
    compare: bool = False
    whole: int | None = None  # of a piece, the target of the whole

    def pieces(self) -> list[Move]:
        """The same in pieces small enough for `Moves`."""
        if self.size <= _PIECE:
            return [self]
        starts = range(0, self.size, _PIECE)
        return [
            Move(self.target + at, self.source + at, min(_PIECE, self.size - at), self.compare, self.target)
            for at in starts
        ]


class Moves:
    """Moves under way, all of them `Move.pieces`. `urgent` ones are those that `hurry` must see done; `rest` may take
    longer.

    The blocks must stay where they are until `wait` or `stop` has returned. A move that is broken off (an interrupt
    between two pieces) leaves `complete` false for ever. A process that is forked meanwhile has no such thread, and
    waits for none.
    """

    def __init__(self, urgent: Iterable[Move], rest: Iterable[Move] = ()) -> None:
        self._urgent = deque(urgent)
        self._rest = deque(rest)
        self._expected = len(self._urgent) + len(self._rest)
        self._urgent_expected = len(self._urgent)
        self._done: deque[bool] = deque()  # one for each piece: appending is atomic
        self._urgent_done: deque[bool] = deque()
        self._different: deque[int] = deque()  # targets of the moves whose bytes differ
        # Of the thread, once there is one: it has no urgent piece in its hands any more; it has ended.
        self._idle: threading.Event | None = None
        self._over: threading.Event | None = None
        self._turn = threading.Lock()  # taken once: by the thread that begins, or by who finds that none could
        self._process = os.getpid()
        self.busy = 0.0  # seconds that the urgent moves kept a core busy

    @property
    def complete(self) -> bool:
        """Was every piece of every move done?"""
        return len(self._done) == self._expected

    @property
    def urgent_complete(self) -> bool:
        """Was every piece of the urgent moves done?"""
        return len(self._urgent_done) == self._urgent_expected

    @property
    def different(self) -> set[int]:
        """The targets of compared blocks that were found to differ."""
        return set(self._different)

    def start(self, then: Callable[[], None] = lambda: None) -> None:
        """Let a thread do the moves. It calls `then` when no urgent one is left to begin with.

        The thread ends by itself; the interpreter waits for it before it goes. Where no thread is to be had, the
        caller does the moves.
        """
        if not self._expected:
            then()
            return
        atexit.register(self.wait)
        try:
            self._idle, self._over = idle, over = threading.Event(), threading.Event()
            # Thread.start() waits until the thread runs, which takes milliseconds where all cores are busy.
            _thread.start_new_thread(self._run, (then, idle, over))
        except BaseException as error:
            if self._turn.acquire(blocking=False):  # an interrupt may come when the thread has begun
                self._idle = self._over = None
            if not isinstance(error, RuntimeError):
                raise
            self._work(self._rest)
            self.hurry()
            then()

    def stop(self) -> None:
        """Return when nothing is moved any more; what had not begun is left undone."""
        self._urgent.clear()
        self._rest.clear()
        self.wait()

    def hurry(self) -> None:
        """Return when the urgent moves are done; the caller does its share of them."""
        began = time.perf_counter()
        self._work(self._urgent, self._urgent_done)
        helped = time.perf_counter() - began
        if not self.urgent_complete and self._idle is not None and self._process == os.getpid():
            self._idle.wait()
        self.busy += helped

    def wait(self) -> None:
        """Return when the thread has ended."""
        if self._over is not None and self._process == os.getpid():
            self._over.wait()
        atexit.unregister(self.wait)

    def run(self) -> None:
        """Do all moves on the calling thread."""
        self._work(self._urgent, self._urgent_done)
        self._work(self._rest)

    def _run(self, then: Callable[[], None], idle: threading.Event, over: threading.Event) -> None:
        if not self._turn.acquire(blocking=False):
            return  # who started it was interrupted, and has given the memory back
        give_way()
        try:
            try:
                self._work(self._urgent, self._urgent_done)
            finally:
                self.busy += time.thread_time()
                idle.set()
            then()
            self._work(self._rest)
        finally:
            over.set()

    def _work(self, pieces: deque[Move], counted: deque[bool] | None = None) -> None:
        while True:
            try:
                target, source, size, compare, whole = pieces.popleft()
            except IndexError:
                return
            if not compare:
                ctypes.memmove(target, source, size)
            elif _MEMCMP is None or _MEMCMP(target, source, size):
                self._different.append(target if whole is None else whole)
            self._done.append(True)
            if counted is not None:
                counted.append(True)


def compares() -> bool:
    """Can blocks be compared here? Where not, each counts as different."""
    return _MEMCMP is not None
