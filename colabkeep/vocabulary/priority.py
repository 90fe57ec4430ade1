"""Threads that work behind a training give way to it."""

from __future__ import annotations

import contextlib
import os
import threading

__all__ = ["give_way"]

_NICE = 5  # steps of lower priority: training goes first where cores are few


def give_way(steps: int = _NICE) -> None:
    """Lower the priority of the calling thread by `steps`, for good. Where there are none per thread, nothing
    happens."""
    with contextlib.suppress(OSError, AttributeError):  # only Linux has them
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), steps)
