"""A deadline for calls that cannot be run on another thread.

Colab's own calls wait for the browser on the main thread and must stay there, so nobody can give them up from
outside. An alarm signal can: their waiting is done in Python (googlecolab/colabtools, `_message.py` polls every
25 ms, and pexpect waits on a queue; 2026-04), and a signal handler runs in between.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["TooLate", "deadline"]

_AGAIN = 1.0  # seconds; an alarm that fell into somebody's `except:` is followed by another
_AT_ONCE = 1e-6  # seconds; 0 would switch the timer off


class TooLate(BaseException):
    """The time is up. No `Exception`, for the code that waits ignores those while it reads its messages."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise `TooLate` out of the block after `seconds` of real time. Main thread only.

    A timer of the program's own (`signal.setitimer`) is held up meanwhile and goes on afterwards with what was left.
    """
    armed = True

    def ring(*_: object) -> None:
        if armed:
            raise TooLate

    handler = signal.signal(signal.SIGALRM, ring)
    theirs, interval = signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
    try:
        yield
    finally:
        try:
            armed = False
        finally:  # also when the alarm rang on the line before
            left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler or signal.SIG_DFL)
            if theirs:
                signal.setitimer(signal.ITIMER_REAL, max(theirs - (seconds - left), _AT_ONCE), interval)
