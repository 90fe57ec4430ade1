"""A service's client in a process of its own, asked over a pipe with a bound on every answer; and the inside of that
process. For clients that wait without a bound, print, or change the process they run in.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from colabkeep.core.errors import StoreUnavailable
from colabkeep.core.system import Environment


class ChildError(Exception):
    """What the client raised, as far as it may be shown: the names of the exception's classes, the HTTP status (0 if
    none), and the seconds that the service asks to wait (None if it did not)."""

    def __init__(self, kinds: Sequence[str], status: int, wait: float | None, said: str) -> None:
        self.kinds = tuple(kinds)
        self.status = status
        self.wait = wait
        super().__init__(said)


class Process:
    """One child, started when something is asked, with this process's packages. One question at a time: other threads
    wait.

    `place` and `service` are for messages ("kaggle://ada/run", "Kaggle"), `silent` is the remedy where no
    answer comes. The child has this process's variables, so that the client finds the user's credentials by itself, and
    `environ` over them; or `environ` alone where `inherits` is False.
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

    def ask(self, doing: str, request: Mapping[str, Any], timeout: float) -> Any:
        """What the operation returned. `doing` completes "could not …".

        Raises:
            ChildError: what it raised.
            StoreUnavailable: there was no answer within `timeout` seconds (the child was killed), or it died.
        """
        with self._turn:
            child = self._started()
            try:
                answer = json.loads(self._exchange(child, json.dumps(request).encode() + b"\n", doing, timeout))
            except BaseException:
                self._forget(child)  # else its late answer would be taken for the next one's
                raise
        if "failed" in answer:
            raise ChildError(**answer["failed"])
        return answer["done"]

    def close(self) -> None:
        with self._guard:
            self._closed = True
            child = self.child
        if child is not None:
            child.kill()  # whoever waits for its answer sees it end, and leaves the turn
            with self._turn:
                self._forget(child)

    def _exchange(self, child: subprocess.Popen[bytes], line: bytes, doing: str, timeout: float) -> bytes:
        end, said = time.monotonic() + timeout, b""
        try:
            os.write(_number(child.stdin), line)
        except BrokenPipeError:
            raise self._ended(doing) from None
        with selectors.DefaultSelector() as selector:
            selector.register(_number(child.stdout), selectors.EVENT_READ)
            while not said.endswith(b"\n"):
                if not selector.select(max(0.0, end - time.monotonic())):
                    raise StoreUnavailable(
                        problem=f"{self._place} could not {doing}: {self._service} did not answer in time. "
                        "Checkpoints on this machine are untouched.",
                        remedy=self._silent,
                    )
                data = os.read(_number(child.stdout), 2**16)
                if not data:
                    raise self._ended(doing)
                said += data
        return said

    def _ended(self, doing: str) -> StoreUnavailable:
        return StoreUnavailable(
            problem=f"{self._place} could not {doing}: the process that talks to {self._service} ended. "
            "Checkpoints on this machine are untouched.",
            remedy="It is tried again. If it stays so: is there enough memory left for one more process?",
        )

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


def _number(pipe: Any) -> int:
    number: int = pipe.fileno()
    return number


_WATCH_SECONDS = 0.2
_URL = re.compile(r"\S*://\S*")  # a signed address is a secret
_MOST = 600  # characters of what is told


def serve(operations: Mapping[str, Callable[..., Any]], secrets: Callable[[Mapping[str, Any]], Iterable[Any]]) -> None:
    """Answer requests, one JSON line each, until nobody is left who asks. `secrets`: what a request's answer must not
    hold."""
    asked, answers = os.fdopen(os.dup(0), "rb", buffering=0), os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever the client prints must not be taken for an answer
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    while line := asked.readline():
        request = json.loads(line)
        operation = operations[request.pop("operation")]
        answer: dict[str, Any]
        try:
            answer = {"done": operation(**request)}
        except Exception as error:  # noqa: BLE001  # told to the one who asked, who knows what it means
            answer = {"failed": _told(error, secrets(request))}
        answers.write(json.dumps(answer).encode() + b"\n")


def _told(error: Exception, secrets: Iterable[Any]) -> dict[str, Any]:
    response = getattr(error, "response", None)
    wait = response.headers.get("Retry-After", "") if response is not None else ""
    return {
        "kinds": [kind.__name__ for kind in type(error).__mro__],
        "status": getattr(response, "status_code", None) or 0,
        "wait": float(wait) if wait.isdigit() else None,
        "said": clean(_said(error, response), secrets),
    }


def _said(error: Exception, response: Any) -> str:
    if response is None:
        return str(error)
    try:
        return str(response.json()["message"])
    except (ValueError, KeyError, TypeError):
        return str(response.reason)


def clean(text: str, secrets: Iterable[Any]) -> str:
    """The text on one short line, without addresses and without the secrets."""
    for secret in secrets:
        text = text.replace(secret, "…") if secret else text
    return _URL.sub("…", " ".join(text.split()))[-_MOST:]


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_WATCH_SECONDS)
    os._exit(1)
