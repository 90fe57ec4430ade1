"""Asking a library that may never answer."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypeVar

__all__ = ["within"]

T = TypeVar("T")
U = TypeVar("U")


def within(seconds: float, work: Callable[[], T], *, otherwise: U) -> T | U:
    """What `work` returns; `otherwise` where it raises, takes longer, or no thread can be started for it.

    A thread that is stuck in a driver cannot be ended: it is left behind, and ends with the process.
    """
    answers: SimpleQueue[T | U] = SimpleQueue()

    def run() -> None:
        answer: T | U = otherwise
        try:
            answer = work()
        except BaseException:  # noqa: BLE001, S110  a broken package may do anything, even end its thread (SystemExit)
            pass
        finally:
            answers.put(answer)

    try:
        Thread(target=run, name="colabkeep-hardware", daemon=True).start()
        return answers.get(timeout=seconds)
    except (RuntimeError, Empty):
        return otherwise
