"""Asking a program that may hang, die, or never stop talking."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from colabkeep.vocabulary.environment import Environment

__all__ = ["Answer", "ask", "chunks", "locate", "start", "until_gone"]

_MOST_BYTES = 1 << 16
_FAREWELL = 0.1  # seconds for a killed program to be gone; one stuck inside the driver is not waited for


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program printed and its exit code; None if it had to be ended, being late or printing too much. `whole`:
    its last line was ended, so nothing was cut off."""

    text: str
    code: int | None

    @property
    def whole(self) -> bool:
        return self.code is not None and self.text.endswith("\n")


def locate(environment: Environment, name: str, *, also: Sequence[str] = ()) -> str | None:
    """The path of the program `name`: in the folders of PATH, then in those of `also`, all below the root.

    Relative folders of PATH are left out: what lies in the folder of a notebook is not run.
    """
    for folder in (*environment.environ.get("PATH", "").split(os.pathsep), *also):
        if folder.startswith("/"):
            path = str(environment.path(folder) / name)
            if os.access(path, os.X_OK) and not os.path.isdir(path):  # noqa: PTH112  never raises, unlike Path
                return path
    return None


def ask(command: Sequence[str], environ: Mapping[str, str], *, timeout: float) -> Answer | None:
    """What `command` answers within `timeout` seconds; None if it cannot be started. One that does not end, or prints
    more than 64 KiB, is killed with all processes it started. What it prints as an error is not read.

    Messages come untranslated, whatever the user's language is.
    """
    end = time.monotonic() + timeout
    try:
        process = start(command, environ={**environ, "LC_ALL": "C"})
    except (OSError, ValueError):  # not a program of this machine, or a variable that no process can be given
        return None
    said = b""
    with until_gone(process, _FAREWELL):
        with suppress(TimeoutError, subprocess.TimeoutExpired):
            for chunk in chunks(process, end):
                said += chunk
                if len(said) > _MOST_BYTES:
                    break
            else:
                process.wait(max(0.0, end - time.monotonic()))
        code = process.returncode
    return Answer(said.decode("utf-8", errors="replace"), code)


def start(
    command: Sequence[str], *, environ: Mapping[str, str] | None = None, errors: bool = False
) -> subprocess.Popen[bytes]:
    """A process whose output can be read, together with what it prints as an error if `errors`. `environ`: this
    process's own by default. It leads a group of its own, so that its children can be killed with it.

    Raises:
        OSError, ValueError: it cannot be started.
    """
    return subprocess.Popen(  # noqa: S603  the caller names the program, no user's text
        command,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if errors else subprocess.DEVNULL,
        start_new_session=True,
        bufsize=0,
    )


def chunks(process: subprocess.Popen[bytes], end: float) -> Iterator[bytes]:
    """What `process` prints, piece by piece, until nobody holds its output open any more.

    Raises:
        TimeoutError: that was not so at `end`, a time of `time.monotonic`.
    """
    source = process.stdout.fileno()  # type: ignore[union-attr]  # a pipe, by `start`
    waiting = select.poll()  # unlike select(), takes descriptors above 1023
    waiting.register(source, select.POLLIN)
    while (left := end - time.monotonic()) > 0:
        if waiting.poll(left * 1000):
            chunk = os.read(source, _MOST_BYTES)
            if not chunk:
                return
            yield chunk
    raise TimeoutError


@contextmanager
def until_gone(process: subprocess.Popen[bytes], farewell: float) -> Iterator[None]:
    """At the end, however it comes, `process` and its children are killed if it has not ended, and waited for
    `farewell` seconds; one that is stuck in its driver never goes."""
    try:
        yield
    finally:
        process.stdout.close()  # type: ignore[union-attr]  # a pipe, by `start`
        if process.returncode is None:  # not reaped yet, so its number, the group's too, is still its own
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                process.wait(farewell)
