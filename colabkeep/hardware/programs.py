"""Asking programs that may hang, die, or never stop talking."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from colabkeep.core.system import Environment

_MOST_BYTES = 1 << 16
_KILLED_WITHIN = 0.1  # seconds for a killed program to be gone; one stuck inside the driver is not waited for


@dataclass(frozen=True, slots=True)
class ProgramAnswer:
    """What a program printed and its exit code; None if it had to be killed, being late or printing too much. `whole`:
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


def ask(
    command: Sequence[str], environ: Mapping[str, str], *, timeout: float, errors: bool = False
) -> ProgramAnswer | None:
    """What `command` answers within `timeout` seconds, with what it prints as an error if `errors`; None if it cannot
    be started. One that does not end, or prints more than 64 KiB, is killed with all processes it started, and so is
    one that is waited for when the user interrupts.

    Messages come untranslated, whatever the user's language is.
    """
    end = time.monotonic() + timeout
    try:
        process = subprocess.Popen(  # noqa: S603  the caller names the program, no user's text
            command,
            env={**environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if errors else subprocess.DEVNULL,
            start_new_session=True,  # a group of its own, so that its children can be killed with it
            bufsize=0,
        )
    except (OSError, ValueError):  # not a program of this machine, or a variable that no process can be given
        return None
    try:
        said = _read(process, end)
        code = process.returncode
    finally:
        process.stdout.close()  # type: ignore[union-attr]  # a pipe, see above
        if process.returncode is None:  # not reaped yet, so its number, the group's too, is still its own
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_KILLED_WITHIN)
    return ProgramAnswer(said.decode("utf-8", errors="replace"), code)


def _read(process: subprocess.Popen[bytes], end: float) -> bytes:
    """What it prints until nobody holds its output open, it is too much, or `end`, a time of `time.monotonic`."""
    source = process.stdout.fileno()  # type: ignore[union-attr]
    waiting = select.poll()  # unlike select(), takes descriptors above 1023
    waiting.register(source, select.POLLIN)
    said = b""
    while len(said) <= _MOST_BYTES and (left := end - time.monotonic()) > 0:
        if waiting.poll(left * 1000):
            chunk = os.read(source, _MOST_BYTES)
            if not chunk:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, end - time.monotonic()))
                break
            said += chunk
    return said
