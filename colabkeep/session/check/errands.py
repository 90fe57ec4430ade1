"""Questions to the machine that are waited for until one common deadline, whatever hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from colabkeep.vocabulary.clock import Clock

__all__ = ["Errand", "Errands"]

T = TypeVar("T")


class Errand(Generic[T]):
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


class Errands:
    """Collects answers until `patience` seconds have passed since this was made. `untold` has a line for each question
    that has no answer."""

    def __init__(self, clock: Clock, patience: float) -> None:
        self._clock = clock
        self._patience = patience
        self._begun = clock.monotonic()
        self.untold: list[str] = []

    def collect(self, errand: Errand[T] | None, *, by: float = 1.0) -> T | None:
        """The answer; None where there is none, which is noted. `by`: the share of the patience after which it is given
        up, below 1 where other questions need the answer and some time of their own. A question that could not be asked
        (None) has none, either, and the one it hung on is noted already."""
        if errand is None:
            return None
        until = self._begun + by * self._patience
        answers, why = errand.answer(max(0.0, until - self._clock.monotonic()))
        if not answers:
            self.untold.append(f"{errand.what} ({why})")
            return None
        return answers[0]
