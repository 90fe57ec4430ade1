"""Mounting again in the middle of a training, on the one thread that may ask the notebook's page.

A mount that died is met by the thread that copies. It can only leave word here. Between two steps, when the training
hears its next event (that the store is out of order is one), it mounts, which holds it up for a bounded time, and once
in an outage.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from colabkeep.vocabulary.errors import ColabKeepError
from colabkeep.vocabulary.events import Event, StoreDegraded

__all__ = ["Remounting"]


class Remounting:
    """Hand `ask` to the store, and the whole to the run as an observer. `mount` does nothing where all is well."""

    steps_from = math.inf  # of steps it need not hear

    def __init__(self, mount: Callable[[], object]) -> None:
        self._mount = mount
        self._wanted = False
        self._failure: ColabKeepError | None = None

    def ask(self) -> bool:
        """Mount now, on the main thread (True). On another one it is left to the training (False), and what that came
        to is told when somebody asks again.

        Raises:
            ColabKeepError: it was in vain.
        """
        if threading.current_thread() is threading.main_thread():
            self._mount()
            return True
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        self._wanted = True
        return False

    def __call__(self, event: Event) -> None:
        """Mount, if that was asked for."""
        if isinstance(event, StoreDegraded) and event.healed:
            self._wanted, self._failure = False, None
        if not self._wanted:
            return
        self._wanted = False
        try:
            self._mount()
        except ColabKeepError as error:
            self._failure = error
