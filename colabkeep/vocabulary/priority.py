"""Threads that work behind a training give way to it."""

from __future__ import annotations

import contextlib
import os
import threading
import time

__all__ = ["Breather", "give_way"]

# Steps of lower priority. With all cores busy, a step behind a save of 500 MB takes 1.16 times as long as else, and the
# save 3.3 s; with 5 it is 1.45 times as long, for 1.5 s.
_NICE = 10


def give_way(steps: int = _NICE) -> None:
    """Lower the priority of the calling thread by `steps`, for good. Where there are none per thread, nothing
    happens."""
    with contextlib.suppress(OSError, AttributeError):  # only Linux has them
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), steps)


class Breather:
    """Short rests in work that needs the interpreter, for training to have it.

    Torch lets go of the interpreter in every operation, and a thread that computes in Python then keeps it for 5 ms
    (`sys.getswitchinterval`): a step of many small operations would wait for the whole of the work. Behind a save of
    640 tensors the longest of a training's tiny steps took 4.8 ms more, and 2.0 with these rests; of 4,000 tensors, 25
    and 10 (medians of 40).
    """

    _WORK = 0.2e-3  # seconds
    _REST = 0.05e-3  # seconds: what the system makes of it is about twice that, and enough for the other to wake up

    def __init__(self) -> None:
        self._rested = time.perf_counter()

    def breathe(self) -> None:
        """To be called every few microseconds of such work. Mostly nothing happens."""
        if time.perf_counter() - self._rested > self._WORK:
            time.sleep(self._REST)
            self._rested = time.perf_counter()
