"""Asking the child process in which Kaggle's client runs, with a bound on every answer."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from colabkeep.stores.kaggle.refusals import explained
from colabkeep.vocabulary.environment import Environment
from colabkeep.vocabulary.errors import StoreUnavailable

__all__ = ["CHILD", "Hub"]

CHILD = (sys.executable, "-m", "colabkeep.stores.kaggle.child")
"""The program of the child."""

_STOP_SECONDS = 10.0


class Hub:
    """One child, started when something is asked; it ends by itself when nothing is asked for a while.

    One question at a time: other threads wait. `handle` is "owner/name"; `folder` is where downloads and the links for
    an upload go. The environment is this process's, so that Kaggle's client finds the user's credentials by itself;
    `environ` replaces it.
    """

    def __init__(
        self,
        handle: str,
        folder: str,
        *,
        command: Sequence[str] = CHILD,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.handle = handle
        self.folder = folder
        self._command = tuple(command)
        self._environ = environ
        self._turn = threading.Lock()
        self._guard = threading.Lock()  # of the two below
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False

    def ask(self, doing: str, operation: str, timeout: float, **what: Any) -> dict[str, Any]:
        """The child's answer to `operation` for this dataset. `doing` completes "could not …".

        Raises:
            StoreError, MissingDependency: as `refusals.explained`.
            StoreUnavailable: there was no answer within `timeout` seconds (the child was killed), or it died.
        """
        owner, _, name = self.handle.partition("/")
        line = json.dumps({"operation": operation, "owner": owner, "name": name, **what}).encode() + b"\n"
        with self._turn:
            answer = self._exchange(line, doing, time.monotonic() + timeout)
        if "failed" in answer:
            raise explained(answer["failed"], doing, self.handle)
        done: dict[str, Any] = answer["done"]
        return done

    def close(self) -> None:
        """Kill the child, in the middle of whatever it does."""
        with self._guard:
            self._closed = True
            child = self._child
        if child is not None:
            child.kill()  # whoever waits for its answer sees it end, and leaves the turn
            with self._turn:
                self._forget(child)

    def _exchange(self, line: bytes, doing: str, end: float) -> dict[str, Any]:
        for _ in range(2):
            child = self._started()
            said = self._said(child, line, doing, end)
            if said is not None:
                answer: dict[str, Any] = json.loads(said)
                return answer
            ended = _reaped(child)
            self._forget(child)
            if ended != 0 or self._closed:
                break  # else it had ended because nothing had been asked for long, in this very moment
        raise StoreUnavailable(
            problem=f"Could not {doing} the Kaggle dataset {self.handle}: the process that talks to Kaggle ended. "
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
                    self._forget(child)
                    raise StoreUnavailable(
                        problem=f"Could not {doing} the Kaggle dataset {self.handle}: Kaggle did not answer in time. "
                        "Checkpoints on this machine are untouched.",
                        remedy="It is tried again. On Kaggle, see that Settings → Internet is on.",
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
                    problem=f"The store for the Kaggle dataset {self.handle} was closed.",
                    remedy="Open it again; what was not published yet is on this machine, and is published then.",
                )
            if self._child is None:
                self._child = subprocess.Popen(  # noqa: S603  # this very program
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env=self._environment(),
                    start_new_session=True,  # Ctrl-C in a notebook is not meant for it
                    bufsize=0,
                )
            return self._child

    def _environment(self) -> dict[str, str]:
        environ = Environment.here().environ if self._environ is None else self._environ
        return {
            **environ,
            "PYTHONPATH": os.pathsep.join(sys.path),  # the same packages as here
            "KAGGLEHUB_CACHE": os.path.join(self.folder, "downloads"),  # noqa: PTH118
            "DISABLE_KAGGLE_CACHE": "true",  # else nothing is downloaded, but attached, and waited for without a bound
            "DISABLE_COLAB_CACHE": "true",
        }

    def _forget(self, child: subprocess.Popen[bytes]) -> None:
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()
        with self._guard:
            if self._child is child:
                self._child = None


def _reaped(child: subprocess.Popen[bytes]) -> int | None:
    """The exit status of a child that has closed its end."""
    try:
        return child.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def _number(pipe: Any) -> int:
    number: int = pipe.fileno()
    return number
