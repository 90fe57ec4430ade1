"""Being asked to stop: Ctrl-C (the notebook's stop button) and SIGTERM become a request that the loop
honours at its next safe place. A second Ctrl-C stops at once, as it would without colabkeep."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

__all__ = ["StopRequests"]


class StopRequests:
    """Watches SIGINT and SIGTERM between `install` and `remove`, if called on the main thread."""

    def __init__(self) -> None:
        self.requested: signal.Signals | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def install(self) -> None:
        """Begin to watch. Elsewhere than on the main thread Python allows no handlers: nothing is watched."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            # Ignored signals (nohup) stay ignored; handlers that are not Python's cannot be put back.
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                self._previous[number] = signal.signal(number, self._on_signal)

    def remove(self) -> None:
        """Put the handlers back that were there. Calling twice is harmless."""
        while self._previous:
            number, handler = self._previous.popitem()
            signal.signal(number, handler)

    def honour(self) -> None:
        """Leave now: raise what the request means to the rest of the program.

        Raises:
            KeyboardInterrupt: for SIGINT.
            SystemExit: with status 143 for SIGTERM, as a shell reports it.
        """
        request, self.requested = self.requested, None
        if request == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + signal.SIGTERM)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        again = self.requested is not None
        self.requested = signal.Signals(number)
        if again:
            self.honour()
