"""The alarm that ends Colab's calls ends them whatever they do, and leaves no trace."""

from __future__ import annotations

import contextlib
import signal
import threading
import time

import pytest

from colabkeep.platforms.colab.page import TooLate, deadline

BOUND = 30.0  # seconds; several times what any of these may take


@pytest.fixture(autouse=True)
def _no_timer_of_the_test_runner():
    """pytest-timeout keeps its own alarm; it is put aside, and what is left of it put back."""
    handler = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    timer = signal.setitimer(signal.ITIMER_REAL, 0)
    yield
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, *timer)


def sleep() -> None:
    time.sleep(BOUND)


def wait_for_a_lock() -> None:
    threading.Event().wait(BOUND)


def ignore_everything_that_is_an_exception() -> None:
    while True:
        with contextlib.suppress(Exception):
            time.sleep(BOUND)


def swallow_the_first() -> None:
    try:
        time.sleep(BOUND)
    except:  # noqa: E722  as careless clean-up code does
        time.sleep(BOUND)


@pytest.mark.parametrize("work", [sleep, wait_for_a_lock, ignore_everything_that_is_an_exception, swallow_the_first])
def test_whatever_waits_is_ended(work):
    """A sleep, a lock, a loop that ignores exceptions, clean-up code that swallows the alarm once."""
    with pytest.raises(TooLate), deadline(0.05):
        work()
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_what_is_quick_is_not_touched():
    """The result comes out, the alarm is off, and the handler is the one that was there."""

    def mine(*_):
        raise AssertionError("nobody rang")

    signal.signal(signal.SIGALRM, mine)
    with deadline(BOUND):
        result = sum(range(10))
    assert result == 45
    assert signal.getsignal(signal.SIGALRM) is mine
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_an_error_inside_is_the_error_outside():
    """And the alarm is off after it too."""
    with pytest.raises(ZeroDivisionError), deadline(BOUND):
        raise ZeroDivisionError
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_timer_of_the_program_goes_on_afterwards():
    """A user's own alarm rings later, with his handler and his interval, and not never."""
    level = []
    signal.signal(signal.SIGALRM, lambda *_: level.append(True))
    signal.setitimer(signal.ITIMER_REAL, 100.0, 7.0)
    with deadline(BOUND):
        assert signal.getitimer(signal.ITIMER_REAL)[0] <= BOUND
    left, interval = signal.getitimer(signal.ITIMER_REAL)
    assert (100.0 - BOUND < left <= 100.0, interval) == (True, 7.0)

    signal.setitimer(signal.ITIMER_REAL, 0.01)
    with deadline(BOUND):
        time.sleep(0.1)
        assert level == []
    end = time.monotonic() + BOUND
    while not level and time.monotonic() < end:
        time.sleep(0.01)
    assert level == [True]
