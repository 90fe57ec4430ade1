"""An end to waiting for a library that waits for ever, or longer than there is time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["within"]

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
