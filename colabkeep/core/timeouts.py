"""Calls that may never return, waited for with an end: one call alone, or many until one common deadline.

Each runs in a daemon thread. A call into a dead mount or a stuck driver cannot be ended, so it is left behind, and does
not hold up the end of the process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from colabkeep.core.system import Clock

T = TypeVar("T")
U = TypeVar("U")
_POLL_SECONDS = 1.0


class TimedCall(Generic[T]):
    """One question, asked in a thread of its own from the moment this is made."""

    def __init__(self, what: str, work: Callable[[], T]) -> None:
        self.what = what
        self._work = work
        self._over = threading.Event()
        self._answers: list[T] = []
        self._error: BaseException | None = None
        try:
            threading.Thread(target=self._run, name="colabkeep-call", daemon=True).start()
        except RuntimeError as error:  # this process may have no more threads
            self._error = error
            self._over.set()

    def _run(self) -> None:
        try:
            self._answers.append(self._work())
        except BaseException as error:  # noqa: BLE001  # told to whoever waits, also where a package ends the program
            self._error = error
        finally:
            self._over.set()

    def wait(self, seconds: float) -> bool:
        """Is it over, in `seconds` at most?"""
        return self._over.wait(seconds)

    def result(self) -> T:
        """What it returned or raised, once it is over."""
        if self._error is not None:
            raise self._error
        return self._answers[0]

    def answer(self, seconds: float) -> tuple[list[T], str]:
        """The answer as a list of one, after waiting `seconds` at most; or an empty list, and why there is none."""
        if not self.wait(seconds):
            return [], "no answer in time"
        if self._error is not None:
            return [], f"{type(self._error).__name__}: {' '.join(str(self._error).split())}"
        return self._answers, ""


def within(
    seconds: float,
    work: Callable[[], T],
    *,
    moved: Callable[[], float] = lambda: 0.0,
    monotonic: Callable[[], float] = time.monotonic,
) -> T:
    """What `work` returns or raises. `moved` is when there was progress last, as `monotonic` counts.

    Raises:
        TimeoutError: nothing has moved for `seconds`.
    """
    started, call = monotonic(), TimedCall("", work)
    while not call.wait(min(_POLL_SECONDS, seconds)):
        if monotonic() - max(started, moved()) > seconds:
            raise TimeoutError(f"no answer for {seconds:g} seconds")
    return call.result()


def within_or(seconds: float, work: Callable[[], T], *, otherwise: U) -> T | U:
    """What `work` returns; `otherwise` where it raises, takes longer, or no thread can be started for it."""
    answers, _ = TimedCall("", work).answer(seconds)
    return answers[0] if answers else otherwise


class TimedCalls:
    """Collects answers until `patience` seconds have passed since this was made. `untold` has a line for each question
    that has no answer."""

    def __init__(self, clock: Clock, patience: float) -> None:
        self._clock = clock
        self._patience = patience
        self._begun = clock.monotonic()
        self.untold: list[str] = []

    def collect(self, timed_call: TimedCall[T] | None, *, by: float = 1.0) -> T | None:
        """The answer; None where there is none, which is noted. `by`: the share of the patience after which it is given
        up, below 1 where other questions need the answer and some time of their own. A question that could not be asked
        (None) has none, either, and the one it hung on is noted already."""
        if timed_call is None:
            return None
        until = self._begun + by * self._patience
        answers, why = timed_call.answer(max(0.0, until - self._clock.monotonic()))
        if not answers:
            self.untold.append(f"{timed_call.what} ({why})")
            return None
        return answers[0]
