"""Epochs that are timed: those of a loop by hand, and those of `resumable_fit`, its display on."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from measuring import Figure, figure

import colabkeep
from colabkeep.core.events import EpochDone, Event, RunStarted, SaveCommitted

__all__ = ["MANY", "Turns", "compared", "fitting", "in_turn", "saves", "terminal"]

MANY = 40
"""Epochs of half a second: so long that it is saved as `save_every="auto"` saves, some 15 seconds apart."""

Span = tuple[float, float]
"""(wall, CPU) seconds, the second ones of the training thread."""


class Turns(NamedTuple):
    """What epochs by hand and epochs of ours took, all of them together; and how many saves the second ones hold."""

    hand: Span
    ours: Span
    saves: int


def fitting(model: Any, data: Any, optimizer: Any, loss_fn: Any, **words: Any) -> Callable[[Any], None]:
    """`resumable_fit` from the beginning, as a user calls it in a terminal, with one observer."""

    def fit(observer: Any) -> None:
        with terminal():
            colabkeep.resumable_fit(
                model,
                data,
                optimizer=optimizer,
                loss_fn=loss_fn,
                run_name="epochs",
                resume="never",
                keep_last=1,
                callbacks=[observer],
                **words,
            )

    return fit


def in_turn(by_hand: Callable[[], object], fit: Callable[[Any], object]) -> Turns:
    """What all epochs took but the first, which warms up: those by hand, and those of `fit`, which gets an observer.

    After each epoch of the fit, and before the save that its end takes, one epoch by hand is run: a machine that
    becomes slower does so for both, and what a save costs is all the fit's.
    """
    took: list[tuple[Span, Span, int]] = []
    began, saved = _now(), 0

    def turn(event: Event) -> None:
        nonlocal began, saved
        if type(event) is SaveCommitted:
            saved += 1
        if type(event) is EpochDone:
            middle = _now()
            by_hand()
            took.append((_span(middle, _now()), _span(began, middle), saved))
            saved = 0
        if type(event) in (RunStarted, EpochDone):
            began = _now()

    observer: Any = turn
    observer.steps_from = math.inf  # it does not want to hear of steps
    fit(observer)
    hand, ours, saves = zip(*took[1:], strict=True)
    return Turns(_sum(hand), _sum(ours), sum(saves))


def _now() -> Span:
    return time.perf_counter(), time.thread_time()


def _span(start: Span, end: Span) -> Span:
    return end[0] - start[0], end[1] - start[1]


def _sum(spans: Sequence[Span]) -> Span:
    return sum(wall for wall, _ in spans), sum(cpu for _, cpu in spans)


def compared(name: str, turns: Sequence[Turns], goal: float | None = 1.02) -> list[Figure]:
    """Epochs by hand beside epochs of ours."""
    wall, cpu = ([turn.ours[clock] / turn.hand[clock] for turn in turns] for clock in (0, 1))
    return [
        figure(f"{name}: epochs of resumable_fit", "times by hand", wall, goal=goal),
        figure(f"{name}: … in CPU time of the training thread", "times by hand", cpu),
    ]


def saves(name: str, turns: Sequence[Turns]) -> Figure:
    """How many saves those epochs hold: what none was made in says nothing of their cost."""
    return figure(f"{name}: … saves in these epochs", "saves", [turn.saves for turn in turns])


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
