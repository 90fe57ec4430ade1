"""One background thread that does one job at a time, and a small chore when it has none."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from colabkeep.vocabulary.priority import give_way

__all__ = ["Writer"]

_LOOK = 0.2  # seconds between two looks up from waiting: a stop that was asked for is to be answered soon
_STALL = 300.0  # seconds; a disk that lives moves a piece, or ends a sync of some gigabytes at 50 MB/s, in less


class Writer:
    """Runs submitted jobs, one in flight. `chore` is called every `pause` seconds while idle, as long
    as it returns True. Jobs and chores report their own failures; they must not raise.

    Nobody waits for a job in which nothing has moved for `stall` seconds: a disk that hangs would hold the training
    for ever. One that gets on is waited for, however long that takes.
    """

    def __init__(self, chore: Callable[[], bool], pause: float = 1.0, stall: float = _STALL) -> None:
        self._chore = chore
        self._pause = pause
        self._stall = stall
        self._moved_at = time.monotonic()
        self._job: Callable[[], None] | None = None
        self._changed = threading.Condition()  # guards _job, _closing and _thread
        self._closing = False
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """Is a job waiting or running?"""
        return self._job is not None

    @property
    def wanted(self) -> bool:
        """Is there something else to do than a chore?"""
        return self._job is not None or self._closing

    def start(self) -> None:
        """Begin with the chore, before there is any job."""
        with self._changed:
            if not self._closing:
                self._start()

    def submit(self, job: Callable[[], None]) -> None:
        """Run `job` soon. The caller has seen that the writer is not busy."""
        with self._changed:
            if self._job is not None or self._closing:
                raise RuntimeError("the writer is busy or closed")
            self._start()  # raises where no more threads are to be had: then nothing was submitted
            self._job = job
            self.moved()
            self._changed.notify_all()

    def moved(self) -> None:
        """The job in flight gets on: to be called by it, now and then."""
        self._moved_at = time.monotonic()

    def wait(self, timeout: float | None = None, meanwhile: Callable[[], None] = lambda: None) -> bool:
        """Wait until no job is in flight, at most `timeout` seconds, and as long as it moves. True when so.

        `meanwhile` is called now and then."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            with self._changed:
                if self._job is None:
                    return True
                left = min(end, self._moved_at + self._stall) - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(left, _LOOK))
            meanwhile()

    def close(self, meanwhile: Callable[[], None] = lambda: None) -> bool:
        """Finish the job in flight and end the thread. Calling twice is harmless. False when it hangs."""
        self.abandon()
        if self._thread is None:
            return True
        if self.wait(meanwhile=meanwhile):
            self._thread.join(self._stall)
        return not self._thread.is_alive()

    def abandon(self) -> None:
        """Take no more jobs; the thread ends with the one in flight, which nobody waits for."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _start(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="colabkeep-writer", daemon=True)
            thread.start()
            self._thread = thread

    def _run(self) -> None:
        give_way()
        more = True
        while True:
            with self._changed:
                called = self._changed.wait_for(lambda: self.wanted, self._pause if more else None)
                job = self._job
                if job is None and self._closing:
                    return
            if job is None:
                more = self._chore() if not called else more
                continue
            try:
                job()
            finally:
                with self._changed:
                    self._job = None
                    self._changed.notify_all()
            more = True
