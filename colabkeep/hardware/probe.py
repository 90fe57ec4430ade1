"""The last word on whether a framework can compute on a card: let it try, in a process of its own.

There it costs seconds and a CUDA context that goes away again. In this process a failed kernel would spoil CUDA for the
training, and a driver that hangs would hang the notebook.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, Literal

from colabkeep.vocabulary.errors import UsageError

__all__ = ["ProbeResult", "probe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """`works`: did it compute? None if that could not be found out. `detail`: what happened, in a sentence."""

    works: bool | None
    detail: str


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
    command = [sys.executable, "-c", _PROGRAM + _PROGRAMS[framework] + _END, mark]
    try:
        process = subprocess.Popen(  # noqa: S603  # our own program, by this very interpreter
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
    except OSError as error:
        return ProbeResult(works=None, detail=f"No second process could be started to try it: {error}.")
    with process.stdout as output:  # type: ignore[union-attr]  # a pipe, as asked for above
        try:
            text, ended = _read(output, mark, time.monotonic() + timeout)
            status = _status(process) if ended == "gone" else None
        finally:
            _kill(process)
    told: dict[str, Any] = {}
    for part in text.split(mark)[1:]:
        with suppress(ValueError):  # cut short by the process's end
            told |= json.loads(part.partition("\n")[0])
    if ended == "late":
        where = "computing" if "version" in told else "loading it"
        return ProbeResult(works=None, detail=f"{framework} did not answer within {timeout:g} s ({where}).")
    return _judged(framework, told, text, status)


_PROGRAM = """
import json, sys
facts = {}
def tell(**more):  # all of it each time: of a flood of output only the end is kept
    facts.update(more)
    print("\\n" + sys.argv[1] + json.dumps(facts), flush=True)
def run(count, compute):
    tell(devices=count)
    for index in range(count):
        tell(device=index)
        assert compute(index) == 16.0, "a wrong result"
    tell(computed=count)
try:
"""
_PROGRAMS: Mapping[str, str] = {
    "torch": """
    import torch
    tell(version=torch.__version__, gpu=bool(torch.version.cuda or torch.version.hip))
    if torch.version.cuda or torch.version.hip:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        run(count, lambda i: (torch.ones(8, device=f"cuda:{i}") * 2).sum().item())
""",
    "paddle": """
    import paddle
    tell(version=paddle.__version__, gpu=paddle.device.is_compiled_with_cuda())
    if paddle.device.is_compiled_with_cuda():
        def compute(index):
            paddle.set_device(f"gpu:{index}")
            return float((paddle.ones([8]) * 2).sum())
        run(paddle.device.cuda.device_count(), compute)
""",
}
_END = """
except BaseException as error:
    tell(error=f"{type(error).__name__}: {error}"[:2000])
print("\\n" + sys.argv[1] + " done", flush=True)
"""

_NO_KERNELS = (
    "no kernel image is available",
    "cudaErrorNoKernelImageForDevice",
    # The warnings at CUDA's start, whose wording changed with torch 2.8 and 2.11.
    "is not compatible with the current PyTorch installation",
    "no longer supports this GPU because it is too old",
)
_FULL = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
_KEPT = 1 << 16  # bytes of output; what matters is told last
_WAIT = 1.0  # seconds for a process that ended or was killed to be gone; one stuck in its driver never is


def _read(output: IO[bytes], mark: str, deadline: float) -> tuple[str, Literal["done", "gone", "late"]]:
    """The end of what the program prints, until it says that it is done, is gone without a word, or is too late."""
    done, kept = f"{mark} done".encode(), b""
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            if not selector.select(left):
                continue
            chunk = os.read(output.fileno(), _KEPT)
            kept = (kept + chunk)[-_KEPT:]
            if not chunk or done in kept:
                return kept.decode(errors="replace"), "done" if chunk else "gone"
    return kept.decode(errors="replace"), "late"


def _status(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(_WAIT)
    except subprocess.TimeoutExpired:
        return None


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End it and whatever it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    _status(process)


def _judged(framework: str, told: Mapping[str, Any], text: str, status: int | None) -> ProbeResult:
    error = told.get("error")
    if "version" not in told:
        why = error or f"the process died {_how(status)}"
        return ProbeResult(works=None, detail=f"{framework} cannot be loaded: {_line(why)}.")
    build = f"{framework} {_line(told['version'])}"
    if not told.get("gpu"):
        return ProbeResult(works=None, detail=f"{build} is a build for the CPU only, so it computes on no GPU.")
    if told.get("devices") == 0:
        return ProbeResult(works=False, detail=f"{build} sees no GPU that it can use{_warning(text)}.")
    if error is None and told.get("computed") == told["devices"]:
        return ProbeResult(works=True, detail=f"{build} computes on {_devices(told)}.")
    device = f"device {told['device']}" if "device" in told else "the GPU"
    why = str(error or f"the process died {_how(status)}")
    if any(sign in why for sign in _FULL):
        return ProbeResult(
            works=None, detail=f"The memory of {device} is full, so {build} could not try: {_line(why)}."
        )
    if any(sign in why or sign in text for sign in _NO_KERNELS):
        return ProbeResult(works=False, detail=f"{build} has no kernels for {device}: {_line(why)}.")
    return ProbeResult(works=False, detail=f"{build} failed on {device}: {_line(why)}.")


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
