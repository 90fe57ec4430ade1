"""What bits depend on, what prevents the same bits on this machine, and Paddle's static mode, which is refused."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import paddle

from colabkeep.core.errors import UsageError
from colabkeep.core.system import Environment
from colabkeep.frameworks.base import Exactness
from colabkeep.frameworks.paddle.capture import is_somewhere, place_name
from colabkeep.frameworks.shared.describe import UNREADABLE, read_facts


def refuse_static_mode() -> None:
    """Refuse to train where batches are fed to a program.

    Raises:
        UsageError: Paddle is in static graph mode.
    """
    if not paddle.in_dynamic_mode():
        raise UsageError(
            problem="Paddle is in static graph mode, where batches are fed to a program by name: their order "
            "cannot be kept from session to session.",
            remedy="Call paddle.disable_static() before the model and the DataLoader are made.",
        )


core: Any = paddle.base.core

_FLAGS = {
    "threads": "FLAGS_paddle_num_threads",
    "onednn": "FLAGS_use_mkldnn",
    "cudnn deterministic": "FLAGS_cudnn_deterministic",
    "cudnn exhaustive search": "FLAGS_cudnn_exhaustive_search",
    "embedding deterministic": "FLAGS_embedding_deterministic",
    "cublas tensor cores": "FLAGS_enable_cublas_tensor_op_math",
    "float16 reduced-precision reduction": "FLAGS_gemm_use_half_precision_compute_type",
}
_VARIABLES = ("OMP_NUM_THREADS", "NVIDIA_TF32_OVERRIDE")


def fingerprint(tensors: Iterable[Any]) -> dict[str, str]:
    """Name → value of everything that results depend on, as far as the devices of `tensors` go."""
    numpy = sys.modules.get("numpy")
    devices, here = _devices(tensors), Environment.here()
    facts = {
        "framework": "paddle",
        "python": platform.python_version(),
        "numpy": "not imported" if numpy is None else numpy.__version__,
        "devices": ", ".join(devices) or "cpu",
    }
    readers: dict[str, Callable[[], object]] = {
        "paddle": lambda: paddle.__version__,
        "cpu capability": _capability,
        "default dtype": paddle.get_default_dtype,
    }
    readers |= {name: partial(_flag, flag) for name, flag in _FLAGS.items()}
    gpus = [device for device in devices if device.startswith("gpu")]
    if gpus:
        readers |= {
            "gpu": lambda: _cards(gpus),
            "cuda": paddle.version.cuda,
            "cudnn": paddle.version.cudnn,
        }
        driver = re.search(r"Kernel Module\D+([\d.]+)", here.text("/proc/driver/nvidia/version", 4096))
        facts |= {} if driver is None else {"driver": driver[1]}
    facts |= {name: here.environ.get(name, "not set") for name in _VARIABLES}
    return facts | read_facts(readers)


def exactness(tensors: Iterable[Any], *, reseeds: bool) -> Exactness:
    """Does this machine compute the same bits again, from the same state?

    `reseeds`: this Paddle's CPU generator does not tell its position, and begins a new stream after every step.
    """
    tensors = list(tensors)
    facts = fingerprint(tensors)
    kinds = {device.partition(":")[0] for device in _devices(tensors)} or {"cpu"}
    same = [f"Paddle {facts.get('paddle', '')}"]
    obstacles: list[str] = []
    if "cpu" in kinds:
        same += [
            f"number of threads ({facts.get('threads', '?')}, OMP_NUM_THREADS)",
            f"instruction set ({_capability()})",
        ]
    if "gpu" in kinds:
        same += ["kind of GPU", "driver"]
        obstacles += _on_gpu(facts)
    others = sorted(kinds - {"cpu", "gpu"})
    if others:
        obstacles.append(f"Kernels on {', '.join(others)} promise no order in which they add.")
    return Exactness(
        same=" and ".join(filter(None, (", ".join(same[:-1]), same[-1]))),
        unseen="gradients that you do not clear behind a step",
        obstacles=tuple(obstacles),
        notes=tuple(_notes(facts, reseeds=reseeds)),
    )


def _on_gpu(facts: Mapping[str, str]) -> Iterator[str]:
    if facts.get("cudnn deterministic") != "True":
        yield (
            "GPU kernels may add in any order. To come nearer, begin with "
            'paddle.set_flags({"FLAGS_cudnn_deterministic": True, "FLAGS_embedding_deterministic": 1}).'
        )
    else:
        yield (
            "Convolutions are deterministic, but a few other GPU kernels (sums by index, pooling backward) keep no "
            "order."
        )
    if facts.get("cudnn exhaustive search") == "True":
        yield (
            "cuDNN chooses kernels by timing them: another may win next time. Write "
            'paddle.set_flags({"FLAGS_cudnn_exhaustive_search": False}).'
        )


def _notes(facts: Mapping[str, str], *, reseeds: bool) -> Iterator[str]:
    if reseeds:
        yield (
            "Random numbers on the CPU are drawn from a new seed after every step, since this Paddle cannot continue "
            "them (so they are not those of the same training without colabkeep)."
        )
    unread = [name for name, value in facts.items() if value.startswith(UNREADABLE)]
    if unread:
        yield f"Could not be read, so that a change would not be noticed: {', '.join(unread)}."


def _flag(name: str) -> object:
    flags = core.globals()  # those that this build has: the ones for GPUs are missing in the build for CPUs
    if name not in flags.keys():  # noqa: SIM118  # no dict
        raise AttributeError(name)
    return flags[name]


def _devices(tensors: Iterable[Any]) -> list[str]:
    return sorted({place_name(tensor.place) for tensor in tensors if is_somewhere(tensor)})


def _capability() -> str:
    wide = getattr(core, "supports_avx512f", None)  # since Paddle 3
    if wide is not None and wide():
        return "AVX512"
    return "AVX" if core.avx_supported() else platform.machine()


def _cards(devices: Sequence[str]) -> str:
    cuda = paddle.device.cuda
    return ", ".join(
        f"{cuda.get_device_name(device)} {'.'.join(map(str, cuda.get_device_capability(device)))}" for device in devices
    )
