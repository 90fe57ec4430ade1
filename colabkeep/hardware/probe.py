"""Asking programs that may hang, die, or never stop talking; and the last word on a card: a framework tries it, in
a process of its own.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from colabkeep.core.errors import UsageError
from colabkeep.core.system import Environment

__all__ = [
    "Cause",
    "ProbeResult",
    "ProgramAnswer",
    "ask",
    "chunks",
    "locate",
    "probe",
    "start",
    "until_gone",
]

_MOST_BYTES = 1 << 16
_KILLED_WITHIN = 0.1  # seconds for a killed program to be gone; one stuck inside the driver is not waited for


@dataclass(frozen=True, slots=True)
class ProgramAnswer:
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


def ask(command: Sequence[str], environ: Mapping[str, str], *, timeout: float) -> ProgramAnswer | None:
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
    with until_gone(process, _KILLED_WITHIN):
        with suppress(TimeoutError, subprocess.TimeoutExpired):
            for chunk in chunks(process, end):
                said += chunk
                if len(said) > _MOST_BYTES:
                    break
            else:
                process.wait(max(0.0, end - time.monotonic()))
        code = process.returncode
    return ProgramAnswer(said.decode("utf-8", errors="replace"), code)


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


# There it costs seconds and a CUDA context that goes away again. In this process a failed kernel would spoil CUDA for
# the training, and a driver that hangs would hang the notebook.


Cause: TypeAlias = Literal["no-kernels", "no-device", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """`works`: did it compute on every device? None if that could not be found out. `detail`: what happened, in a
    sentence. `computed`: the names of the devices that did, in the framework's order; `failed`: the name of the one
    after them, where the trial ended; None if it did not come to a device. `cause`: why it failed."""

    works: bool | None
    detail: str
    computed: tuple[str, ...] = ()
    failed: str | None = None
    cause: Cause = "other"


def probe(framework: str, *, timeout: float) -> ProbeResult:
    """Compute 8 x (1 x 2) on every CUDA or ROCm device that `framework` ("torch" or "paddle") sees.

    Takes `timeout` seconds at most (and one more where the process has to be ended), and leaves none behind.
    Importing torch alone may take ten.

    Raises:
        UsageError: another framework.
    """
    if framework not in _PROGRAMS:
        raise UsageError(
            problem=f"There is no probe for {framework!r}.", remedy=f"Use one of {', '.join(map(repr, _PROGRAMS))}."
        )
    mark = os.urandom(8).hex()  # tells the program's own lines from whatever else is printed
    try:
        process = start([sys.executable, "-c", _PROGRAM + _PROGRAMS[framework] + _END, mark], errors=True)
    except OSError as error:
        return ProbeResult(works=None, detail=f"No second process could be started to try it: {error}.")
    with until_gone(process, _FAREWELL):
        text, ended = _said(process, mark, time.monotonic() + timeout)
        status = _status(process) if ended == "gone" else None
    told: dict[str, Any] = {}
    for part in text.split(mark)[1:]:
        with suppress(ValueError):  # cut short by the process's end
            told |= json.loads(part.partition("\n")[0])
    if ended == "late":
        where = "computing" if "version" in told else "loading it"
        return ProbeResult(works=None, detail=f"{framework} did not answer within {timeout:g} s ({where}).")
    printed = "\n".join(line for line in text.split("\n") if mark not in line)  # by the framework, not by our program
    return _judged(framework, told, printed, status)


_PROGRAM = """
import json, sys
facts = {}
def tell(**more):  # all of it each time: of a flood of output only the end is kept
    facts.update(more)
    print("\\n" + sys.argv[1] + json.dumps(facts), flush=True)
def called(name, index):
    try:
        return str(name(index))[:200]
    except Exception:  # computing fails next, then, and is what counts
        return ""
def run(count, name, compute):
    tell(devices=count, computed=[])
    for index in range(count):
        tell(device=index, failed=called(name, index))
        assert compute(index) == 16.0, "a wrong result"
        tell(computed=[*facts["computed"], facts["failed"]])
try:
"""
_PROGRAMS: Mapping[str, str] = {
    "torch": """
    import torch
    tell(version=torch.__version__, gpu=bool(torch.version.cuda or torch.version.hip))
    if torch.version.cuda or torch.version.hip:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        def compute(index):
            return (torch.ones(8, device=f"cuda:{index}") * 2).sum().item()
        run(count, lambda index: torch.cuda.get_device_name(index), compute)
""",
    "paddle": """
    import paddle
    tell(version=paddle.__version__, gpu=paddle.device.is_compiled_with_cuda())
    if paddle.device.is_compiled_with_cuda():
        def compute(index):
            paddle.set_device(f"gpu:{index}")
            return float((paddle.ones([8]) * 2).sum())
        run(paddle.device.cuda.device_count(), lambda index: paddle.device.cuda.get_device_name(index), compute)
""",
}
_END = """
except BaseException as error:
    tell(error=f"{type(error).__name__}: {error}"[:2000])
print("\\n" + sys.argv[1] + " done", flush=True)
"""

_NO_KERNELS = ("no kernel image is available", "cudaErrorNoKernelImageForDevice")
_WARNINGS = (
    # At CUDA's start, of each card by its name; the wording changed with torch 2.8 and 2.11.
    "is not compatible with the current PyTorch installation",
    "no longer supports this GPU because it is too old",
)
_SENTENCE = 200  # characters; how far before a warning's words the card's name stands at most
_FULL = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
_KEPT = 1 << 16  # bytes of output; what matters is told last
_FAREWELL = 1.0  # seconds for a process that ended or was killed to be gone


def _said(process: subprocess.Popen[bytes], mark: str, end: float) -> tuple[str, Literal["done", "gone", "late"]]:
    """The end of what the program prints, until it says that it is done, is gone without a word, or is too late."""
    done, kept = f"{mark} done".encode(), b""
    ended: Literal["done", "gone", "late"] = "gone"
    try:
        for chunk in chunks(process, end):
            kept = (kept + chunk)[-_KEPT:]
            if done in kept:
                ended = "done"
                break
    except TimeoutError:
        ended = "late"
    return kept.decode(errors="replace"), ended


def _status(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(_FAREWELL)
    except subprocess.TimeoutExpired:
        return None


def _judged(framework: str, told: Mapping[str, Any], text: str, status: int | None) -> ProbeResult:
    error = told.get("error")
    if "version" not in told:
        why = error or f"the process died {_how(status)}"
        return ProbeResult(works=None, detail=f"{framework} cannot be loaded: {_line(why)}.")
    build = f"{framework} {_line(told['version'])}"
    if not told.get("gpu"):
        return ProbeResult(works=None, detail=f"{build} is a build for the CPU only, so it computes on no GPU.")
    computed = tuple(_line(name) for name in told.get("computed", ()))
    if told.get("devices") == 0:
        detail = f"{build} sees no GPU that it can use{_warning(text)}."
        return ProbeResult(works=False, detail=detail, cause="no-device")
    if error is None and "computed" in told and len(computed) == told["devices"]:
        return ProbeResult(works=True, detail=f"{build} computes on {_devices(told)}.", computed=computed)
    name = _line(told.get("failed") or "")
    device = f"device {told['device']}{f' ({name})' if name else ''}" if "device" in told else "the GPU"
    failed = name if "device" in told else None
    why = str(error or f"the process died {_how(status)}")
    if any(sign in why for sign in _FULL):
        detail = f"The memory of {device} is full, so {build} could not try: {_line(why)}."
        return ProbeResult(works=None, detail=detail, computed=computed, failed=failed)
    if any(sign in why or sign in text for sign in _NO_KERNELS) or _is_warned_of(name, text, told.get("devices")):
        detail = f"{build} has no kernels for {device}: {_line(why)}."
        return ProbeResult(works=False, detail=detail, computed=computed, failed=failed, cause="no-kernels")
    detail = f"{build} failed on {device}: {_line(why)}."
    return ProbeResult(works=False, detail=detail, computed=computed, failed=failed)


def _is_warned_of(name: str, text: str, devices: int | None) -> bool:
    """Did the framework warn of this very card? It warns of all unfit ones when it starts, whichever computes first."""
    starts = [match.start() for sign in _WARNINGS for match in re.finditer(re.escape(sign), text)]
    if devices == 1 or not name:
        return bool(starts)
    card = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")  # a P40 is no P4
    return any(card.search(text, max(0, start - _SENTENCE), start) for start in starts)


def _devices(told: Mapping[str, Any]) -> str:
    return "the GPU" if told["devices"] == 1 else f"all {told['devices']} GPUs"


def _how(status: int | None) -> str:
    if status is None or status >= 0:
        return f"with status {status}" if status else "without a word"
    with suppress(ValueError):
        return f"of {signal.Signals(-status).name}"
    return f"of signal {-status}"


def _warning(text: str) -> str:
    """What the framework gave as the reason, if it did."""
    found = next((line for line in text.splitlines() if "Warning: " in line), "")
    return f": {_line(found.partition('Warning: ')[2])}" if found else ""


def _line(text: object) -> str:
    """The first line of what a program says, without what could steer a terminal."""
    line = next(iter(str(text).strip().splitlines()), "")
    return "".join(char for char in line if char.isprintable())[:300].rstrip(". ")
