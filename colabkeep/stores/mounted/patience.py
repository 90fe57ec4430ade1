"""How long a call waits for a mount that does not answer, and what is said meanwhile.

An outage begins when a call gave up, and ends when one succeeds. Within one, calls do not wait: training's saves must
not be held up by seconds each for as long as the mount is away.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from colabkeep.vocabulary.clock import Clock
from colabkeep.vocabulary.errors import ColabKeepError, StoreUnavailable

__all__ = ["Patience", "Remount"]

_T = TypeVar("_T")

_MEANS = "What Drive does not have yet is on this machine only, and would be lost with it; training goes on."
_REMEDY = (
    "It often comes back by itself. If it does not within some minutes: stop this cell, run  import colabkeep; "
    "colabkeep.mount()  in a cell of its own, and run this cell again. Nothing is lost by that."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remount:
    """A call that mounts again. Colab's own asks the browser through the kernel, which only works, and only without
    taking another's answer, on the main thread (googlecolab/colabtools `_message.py`, 2026-04): so `in_background`
    is False unless said otherwise. A call that returns False has left it to another thread: it is made again."""

    call: Callable[[], object]
    in_background: bool = False


class Patience:
    """Calls work that may raise `StoreUnavailable`, again after each of `pauses` (seconds), and mounts once in between.

    `trouble` is the sentence for the user while an outage lasts, else None.
    """

    def __init__(self, url: str, clock: Clock, pauses: tuple[float, ...], remount: Remount | None) -> None:
        self._url = url
        self._clock = clock
        self._pauses = pauses
        self._remount = remount
        self._tried: str | None = None  # what mounting again came to, in this outage
        self._guard = threading.Lock()
        self.trouble: str | None = None

    def __call__(self, work: Callable[[], _T], *, again: Callable[[], bool] = lambda: True, quick: bool = False) -> _T:
        """What `work` returns. `again`: may it be tried again? `quick`: do not wait.

        Raises:
            StoreUnavailable: the mount does not answer.
        """
        pauses = iter(() if quick or self.trouble is not None else self._pauses)
        while True:
            try:
                result = work()
            except StoreUnavailable as error:
                if not again():
                    raise
                pause = next(pauses, None)
                if pause is not None:
                    self._clock.sleep(pause)
                elif not self._mounted_again():
                    self.trouble = self._sentence(error.problem)
                    raise StoreUnavailable(problem=error.problem, remedy=_REMEDY) from error
            else:
                self.trouble = self._tried = None
                return result

    def _mounted_again(self) -> bool:
        """Mount, if that was not tried in this outage and may be tried on this thread. True when it is worth a try."""
        if self._remount is None:
            return False
        if not (self._remount.in_background or threading.current_thread() is threading.main_thread()):
            return False
        with self._guard:
            if self._tried is not None:
                return False
            self._tried = ""
        try:
            done = self._remount.call()
        except Exception as error:  # noqa: BLE001  # whatever a platform's own call raises is shown to the user
            said = error.problem if isinstance(error, ColabKeepError) else f"{type(error).__name__}: {error}"
            self._tried = f" Mounting it again failed: {said}"
            return False
        if done is False:
            self._tried = None
            return False
        return True

    def silent(self, seconds: float) -> str:
        """For the user, of a call that has not come back for so long."""
        return f"{self._url} has not answered for more than {seconds:.0f} seconds. {_MEANS} {_REMEDY}"

    def _sentence(self, problem: str) -> str:
        return f"{self._url} cannot be reached. {_MEANS} {_REMEDY} ({problem}{self._tried or ''})"
