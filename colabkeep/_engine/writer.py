"""One background thread that does one job at a time, and a small chore when it has none."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable

__all__ = ["Writer"]

_NICE = 5  # steps of lower priority for the thread: training goes first where cores are few


class Writer:
    """Runs submitted jobs, one in flight. `chore` is called every `pause` seconds while idle, as long
    as it returns True. Jobs and chores report their own failures; they must not raise."""

    def __init__(self, chore: Callable[[], bool], pause: float = 1.0) -> None:
        self._chore = chore
        self._pause = pause
        self._job: Callable[[], None] | None = None
        self._changed = threading.Condition()  # guards _job, _closing and _thread
        self._closing = False
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """Is a job waiting or running?"""
        return self._job is not None

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
            self._changed.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no job is in flight, at most `timeout` seconds. True when so."""
        with self._changed:
            return self._changed.wait_for(lambda: self._job is None, timeout)

    def close(self) -> None:
        """Finish the job in flight and end the thread. Calling twice is harmless."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _start(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="colabkeep-writer", daemon=True)
            thread.start()
            self._thread = thread

    def _run(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # only Linux has priorities per thread
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        more = True
        while True:
            with self._changed:
                called = self._changed.wait_for(self._called, self._pause if more else None)
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

    def _called(self) -> bool:
        return self._job is not None or self._closing
