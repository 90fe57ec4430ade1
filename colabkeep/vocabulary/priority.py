"""Threads that work behind a training give way to it."""

from __future__ import annotations

import contextlib
import os
import threading
import time

__all__ = ["FAR", "Breather", "give_way"]

_NICE = 5  # steps of lower priority: training goes first where cores are few

_LOWEST = 19  # setpriority(2)

FAR = 10
"""Steps of lower priority of a thread that hardly needs the interpreter, as one that hashes. Not of others: where cores
are few, one that has it may not get a core for a while, and training waits for it. Beside steps that keep two cores
busy, a save of 500 MB took 1.4 s with all threads at 5, and made steps 1.31 times as long, the longest by 5 ms; with
the one that hashes at 10 it took 3.1 s, 1.07 times and 0.4 ms; with all at 10 3.2 s, 1.13 times and 10 ms (medians of
10)."""


def give_way(steps: int = _NICE) -> None:
    """Lower the priority of the calling thread to `steps` below that of the program's main thread, for good. Where
    there are none per thread, nothing happens."""
    with contextlib.suppress(OSError, AttributeError):  # only Linux has them
        ours = os.getpriority(os.PRIO_PROCESS, os.getpid())  # whoever began with `nice` has less than others already
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(ours + steps, _LOWEST))


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
