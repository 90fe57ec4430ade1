"""The thread that publishes: soon after the first object, then every so often, and at once when somebody waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from colabkeep.stores._patience import Throttled
from colabkeep.stores.kaggle.pace import Pace
from colabkeep.vocabulary.errors import ColabKeepError

__all__ = ["Publisher"]

_STOP_SECONDS = 10.0
_MOST_DOUBLINGS = 30


class Publisher:
    """Calls `publish` in a daemon thread, which is started by the first change.

    A failure is tried again after a pause that grows, or that Kaggle names; `trouble` says what it was until it is
    over. All that changes is guarded by `_state`.
    """

    def __init__(
        self, publish: Callable[[], None], pace: Pace, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._publish = publish
        self._pace = pace
        self._monotonic = monotonic
        self._state = threading.Condition()
        self._thread: threading.Thread | None = None
        self._changes = 0  # counted from the beginning
        self._urgent = 0  # the last one that a version is made for
        self._done = 0  # the last one that is published
        self._due: float | None = None  # when the next version is to be made, as `monotonic`
        self._not_before = 0.0  # what holds for those who wait, too
        self._failures = 0  # in a row
        self._waiting = 0
        self._hurry = False  # the next attempt is wanted now
        self._closed = False
        self.trouble: str | None = None

    def changed(self, *, urgent: bool = True) -> None:
        """There is something to publish. What is not `urgent` goes along with the next version, or when one waits."""
        with self._state:
            self._changes += 1
            if urgent:
                self._urgent = self._changes
                self._due = self._due or self._monotonic() + self._pace.first
                self._start()
            self._state.notify_all()

    def wait(self, timeout: float) -> bool:
        """Publish now, not when it is due; True once everything is published, False after `timeout` seconds."""
        with self._state:
            self._waiting, self._hurry = self._waiting + 1, True
            try:
                if self._changes > self._done:
                    self._start()
                self._state.notify_all()
                self._state.wait_for(lambda: self._closed or self._changes == self._done, timeout)
                return self._changes == self._done
            finally:
                self._waiting -= 1

    def close(self, stop: Callable[[], None]) -> None:
        """End the thread. `stop` makes what it is doing fail."""
        with self._state:
            self._closed = True
            self._state.notify_all()
            thread = self._thread
        stop()
        if thread is not None:
            thread.join(_STOP_SECONDS)

    def _start(self) -> None:
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._work, name="colabkeep-kaggle", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        upto = self._next()
        while upto is not None:
            try:
                self._publish()
            except Exception as error:  # noqa: BLE001  # told by `trouble`, and tried again
                self._failed(error)
            else:
                self._succeeded(upto)
            upto = self._next()

    def _next(self) -> int | None:
        """Wait until a version is to be made; returns the changes it will have, None at the end."""
        with self._state:
            while not self._closed:
                asked = self._waiting > 0 or self._hurry
                wanted = self._changes > self._done and (asked or self._urgent > self._done)
                due = self._not_before if asked else max(self._due or 0.0, self._not_before)
                pause = due - self._monotonic()
                if wanted and pause <= 0:
                    self._hurry = False
                    return self._changes
                self._state.wait(pause if wanted else None)
            return None

    def _succeeded(self, upto: int) -> None:
        with self._state:
            self._done, self._failures, self.trouble = upto, 0, None
            self._due = self._monotonic() + self._pace.every
            self._state.notify_all()

    def _failed(self, error: Exception) -> None:
        with self._state:
            grown = min(self._pace.retry * 2.0**self._failures, self._pace.every)
            named = error.seconds if isinstance(error, Throttled) else 0.0
            self._failures = min(self._failures + 1, _MOST_DOUBLINGS)
            self._due = self._monotonic() + max(grown, named)
            self._not_before = self._monotonic() + max(min(grown, self._pace.retry), named)
            self.trouble = error.problem if isinstance(error, ColabKeepError) else f"{type(error).__name__}: {error}"
