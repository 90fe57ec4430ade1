"""Epochs that are timed: those of a loop by hand, and those of `resumable_fit`, its display on."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from measuring import Figure, figure

from colabkeep.vocabulary.events import EpochDone, Event, RunStarted

__all__ = ["Span", "compared", "marking", "now", "spans", "terminal"]

Span = tuple[float, float]
"""(wall, CPU) seconds, the second ones of the training thread."""


def now() -> Span:
    """This moment, on both clocks."""
    return time.perf_counter(), time.thread_time()


def spans(marks: Sequence[Span]) -> list[Span]:
    """From each mark to the next."""
    return [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(marks)]


def marking(marks: list[Span]) -> Callable[[Event], None]:
    """An observer that notes when the training began, and when each of its epochs was done."""

    def mark(event: Event) -> None:
        if type(event) in (RunStarted, EpochDone):
            marks.append(now())

    observer: Any = mark
    observer.steps_from = math.inf  # it does not want to hear of steps
    return mark


def compared(name: str, pairs: Sequence[tuple[Span, Span]]) -> list[Figure]:
    """Epochs by hand beside epochs of ours."""
    return [
        figure(f"{name}: an epoch of resumable_fit", "times by hand", [b[0] / a[0] for a, b in pairs], goal=1.02),
        figure(f"{name}: … in CPU time of the training thread", "times by hand", [b[1] / a[1] for a, b in pairs]),
    ]


@contextlib.contextmanager
def terminal() -> Iterator[None]:
    """A terminal that somebody reads, so that the display does all it does for a user."""
    reader, writer = os.openpty()

    def read() -> None:
        with contextlib.suppress(OSError):  # the end of a terminal is an error
            while os.read(reader, 4096):
                pass

    thread = threading.Thread(target=read)
    thread.start()
    with os.fdopen(writer, "w") as screen, contextlib.redirect_stdout(screen):
        yield
    thread.join()
    os.close(reader)
