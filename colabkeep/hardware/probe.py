"""The last word on whether a framework can compute on a card: let it try, in a process of its own.

There it costs seconds and a CUDA context that goes away again. In this process a failed kernel would spoil CUDA for the
training, and a driver that hangs would hang the notebook.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from colabkeep.hardware.programs import chunks, start, until_gone
from colabkeep.vocabulary.errors import UsageError

__all__ = ["Cause", "ProbeResult", "probe"]

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
