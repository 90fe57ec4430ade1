"""What bits depend on, and what may honestly be promised about them."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Mapping

import torch

__all__ = ["exactness", "fingerprint"]


def fingerprint(tensors: Iterable[torch.Tensor]) -> dict[str, str]:
    """Name → value of everything that results depend on, as far as the devices of `tensors` go."""
    numpy = sys.modules.get("numpy")
    facts = {
        "framework": "torch",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": "not imported" if numpy is None else numpy.__version__,
        "cpu capability": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "deterministic algorithms": _deterministic(),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "default dtype": str(torch.get_default_dtype()),
    }
    devices = sorted({str(tensor.device) for tensor in tensors})
    facts["devices"] = ", ".join(devices) or "cpu"
    if any(device.startswith("cuda") for device in devices):
        facts |= _cuda_facts(devices)
    return facts


def exactness(tensors: Iterable[torch.Tensor]) -> str:
    """One sentence: what a resumed run shares with an uninterrupted one."""
    kinds = {tensor.device.type for tensor in tensors} or {"cpu"}
    if kinds == {"cpu"}:
        return (
            "Exact: a resumed run gives the same bits as an uninterrupted one, on a machine with the same torch, "
            f"number of threads ({torch.get_num_threads()}) and instruction set "
            f"({torch.backends.cpu.get_cpu_capability()})."
        )
    same = "a resumed run sees the same data, random numbers and state as an uninterrupted one"
    if kinds <= {"cpu", "cuda"}:
        if torch.are_deterministic_algorithms_enabled():
            return (
                f"Exact: {same}, and gives the same bits on the same kind of GPU with the same torch, since "
                "deterministic algorithms are on."
            )
        return (
            f"Same course, not the same bits: {same}, but GPU kernels may add numbers in any order. For the same bits "
            'call torch.use_deterministic_algorithms(True) and set CUBLAS_WORKSPACE_CONFIG=":4096:8" before the first '
            "GPU operation."
        )
    return f"Same course, perhaps not the same bits: {same}; kernels on {', '.join(sorted(kinds))} promise no order."


def _deterministic() -> str:
    if not torch.are_deterministic_algorithms_enabled():
        return "off"
    return "warn only" if torch.is_deterministic_algorithms_warn_only_enabled() else "on"


def _cuda_facts(devices: Iterable[str]) -> Mapping[str, str]:
    ours = [device for device in devices if device.startswith("cuda")]
    names = (f"{torch.cuda.get_device_name(d)} {'.'.join(map(str, torch.cuda.get_device_capability(d)))}" for d in ours)
    return {
        "gpu": ", ".join(names),
        "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
        "cudnn deterministic": str(torch.backends.cudnn.deterministic),
        "cudnn benchmark": str(torch.backends.cudnn.benchmark),
        "tf32 convolutions": str(torch.backends.cudnn.allow_tf32),
    }
