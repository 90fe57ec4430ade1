"""A deadline for calls that cannot be run on another thread.

Colab's own calls wait for the browser on the main thread and must stay there, so nobody can give them up from
outside. An alarm signal can: their waiting is done in Python (googlecolab/colabtools, `_message.py` polls every
25 ms, and pexpect waits on a queue; 2026-04), and a signal handler runs in between.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["TooLate", "deadline"]

_AGAIN = 1.0  # seconds; an alarm that fell into somebody's `except:` is followed by another
_AT_ONCE = 1e-6  # seconds; 0 would switch the timer off
_ASKING = frozenset({"blocking_request", "read_reply_from_input"})
"""The functions of `google.colab._message` in which the page's answer is waited for."""


class TooLate(BaseException):
    """The time is up. No `Exception`, for the code that waits ignores those while it reads its messages. `answered`:
    the page's answer was there, and what followed took too long."""

    answered = False


@contextmanager
def deadline(seconds: float, *, afterwards: float = 0.0) -> Iterator[None]:
    """Raise `TooLate` out of the block after `seconds` of real time. Main thread only.

    `afterwards`: so many seconds more where the page's answer is not waited for any more, so that `seconds` are the
    user's alone. A timer of the program's own (`signal.setitimer`) is held up meanwhile and goes on afterwards with
    what was left.
    """
    armed, more, began = True, afterwards, time.monotonic()

    def ring(_: int, frame: FrameType | None) -> None:
        nonlocal more
        if not armed:
            return
        late = TooLate()
        late.answered = afterwards > 0.0 and not _asks(frame)
        if late.answered and more > 0.0:
            signal.setitimer(signal.ITIMER_REAL, more, _AGAIN)
            more = 0.0
            return
        raise late

    handler = signal.signal(signal.SIGALRM, ring)
    theirs, interval = signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
    try:
        yield
    finally:
        try:
            armed = False
        finally:  # also when the alarm rang on the line before
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler or signal.SIG_DFL)
            if theirs:
                signal.setitimer(signal.ITIMER_REAL, max(theirs - (time.monotonic() - began), _AT_ONCE), interval)


def _asks(frame: FrameType | None) -> bool:
    """Is the page's answer being waited for, somewhere in this stack of calls?"""
    while frame is not None:
        if frame.f_code.co_name in _ASKING:
            return True
        frame = frame.f_back
    return False
