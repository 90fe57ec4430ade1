"""What bits depend on, and what prevents the same bits on this machine."""

from __future__ import annotations

import gc
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

from colabkeep.core.system import Environment
from colabkeep.frameworks.base import Exactness
from colabkeep.frameworks.shared.describe import UNREADABLE, read_facts

# By https://docs.pytorch.org/docs/stable/notes/randomness.html and
# https://docs.pytorch.org/docs/stable/generated/torch.use_deterministic_algorithms.html (torch 2.14).


cuda: Any = torch.cuda

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_WORKSPACES = (":4096:8", ":16:8")  # those that cuBLAS and torch call deterministic
_AUTOTUNING = ("max_autotune", "max_autotune_gemm", "max_autotune_pointwise", "coordinate_descent_tuning")

# Facts by name, each with where torch has it: a value, or a function that gives it.
_ANYWHERE = {
    "torch": "__version__",
    "cpu capability": "backends.cpu.get_cpu_capability",
    "threads": "get_num_threads",
    "float32 matmul precision": "get_float32_matmul_precision",
    "default dtype": "get_default_dtype",
}
_ON_CPU = {
    "mkldnn": "backends.mkldnn.enabled",
    "mkldnn matmul fp32_precision": "backends.mkldnn.matmul.fp32_precision",
    "mkldnn convolution fp32_precision": "backends.mkldnn.conv.fp32_precision",
    "mkldnn rnn fp32_precision": "backends.mkldnn.rnn.fp32_precision",
}
_ON_CUDA = {
    "cuda": "version.cuda",
    "cuda driver api": "_C._cuda_getDriverVersion",
    "cudnn": "backends.cudnn.version",
    "cudnn enabled": "backends.cudnn.enabled",
    "cudnn deterministic": "backends.cudnn.deterministic",
    "cudnn benchmark": "backends.cudnn.benchmark",
    "matmul fp32_precision": "backends.cuda.matmul.fp32_precision",
    "convolution fp32_precision": "backends.cudnn.conv.fp32_precision",
    "rnn fp32_precision": "backends.cudnn.rnn.fp32_precision",
    "tf32 matmul": "backends.cuda.matmul.allow_tf32",
    "tf32 convolutions": "backends.cudnn.allow_tf32",
    "float16 reduced-precision reduction": "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "bfloat16 reduced-precision reduction": "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    "float16 accumulation": "backends.cuda.matmul.allow_fp16_accumulation",
    "attention by flash": "backends.cuda.flash_sdp_enabled",
    "attention by memory-efficient kernels": "backends.cuda.mem_efficient_sdp_enabled",
    "attention by cudnn": "backends.cuda.cudnn_sdp_enabled",
    "attention by math": "backends.cuda.math_sdp_enabled",
    "16-bit reduction in math attention": "backends.cuda.fp16_bf16_reduction_math_sdp_allowed",
    "blas library": "backends.cuda.preferred_blas_library",
    "linear-algebra library": "backends.cuda.preferred_linalg_library",
}
_NEWER = {  # names for the settings of older ones, which cannot be read once the newer ones were used
    "float32 matmul precision": ("matmul fp32_precision", "mkldnn matmul fp32_precision"),
    "tf32 matmul": ("matmul fp32_precision",),
    "tf32 convolutions": ("convolution fp32_precision",),
}


def fingerprint(tensors: Iterable[torch.Tensor], modules: Iterable[torch.nn.Module] = ()) -> dict[str, str]:
    """Name → value of everything that results depend on, as far as the devices of `tensors` go."""
    numpy = sys.modules.get("numpy")
    facts = {
        "framework": "torch",
        "python": platform.python_version(),
        "numpy": "not imported" if numpy is None else numpy.__version__,
    }
    facts |= _read(_ANYWHERE) | read_facts({"deterministic algorithms": _deterministic})
    tuned = _autotuned(modules)
    if tuned is not None:
        facts["compile autotuning"] = ", ".join(tuned) or "off"
    devices = sorted({str(tensor.device) for tensor in tensors})
    if not devices and cuda.is_initialized():  # of objects that only tell a state: where they are computed
        devices = [f"cuda:{cuda.current_device()}"]
    facts["devices"] = ", ".join(devices) or "cpu"
    if any(device.startswith("cuda") for device in devices):
        facts |= _read(_ON_CUDA) | read_facts({"gpu": lambda: _cards(devices)}) | _around_cuda(Environment.here())
    if "cpu" in devices or not devices:
        facts |= _read(_ON_CPU)
    return facts


def exactness(tensors: Iterable[torch.Tensor], modules: Iterable[torch.nn.Module] = ()) -> Exactness:
    """Does this machine compute the same bits again, from the same state?"""
    tensors, modules = list(tensors), list(modules)
    facts = fingerprint(tensors, modules)
    kinds = {device.partition(":")[0] for device in facts["devices"].split(", ")}
    same = [f"torch {facts['torch']}", f"number of threads ({facts['threads']})"]
    obstacles: list[str] = []
    if "cpu" in kinds:
        same.append(f"instruction set ({facts['cpu capability']})")
    if "cuda" in kinds:
        same += ["kind of GPU", "driver"]
        obstacles += _on_cuda(facts)
    others = sorted(kinds - {"cpu", "cuda"})
    if others:
        obstacles.append(f"Kernels on {', '.join(others)} promise no order in which they add.")
    if tuned := _autotuned(modules):
        obstacles.append(
            f"torch.compile chooses kernels by timing them ({', '.join(tuned)}): another may win next time. "
            "Compile without that mode."
        )
    if place()[1] > 1 and "cuda" in kinds:
        obstacles.append(
            "Several GPUs sum their gradients by NCCL, and colabkeep has not been able to see on real ones that a "
            "resumed training sums in the same order."
        )
    obstacles += [_DDP] if place()[1] > 2 and _sums_in_two_orders(modules) else []
    return Exactness(
        same=f"{', '.join(same[:-1])} and {same[-1]}",
        obstacles=tuple(obstacles),
        exceptions=tuple(_exceptions(facts)) if "cpu" in kinds else (),
        notes=(*_unread(facts), *(_batch_statistics(modules) if place()[1] > 1 else ())),
    )


_DDP = (
    "DistributedDataParallel sums the gradients of a session's first step in another order than those of the others, "
    "which rounds differently from three processes on. Write "
    "DistributedDataParallel(model, find_unused_parameters=True), without static_graph, which keeps to one order."
)


def _batch_statistics(modules: Iterable[torch.nn.Module]) -> Iterator[str]:
    """What is another training with another number of processes."""
    kind: Any = torch.nn.modules.batchnorm._BatchNorm
    layers = {
        name.removeprefix("module.") or type(each).__name__: each
        for module in modules
        for name, each in module.named_modules()
        if isinstance(each, kind) and not isinstance(each, torch.nn.SyncBatchNorm)
    }
    if layers:
        more = f" and {len(layers) - 1} more" if len(layers) > 1 else ""
        yield (
            f"BatchNorm ({next(iter(layers))}{more}) uses mean and variance of one process's part of a batch, so "
            "another number of processes gives another training. To use the whole batch on GPUs, write "
            "resumable_fit(…, sync_batchnorm=True); in a loop of your own, call "
            "torch.nn.SyncBatchNorm.convert_sync_batchnorm(model) before you create the optimizer."
        )


def _sums_in_two_orders(modules: Iterable[torch.nn.Module]) -> bool:
    """Does a DistributedDataParallel sum gradients of these that puts them into another order after its first step? It
    may be within another module, be compiled, or not have been handed in at all, as where the run has `model.module`:
    so all objects are looked through."""
    kind: Any = getattr(torch.nn.parallel, "DistributedDataParallel", ())
    trained = {id(each) for module in modules for each in module.parameters()}
    made = [each for each in gc.get_objects() if issubclass(type(each), kind) and hasattr(each, "reducer")]
    return any(
        (each.static_graph or not each.find_unused_parameters) and not trained.isdisjoint(map(id, each.parameters()))
        for each in made
    )


def _on_cuda(facts: Mapping[str, str]) -> Iterator[str]:
    deterministic = facts["deterministic algorithms"]
    if deterministic != "on":
        why = (
            "GPU kernels may add in any order (deterministic algorithms are off)."
            if deterministic == "off"
            else "GPU kernels that have no deterministic form run anyway (warn_only)."
        )
        yield f"{why} Write torch.use_deterministic_algorithms(True) in the first cell."
    if facts["cublas workspace"] not in _WORKSPACES:
        yield (
            f"cuBLAS may add in any order ({_WORKSPACE} is {facts['cublas workspace']}). Write "
            f'os.environ["{_WORKSPACE}"] = ":4096:8" in the first cell, before anything is on the GPU, and restart.'
        )
    if facts.get("cudnn benchmark") == "True":
        yield (
            "cuDNN chooses kernels by timing them (cudnn.benchmark is on): another may win next time. "
            "Write torch.backends.cudnn.benchmark = False."
        )


def _exceptions(facts: Mapping[str, str]) -> Iterator[str]:
    # 100,000 rows on two threads: 19 of 20 gradients differed, torch 2.13; no other operation is listed for the CPU.
    if facts["deterministic algorithms"] == "off" and facts["threads"] != "1":
        yield (
            f"The gradient of x[index] with an index tensor is added in any order on {facts['threads']} threads. Where "
            "your model has one, write torch.use_deterministic_algorithms(True) in the first cell."
        )


def _unread(facts: Mapping[str, str]) -> Iterator[str]:
    names = [
        name
        for name, value in facts.items()
        if value.startswith(UNREADABLE)
        and all(facts.get(newer, UNREADABLE).startswith(UNREADABLE) for newer in _NEWER.get(name, ()))
    ]
    if names:
        yield f"Could not be read, so that a change would not be noticed: {', '.join(names)}."


def _read(places: Mapping[str, str]) -> dict[str, str]:
    return read_facts({name: partial(_look, place) for name, place in places.items()})


def _look(place: str) -> object:
    value: Any = torch
    for name in place.split("."):
        value = getattr(value, name)
    return value() if callable(value) else value


def _deterministic() -> str:
    if not torch.are_deterministic_algorithms_enabled():
        return "off"
    return "warn only" if torch.is_deterministic_algorithms_warn_only_enabled() else "on"


def _cards(devices: Iterable[str]) -> str:
    ours = [device for device in devices if device.startswith("cuda")]
    return ", ".join(
        f"{torch.cuda.get_device_name(d)} {'.'.join(map(str, torch.cuda.get_device_capability(d)))}" for d in ours
    )


def _around_cuda(environment: Environment) -> dict[str, str]:
    """What the machine adds: variables that libraries read by themselves, and the driver."""
    variables = environment.environ
    facts = {
        "cublas workspace": variables.get(_WORKSPACE, "not set"),
        "NVIDIA_TF32_OVERRIDE": variables.get("NVIDIA_TF32_OVERRIDE", "not set"),
    }
    driver = re.search(r"Kernel Module\D+([\d.]+)", environment.text("/proc/driver/nvidia/version", 4096))
    return facts if driver is None else {**facts, "driver": driver[1]}


def _autotuned(modules: Iterable[torch.nn.Module]) -> list[str] | None:
    """The switches that have torch.compile time kernels, of those that are on; None if nothing compiles here."""
    config: Any = sys.modules.get("torch._inductor.config")
    if config is None:
        return None
    compiled = [getattr(getattr(module, "dynamo_ctx", None), "compiler_config", None) for module in modules]
    settings = [settings for settings in compiled if isinstance(settings, Mapping)]
    values = {
        name: str(any(each.get(name) for each in settings) or getattr(config, name, False)) for name in _AUTOTUNING
    }
    return [name for name, value in values.items() if value == "True"]


def place() -> tuple[int, int]:
    """The rank of this process among those of torch.distributed, and their number; (0, 1) for a training by itself."""
    group: Any = torch.distributed
    if not (group.is_available() and group.is_initialized()):
        return 0, 1
    return int(group.get_rank()), int(group.get_world_size())
