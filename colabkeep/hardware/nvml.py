"""NVIDIA's cards, asked through the driver's management library: the quickest way, and no CUDA context."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from colabkeep.hardware.base import Accelerator
from colabkeep.hardware.folders import names
from colabkeep.hardware.visible import visible
from colabkeep.vocabulary.environment import Environment

__all__ = ["NvmlFinder"]

_DOORS = frozenset({"nvidiactl", "dxg"})  # how the library reaches the driver: Linux, and WSL


class NvmlFinder:
    """Knows everything that is asked, slices of a partitioned card (MIG) included.

    Needs the package `pynvml` (nvidia-ml-py; Colab's GPU image has it), and is not even imported on a machine
    without the driver's device file. The library is asked in a thread, because a driver in trouble may never answer:
    then that thread is left behind, and ends with the process.
    """

    name = "nvml"

    def find(self, environment: Environment, *, timeout: float) -> Sequence[Accelerator] | None:
        if not _DOORS & set(names(environment, "/dev")):
            return None
        try:
            nvml = import_module("pynvml")
        except Exception:  # noqa: BLE001  a package that is absent, or broken in any way, tells nothing
            return None
        answers: SimpleQueue[list[Accelerator] | None] = SimpleQueue()
        Thread(target=lambda: answers.put(_ask(nvml)), name="colabkeep-nvml", daemon=True).start()
        try:
            found = answers.get(timeout=timeout)
        except Empty:
            return None
        return None if found is None else visible(found, environment.environ.get("CUDA_VISIBLE_DEVICES"))


def _ask(nvml: Any) -> list[Accelerator] | None:
    try:
        nvml.nvmlInit()
        try:
            driver = _text(nvml.nvmlSystemGetDriverVersion())
            handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
            return [card for handle in handles for card in _cards(nvml, handle, driver)]
        finally:
            nvml.nvmlShutdown()
    except Exception:  # noqa: BLE001  NVMLError, or a version of the package that lacks one of these: ask another way
        return None


def _parts(nvml: Any, handle: Any) -> Iterator[Any]:
    """The card, or its slices if it is partitioned: then it cannot be used as a whole."""
    try:
        partitioned = nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE
    except (nvml.NVMLError, AttributeError):  # before Ampere there is no such mode
        partitioned = False
    if not partitioned:
        yield handle
        return
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except nvml.NVMLError_NotFound:  # places for slices are numbered with gaps
            continue
        yield part


def _cards(nvml: Any, handle: Any, driver: str) -> Iterator[Accelerator]:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)  # a slice has that of its card
    for part in _parts(nvml, handle):
        memory = _memory(nvml, part)
        yield Accelerator(
            kind="cuda",
            name=_text(nvml.nvmlDeviceGetName(part)),
            memory_bytes=None if memory is None else int(memory.total),
            used_bytes=None if memory is None else int(memory.used),
            capability=(int(major), int(minor)),
            uuid=_text(nvml.nvmlDeviceGetUUID(part)),
            driver=driver,
            found_by=NvmlFinder.name,
        )


def _memory(nvml: Any, handle: Any) -> Any:
    try:
        # The second version does not count what the driver keeps for itself as used, as nvidia-smi does not.
        return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except (nvml.NVMLError, AttributeError, TypeError):  # an old driver, or an old package
        pass
    try:
        return nvml.nvmlDeviceGetMemoryInfo(handle)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_NoPermission):  # memory shared with the computer; a guest
        return None


def _text(value: Any) -> str:
    """Older versions of the package give bytes."""
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)
