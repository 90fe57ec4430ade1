"""Processes that are killed while they work.

::

    def train(say):
        say("step", 1)

    with Life(train) as life:
        for message in life.messages(within=10):
            if message == ("step", 1):
                life.kill()

Importing torch or Paddle costs a second or two, a fork 10 ms. The price: the process that calls this must have no
other threads, and must never have computed with more than one: call `torch.set_num_threads(1)` first. With Paddle it
must not have read from a `paddle.io.DataLoader` either, other than through colabkeep: the threads that fill Paddle's
buffer are not there in a fork, and the next loader waits for them for ever (seen with 3.3.1). Nor may its threads have
freed tensors of Paddle: one that ends takes a lock of Paddle's count of memory, and a fork in that moment waits for it
for ever (likewise).
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import select
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Protocol, TypeAlias

__all__ = ["Life", "Message", "Say"]

Message: TypeAlias = tuple[Any, ...]
"""What was said: JSON-able values, at most 4 KiB of them."""


class Say(Protocol):
    """Hands a message to the process that watches; from any thread, and it is there also after a kill."""

    def __call__(self, *words: Any) -> None: ...


class Life:
    """One forked process that does `work(say)`. Use it as a context manager: at the end the process is gone."""

    def __init__(self, work: Callable[[Say], None]) -> None:
        self._reader, writer = os.pipe()
        sys.stdout.flush()  # what is buffered must not be written twice
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._reader)
            _work(work, writer)
        os.close(writer)
        self._heard: deque[Message] = deque()
        self._rest = b""
        self._closed = False
        self.status: int | None = None
        """The exit status, negative for a signal; None while it lives."""

    def messages(self, *, within: float) -> Iterator[Message]:
        """What it says, as it says it, for at most `within` seconds, until it has ended.

        After its end comes what it had said and nobody had read. May be left and called again.
        """
        end = time.monotonic() + within
        while not self._closed or self._heard:
            left = max(0.0, end - time.monotonic())
            if self._heard:
                yield self._heard.popleft()
            elif self.status is None and left == 0:
                return
            elif select.select([self._reader], [], [], left if self.status is None else 0)[0]:
                self._listen()
            elif self.status is not None:  # loader workers that outlive it for a moment keep the pipe open
                return

    def show(self) -> None:
        """Have it print on stderr where each of its threads is, if it lives."""
        if self.status is None:
            os.kill(self.pid, signal.SIGUSR2)
            time.sleep(0.5)  # it writes that in its own time

    def kill(self) -> None:
        """SIGKILL, now."""
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            self._end()

    def __enter__(self) -> Life:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        os.close(self._reader)

    def _listen(self) -> None:
        data = os.read(self._reader, 1 << 16)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._heard += (tuple(json.loads(line)) for line in lines)
        if not data:
            self._closed = True
            self._end()

    def _end(self) -> None:
        if self.status is None:
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _work(work: Callable[[Say], None], writer: int) -> None:
    def say(*words: Any) -> None:
        os.write(writer, json.dumps(words).encode() + b"\n")  # one call: whole, for it is shorter than PIPE_BUF

    faulthandler.register(signal.SIGUSR2, file=sys.__stderr__)
    gc.freeze()  # of the parent; each session looks through all that the collector knows
    status = 1
    try:
        work(say)
        status = 0
    except BaseException:  # noqa: BLE001  # nothing of the parent's program may run in this process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
