"""A worker's life hangs on that of the trainer which started it."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing.connection import wait

__all__ = ["die_with_trainer"]

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_trainer() -> None:
    """This worker is killed when the trainer is gone, however that happened.

    Linux does it at once for a direct child, when the *thread* that started it ends: loaders belong to the
    training thread. Else (forkserver, other systems) a thread waits for the end of the pipe that only the
    trainer holds open.
    """
    trainer = multiprocessing.parent_process()
    if trainer is None:
        return
    if sys.platform == "linux" and os.getppid() == trainer.pid:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != trainer.pid:  # it died before the kernel was told
            os.kill(os.getpid(), signal.SIGKILL)
        return
    threading.Thread(target=_die_after, args=(trainer.sentinel,), name="colabkeep-trainer", daemon=True).start()


def _die_after(sentinel: int) -> None:
    wait([sentinel])
    os.kill(os.getpid(), signal.SIGKILL)
