"""Calls that may never return, waited for with an end: one call alone, or many until one common deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Generic, TypeVar

from colabkeep.core.system import Clock

__all__ = [
    "TimedCall",
    "TimedCalls",
    "within",
    "within_or",
]

_T = TypeVar("_T")
_POLL_SECONDS = 1.0


def within(
    seconds: float,
    call: Callable[[], _T],
    *,
    moved: Callable[[], float] = lambda: 0.0,
    monotonic: Callable[[], float] = time.monotonic,
) -> _T:
    """What `call` returns or raises, in a thread of its own. `moved` is when there was progress last, as `monotonic`
    counts.

    Raises:
        TimeoutError: nothing has moved for `seconds`. The thread is left to itself; it ends with the process.
    """
    results: list[_T] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - it is raised again by the one who waits
            errors.append(error)
        finally:
            done.set()

    started = monotonic()
    threading.Thread(target=run, name="colabkeep-request", daemon=True).start()
    while not done.wait(min(_POLL_SECONDS, seconds)):
        if monotonic() - max(started, moved()) > seconds:
            raise TimeoutError(f"no answer for {seconds:g} seconds")
    if errors:
        raise errors[0]
    return results[0]


T = TypeVar("T")
U = TypeVar("U")


def within_or(seconds: float, work: Callable[[], T], *, otherwise: U) -> T | U:
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


class TimedCall(Generic[T]):
    """One question, asked in a thread of its own from the moment this is made.

    The thread is a daemon: a call into a dead mount cannot be ended, so it is left behind, and does not hold up
    the end of the process.
    """

    def __init__(self, what: str, work: Callable[[], T]) -> None:
        self.what = what
        self._work = work
        self._over = threading.Event()
        self._answers: list[T] = []
        self._error: BaseException | None = None
        try:
            threading.Thread(target=self._run, name="colabkeep-check", daemon=True).start()
        except RuntimeError as error:  # this process may have no more threads
            self._error = error
            self._over.set()

    def _run(self) -> None:
        try:
            self._answers.append(self._work())
        except BaseException as error:  # noqa: BLE001  # a line of the report, also where a package ends the program
            self._error = error
        finally:
            self._over.set()

    def answer(self, seconds: float) -> tuple[list[T], str]:
        """The answer as a list of one, after waiting `seconds` at most; or an empty list, and why there is none."""
        if not self._over.wait(seconds):
            return [], "no answer in time"
        if self._error is not None:
            return [], f"{type(self._error).__name__}: {' '.join(str(self._error).split())}"
        return self._answers, ""


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
