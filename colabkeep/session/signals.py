"""Being asked to stop: Ctrl-C (the notebook's stop button) and SIGTERM become a request that the loop
honours at its next safe place. A second Ctrl-C stops at once, as it would without colabkeep."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import FrameType
from typing import Any, TypeVar

__all__ = ["StopRequests"]

_Value = TypeVar("_Value")
_END = object()


class StopRequests:
    """Watches SIGINT and SIGTERM between `install` and `remove`, if called on the main thread.

    Three things can be under way when a signal comes. In a step it becomes a request, which waits for the step's end.
    In the wait for a batch (`at_once`), which may never end, nothing has to be finished first: it is honoured then.
    In the last save (`leave`) it waits for the end of that, and `abandoned` tells that somebody would not wait.
    """

    def __init__(self) -> None:
        self.requested: signal.Signals | None = None
        self.abandoned = False
        self._handlers: list[_Handler] = []
        self._waits = False  # for a batch
        self._leaving: Callable[[signal.Signals], None] | None = None

    def install(self) -> None:
        """Begin to watch. Elsewhere than on the main thread Python allows no handlers: nothing is watched."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            before: Any = _living(signal.getsignal(number))
            # Ignored signals (nohup) stay ignored; handlers that are not Python's cannot be put back.
            if before not in (signal.SIG_IGN, None):
                handler = _Handler(number, self._on_signal, before)
                self._handlers.append(handler)
                signal.signal(number, handler)

    def remove(self) -> None:
        """Watch no more; the handlers that were there are in force again. Calling twice is harmless.

        A handler that somebody else has put on top of ours stays where it is, and ours passes on what it hands down.
        """
        while self._handlers:
            self._handlers.pop().end()

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

    def between(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The same batches. While the next one is waited for, whoever asks to stop is obeyed at once: the last step
        is finished, and a worker that hangs would never let the loop come to a boundary.

        Raises:
            KeyboardInterrupt, SystemExit: as `honour`.
        """
        fetch = partial(next, iter(batches), _END)
        while (batch := self.at_once(fetch)) is not _END:
            yield batch

    def at_once(self, wait: Callable[[], _Value]) -> _Value:
        """What `wait` returns; while that is waited for, whoever asks to stop is obeyed at once.

        Raises:
            KeyboardInterrupt, SystemExit: as `honour`.
        """
        self._waits = True  # first: what comes after the look below is honoured by the handler
        try:
            if self.requested is not None:
                self.honour()
            return wait()
        finally:
            self._waits = False

    def leave(self, said: Callable[[signal.Signals], None]) -> None:
        """The last save begins, and is not broken off for a first request. `said` is called for that one, perhaps in
        the middle of anything else on this thread: it may note something and nothing more."""
        self._leaving = said
        if self.requested is not None:
            said(self.requested)

    def _on_signal(self, number: int) -> None:
        again, self.requested = self.requested is not None or self.abandoned, signal.Signals(number)
        if self._leaving is None:
            if again or self._waits:
                self.honour()
        elif not again:
            self._leaving(self.requested)
        elif number == signal.SIGINT:  # whoever sends SIGTERM twice sends SIGKILL next, and means no hurry by it
            self.abandoned = True
            self.honour()


class _Handler:
    """What is installed for one signal, on top of the handler `before`."""

    def __init__(self, number: signal.Signals, receive: Callable[[int], None], before: Any) -> None:
        self._number = number
        self._receive: Callable[[int], None] | None = receive
        self._process = os.getpid()
        self._spared = False  # a child, the first Ctrl-C
        self.before = before

    @property
    def dead(self) -> bool:
        return self._receive is None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._receive is None:
            self._pass_on(number, frame)
        elif os.getpid() == self._process:
            self._receive(number)
        elif number == signal.SIGTERM or self._spared:
            # A forked child has this handler too, and no training: `Pool.terminate` must end it.
            self._pass_on(number, frame)
        else:
            # Terminals and notebooks send Ctrl-C to all: the trainer decides what the step under way still needs.
            self._spared = True

    def end(self) -> None:
        """Let go of the run. Its place is given up if nobody is on top, and if this thread may do that."""
        self._receive = None
        top: Any = signal.getsignal(self._number)
        if top is self and threading.current_thread() is threading.main_thread():
            signal.signal(self._number, _living(self.before))

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        before = _living(self.before)
        if callable(before):
            before(number, frame)
        else:
            signal.signal(number, before)
            os.kill(os.getpid(), number)


def _living(handler: Any) -> Any:
    """The handler itself, or what was there before those whose run is over."""
    while isinstance(handler, _Handler) and handler.dead:
        handler = handler.before
    return handler
