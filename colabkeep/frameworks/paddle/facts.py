"""What bits depend on, and what may honestly be promised about them."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import paddle

from colabkeep.frameworks.paddle.state.memory import is_somewhere, place_name

__all__ = ["exactness", "fingerprint"]

core: Any = paddle.base.core

_FLAGS = {
    "threads": "FLAGS_paddle_num_threads",
    "onednn": "FLAGS_use_mkldnn",
    "cudnn deterministic": "FLAGS_cudnn_deterministic",
    "cudnn exhaustive search": "FLAGS_cudnn_exhaustive_search",
    "embedding deterministic": "FLAGS_embedding_deterministic",
    "cublas tensor cores": "FLAGS_enable_cublas_tensor_op_math",
}


def fingerprint(tensors: Iterable[Any]) -> dict[str, str]:
    """Name → value of everything that results depend on, as far as the devices of `tensors` go."""
    numpy = sys.modules.get("numpy")
    devices = _devices(tensors)
    facts = {
        "framework": "paddle",
        "python": platform.python_version(),
        "paddle": str(paddle.__version__),
        "numpy": "not imported" if numpy is None else numpy.__version__,
        "cpu capability": _capability(),
        "default dtype": str(paddle.get_default_dtype()),
        "devices": ", ".join(devices) or "cpu",
    }
    flags = core.globals()  # those that this build has: the ones for GPUs are missing in the build for CPUs
    facts |= {name: str(flags[flag]) for name, flag in _FLAGS.items() if flag in flags.keys()}  # noqa: SIM118  # no dict
    if any(device.startswith("gpu") for device in devices):
        facts |= _gpu_facts([device for device in devices if device.startswith("gpu")])
    return facts


def exactness(tensors: Iterable[Any], *, reseeds: bool) -> str:
    """One sentence: what a resumed run shares with an uninterrupted one.

    `reseeds`: this Paddle's CPU generator does not tell its position, and begins a new stream after every step.
    """
    kinds = {device.partition(":")[0] for device in _devices(tensors)} or {"cpu"}
    streams = (
        "; random numbers on the CPU are drawn from a new seed after every step, since this Paddle cannot continue "
        "them (so they are not those of the same training without colabkeep)"
        if reseeds
        else ""
    )
    if kinds == {"cpu"}:
        return (
            "Exact: a resumed run gives the same bits as an uninterrupted one, on a machine with the same Paddle, "
            f"number of threads ({core.globals()['FLAGS_paddle_num_threads']}, OMP_NUM_THREADS) and instruction set "
            f"({_capability()}){streams}."
        )
    same = f"a resumed run sees the same data, random numbers and state as an uninterrupted one{streams}"
    if kinds <= {"cpu", "gpu"}:
        flags = core.globals()
        if "FLAGS_cudnn_deterministic" in flags.keys() and flags["FLAGS_cudnn_deterministic"]:  # noqa: SIM118  # no dict
            return (
                f"Same course, mostly the same bits on the same kind of GPU with the same Paddle: {same}; convolutions "
                "are deterministic, but a few other GPU kernels (sums by index, pooling backward) keep no order."
            )
        return (
            f"Same course, not the same bits: {same}, but GPU kernels may add numbers in any order. To come nearer, "
            'begin with paddle.set_flags({"FLAGS_cudnn_deterministic": True, "FLAGS_embedding_deterministic": 1}).'
        )
    return f"Same course, perhaps not the same bits: {same}; kernels on {', '.join(sorted(kinds))} promise no order."


def _devices(tensors: Iterable[Any]) -> list[str]:
    return sorted({place_name(tensor.place) for tensor in tensors if is_somewhere(tensor)})


def _capability() -> str:
    wide = getattr(core, "supports_avx512f", None)  # since Paddle 3
    if wide is not None and wide():
        return "AVX512"
    return "AVX" if core.avx_supported() else platform.machine()


def _gpu_facts(devices: Sequence[str]) -> dict[str, str]:
    cuda = paddle.device.cuda
    names = (
        f"{cuda.get_device_name(device)} {'.'.join(map(str, cuda.get_device_capability(device)))}" for device in devices
    )
    return {"gpu": ", ".join(names), "cuda": str(paddle.version.cuda()), "cudnn": str(paddle.version.cudnn())}
