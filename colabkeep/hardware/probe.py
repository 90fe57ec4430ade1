"""The last word on a card: the framework computes on it, in a process of its own.

There it costs seconds and a CUDA context that goes away again. In this process a failed kernel would spoil CUDA for
the training, and a driver that hangs would hang the notebook.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from colabkeep.core.system import Environment
from colabkeep.hardware.programs import ask

Cause: TypeAlias = Literal["no-kernels", "no-device", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """`works`: did it compute? None if that could not be found out. `detail`: what happened, in a sentence. `cause`:
    why it failed."""

    works: bool | None
    detail: str
    cause: Cause = "other"


_PROGRAM = """
import json, sys
facts = {}
def tell(**more):
    facts.update(more)
    print("\\n" + sys.argv[1] + json.dumps(facts), flush=True)
try:
"""
_PROGRAMS: Mapping[str, str] = {
    "torch": """
    import torch
    tell(version=torch.__version__, gpu=bool(torch.version.cuda or torch.version.hip))
    if facts["gpu"]:
        tell(devices=torch.cuda.device_count() if torch.cuda.is_available() else 0)
        if facts["devices"]:
            tell(result=(torch.ones(8, device="cuda:0") * 2).sum().item())
""",
    "paddle": """
    import paddle
    tell(version=paddle.__version__, gpu=paddle.device.is_compiled_with_cuda())
    if facts["gpu"]:
        tell(devices=paddle.device.cuda.device_count())
        if facts["devices"]:
            paddle.set_device("gpu:0")
            tell(result=float((paddle.ones([8]) * 2).sum()))
""",
}
_END = """
except BaseException as error:
    tell(error=f"{type(error).__name__}: {error}"[:2000])
"""

_NO_KERNELS = ("no kernel image is available", "cudaErrorNoKernelImageForDevice")
_WARNINGS = (  # when CUDA starts; the wording changed with torch 2.8 and 2.11
    "is not compatible with the current PyTorch installation",
    "no longer supports this GPU because it is too old",
)
_FULL = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def probe(framework: Literal["torch", "paddle"], card: str, environment: Environment, *, timeout: float) -> ProbeResult:
    """Compute 8 x (1 x 2) with the framework on the card of this uuid; on its first one where `card` is "".

    Takes `timeout` seconds at most, and leaves no process behind. Importing torch alone may take ten.
    """
    mark = os.urandom(8).hex()  # tells the program's own lines from whatever else is printed
    command = (sys.executable, "-c", _PROGRAM + _PROGRAMS[framework] + _END, mark)
    chosen = {"CUDA_VISIBLE_DEVICES": card} if card else {}
    answer = ask(command, {**environment.environ, **chosen}, timeout=timeout, errors=True)
    if answer is None:
        return ProbeResult(works=None, detail="No second process could be started to try it.")
    told: dict[str, Any] = {}
    for part in answer.text.split(mark)[1:]:
        with suppress(ValueError):  # cut short by the process's end
            told |= json.loads(part.partition("\n")[0])
    printed = "\n".join(line for line in answer.text.split("\n") if mark not in line)  # by the framework itself
    if answer.code is None and "result" not in told:
        where = "computing" if "version" in told else "loading it"
        return ProbeResult(works=None, detail=f"{framework} did not answer within {timeout:g} s ({where}).")
    return _judged(framework, told, printed, answer.code)


def _judged(framework: str, told: Mapping[str, Any], printed: str, code: int | None) -> ProbeResult:
    why = _line(told.get("error") or f"the process died {_how(code)}")
    if "version" not in told:
        return ProbeResult(works=None, detail=f"{framework} cannot be loaded: {why}.")
    build = f"{framework} {_line(told['version'])}"
    if not told["gpu"]:
        return ProbeResult(works=None, detail=f"{build} is a build for the CPU only, so it computes on no GPU.")
    if told.get("devices") == 0:
        warning = next((line for line in printed.splitlines() if "Warning: " in line), "")
        reason = f": {_line(warning.partition('Warning: ')[2])}" if warning else ""
        return ProbeResult(works=False, detail=f"{build} sees no GPU that it can use{reason}.", cause="no-device")
    if "result" in told:
        if told["result"] == 16.0:
            return ProbeResult(works=True, detail=f"{build} computes on the GPU.")
        return ProbeResult(works=False, detail=f"{build} computed a wrong result on the GPU.")
    if any(sign in why for sign in _FULL):
        return ProbeResult(works=None, detail=f"The GPU's memory is full, so {build} could not try: {why}.")
    if any(sign in why for sign in _NO_KERNELS) or any(sign in printed for sign in (*_NO_KERNELS, *_WARNINGS)):
        return ProbeResult(works=False, detail=f"{build} has no kernels for the GPU: {why}.", cause="no-kernels")
    return ProbeResult(works=False, detail=f"{build} failed on the GPU: {why}.")


def _how(code: int | None) -> str:
    if code is None or code >= 0:
        return f"with status {code}" if code else "without a word"
    with suppress(ValueError):
        return f"of {signal.Signals(-code).name}"
    return f"of signal {-code}"


def _line(text: object) -> str:
    """The first line of what a program says, without what could steer a terminal."""
    line = next(iter(str(text).strip().splitlines()), "")
    return "".join(char for char in line if char.isprintable())[:300].rstrip(". ")
