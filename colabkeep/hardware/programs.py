"""Asking a program that may hang, die, or never stop talking."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, cast

from colabkeep.vocabulary.environment import Environment

__all__ = ["Answer", "ask", "locate"]

_MOST_BYTES = 1 << 16
_FAREWELL = 0.1  # seconds for a killed program to be gone; one stuck inside the driver is not waited for


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program printed and its exit code. `whole`: its last line was ended, so nothing was cut off."""

    text: str
    code: int

    @property
    def whole(self) -> bool:
        return self.text.endswith("\n")


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
    """What `command` answers within `timeout` seconds; None if it does not start, does not end, or prints more than
    64 KiB. Then it is killed with all processes it started. What it prints as an error is not read.

    Messages come untranslated, whatever the user's language is.
    """
    end = time.monotonic() + timeout
    try:
        process = subprocess.Popen(  # noqa: S603  the caller names the program, no user's text
            command,
            env={**environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a group of its own, so that its children can be killed with it
            bufsize=0,
        )
    except (OSError, ValueError):  # not a program of this machine, or a variable that no process can be given
        return None
    output = cast("IO[bytes]", process.stdout)
    try:
        said = _read(output.fileno(), end)
        if said is None:
            return None
        code = process.wait(max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None
    finally:
        output.close()
        if process.returncode is None:  # not reaped yet, so its number, the group's too, is still its own
            _kill(process)
    return Answer(said.decode("utf-8", errors="replace"), code)


def _read(source: int, end: float) -> bytes | None:
    """Everything until the writer closes; None if that is too much or comes too late."""
    waiting = select.poll()  # unlike select(), takes descriptors above 1023
    waiting.register(source, select.POLLIN)
    said = b""
    while waiting.poll(max(0.0, end - time.monotonic()) * 1000):
        chunk = os.read(source, _MOST_BYTES)
        if not chunk:
            return said
        said += chunk
        if len(said) > _MOST_BYTES:
            break
    return None


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_FAREWELL)
