"""A service's client in a process of its own, asked over a pipe with a bound on every answer; and the inside of
that process.
"""

from __future__ import annotations

import json
import os
import select
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from colabkeep.core.errors import StoreUnavailable
from colabkeep.core.system import Environment

__all__ = [
    "Process",
    "serve",
]

# For clients that wait without a bound, print, or change the process they run in. What runs there is `serve`.


_STOP_SECONDS = 10.0


class Process:
    """One child, started when something is asked; it ends by itself when nothing is asked for a while.

    One question at a time: other threads wait. `place` and `service` are for messages ("the Kaggle dataset ada/run",
    "Kaggle"), `silent` is the remedy where no answer comes. The child has this process's variables, so that the client
    finds the user's credentials by itself, and `environ` over them, or `environ` alone where `inherits` is False; and
    the packages of this process.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        place: str,
        service: str,
        silent: str,
        environ: Mapping[str, str],
        inherits: bool = True,
    ) -> None:
        self._command = tuple(command)
        self._place = place
        self._service = service
        self._silent = silent
        self._environ = environ
        self._inherits = inherits
        self._turn = threading.Lock()
        self._guard = threading.Lock()  # of the two below
        self.child: subprocess.Popen[bytes] | None = None
        self._closed = False

    def ask(self, doing: str, request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """The child's answer. `doing` completes "could not …".

        Raises:
            StoreUnavailable: there was no answer within `timeout` seconds (the child was killed), or it died.
        """
        line = json.dumps(request).encode() + b"\n"
        with self._turn:
            return self._exchange(line, doing, time.monotonic() + timeout)

    def close(self) -> None:
        """Kill the child, in the middle of whatever it does."""
        with self._guard:
            self._closed = True
            child = self.child
        if child is not None:
            child.kill()  # whoever waits for its answer sees it end, and leaves the turn
            with self._turn:
                self._forget(child)

    def _exchange(self, line: bytes, doing: str, end: float) -> dict[str, Any]:
        for _ in range(2):
            child = self._started()
            try:
                said = self._said(child, line, doing, end)
            except BaseException:
                self._forget(child)  # else its late answer would be taken for the next one's
                raise
            if said is not None:
                answer: dict[str, Any] = json.loads(said)
                return answer
            ended = _reaped(child)
            self._forget(child)
            if ended != 0 or self._closed:
                break  # else it had ended because nothing had been asked for long, in this very moment
        raise StoreUnavailable(
            problem=f"Could not {doing} {self._place}: the process that talks to {self._service} ended. "
            "Checkpoints on this machine are untouched.",
            remedy="It is tried again. If it stays so: is there enough memory left for one more process?",
        )

    def _said(self, child: subprocess.Popen[bytes], line: bytes, doing: str, end: float) -> bytes | None:
        """The line it answers, None if it ended without one."""
        try:
            os.write(_number(child.stdin), line)
        except BrokenPipeError:
            return None
        said = b""
        with selectors.DefaultSelector() as selector:
            selector.register(_number(child.stdout), selectors.EVENT_READ)
            while not said.endswith(b"\n"):
                if not selector.select(max(0.0, end - time.monotonic())):
                    raise StoreUnavailable(
                        problem=f"Could not {doing} {self._place}: {self._service} did not answer in time. "
                        "Checkpoints on this machine are untouched.",
                        remedy=self._silent,
                    )
                data = os.read(_number(child.stdout), 2**16)
                if not data:
                    return None
                said += data
        return said

    def _started(self) -> subprocess.Popen[bytes]:
        with self._guard:
            if self._closed:
                raise StoreUnavailable(
                    problem=f"The store for {self._place} was closed.",
                    remedy="Open it again; what is only on this machine yet is brought there then.",
                )
            if self.child is None:
                inherited = Environment.here().environ if self._inherits else {}
                self.child = subprocess.Popen(  # noqa: S603  # this very program
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env={**inherited, **self._environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                    start_new_session=True,  # Ctrl-C in a notebook is not meant for it
                    bufsize=0,
                )
            return self.child

    def _forget(self, child: subprocess.Popen[bytes]) -> None:
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()
        with self._guard:
            if self.child is child:
                self.child = None


def _reaped(child: subprocess.Popen[bytes]) -> int | None:
    """The exit status of a child that has closed its end."""
    try:
        return child.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def _number(pipe: Any) -> int:
    number: int = pipe.fileno()
    return number


_IDLE_SECONDS = 120.0
_WATCH_SECONDS = 0.2


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer requests, both JSON, until there are none for two minutes, or nobody is left who asks."""
    asked, answers = os.fdopen(os.dup(0), "rb", buffering=0), os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever the client prints must not be taken for an answer
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    while select.select([asked], [], [], _IDLE_SECONDS)[0]:
        line = asked.readline()
        if not line:
            return
        answers.write(json.dumps(answer(json.loads(line))).encode() + b"\n")


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_WATCH_SECONDS)
    os._exit(1)
