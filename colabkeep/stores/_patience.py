"""Trying again, for as long as that is sensible: a bounded number of times, with growing pauses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from colabkeep.vocabulary.errors import StoreUnavailable

__all__ = ["Patience", "Throttled", "within"]

_T = TypeVar("_T")

_TOO_LONG = 300.0  # seconds


class Throttled(StoreUnavailable):
    """The place asks to wait `seconds` before the next try."""

    def __init__(self, *, problem: str, remedy: str, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(problem=problem, remedy=remedy)

    def _fields(self) -> dict[str, Any]:
        return {**super()._fields(), "seconds": self.seconds}


@dataclass(frozen=True, slots=True)
class Patience:
    """Calls something up to `attempts` times while it raises `StoreUnavailable`, and lets the last error out.

    The pauses, in seconds, go from `first` to `longest`; a place that names a pause gets it, up to `longest`: who waits
    for longer (a store behind another one) asks again. One that wants to be left alone for many minutes is. The pauses
    carry no randomness, which would be drawn from the generator that belongs to the training.
    """

    attempts: int = 4
    first: float = 1.0
    longest: float = 30.0
    sleep: Callable[[float], None] = time.sleep

    def __call__(self, call: Callable[[], _T]) -> _T:
        retrying = Retrying(
            stop=stop_after_attempt(self.attempts),
            retry=retry_if_exception(_may_help),
            wait=self._pause,
            sleep=self.sleep,
            reraise=True,
        )
        return retrying(call)

    def _pause(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        named = error.seconds if isinstance(error, Throttled) else 0.0
        grown = wait_exponential(multiplier=self.first, max=self.longest)(state)
        return min(max(named, grown), self.longest)


def _may_help(error: BaseException) -> bool:
    """To ask again within a minute or two: not where that was forbidden, and may count against us."""
    return isinstance(error, StoreUnavailable) and getattr(error, "seconds", 0.0) <= _TOO_LONG


def within(seconds: float, call: Callable[[], _T]) -> _T:
    """What `call` returns or raises, if that comes in time; it goes on, unheard, on a thread of its own if not.

    Raises:
        TimeoutError: it did not come.
    """
    results: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001  # raised by who waits
            errors.append(error)

    thread = threading.Thread(target=run, name="colabkeep-asking", daemon=True)
    thread.start()
    thread.join(seconds)
    for error in errors:
        raise error
    for result in results:
        return result
    raise TimeoutError
