"""NVIDIA's cards, asked through the driver's management library: the quickest way, and no CUDA context."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from colabkeep.hardware.base import Accelerator, Answer, Trouble
from colabkeep.hardware.folders import names
from colabkeep.hardware.nvidia_troubles import MISMATCH, failed, silent, without_slices
from colabkeep.hardware.patience import within
from colabkeep.hardware.visible import seen
from colabkeep.vocabulary.environment import Environment

__all__ = ["NvmlFinder"]

_DOORS = frozenset({"nvidiactl", "dxg"})  # how the library reaches the driver: Linux, and WSL
_WHO = "The driver's library (NVML)"
_NOT_HERE = frozenset({"DriverNotLoaded", "LibraryNotFound", "FunctionNotFound"})  # no driver, or not of this age


class NvmlFinder:
    """Knows everything that is asked, slices of a partitioned card (MIG) included.

    Needs the package `pynvml` (nvidia-ml-py; Colab's GPU image has it), and is not even imported on a machine
    without the driver's device file. A driver in trouble may never answer.
    """

    name = "nvml"

    def find(self, environment: Environment, *, timeout: float) -> Answer:
        if not _DOORS & set(names(environment, "/dev")):
            return []
        found = within(timeout, _ask, otherwise=silent(_WHO))
        return found if isinstance(found, Trouble) else seen(found, environment, "CUDA_VISIBLE_DEVICES")


def _ask() -> list[Accelerator] | Trouble:
    try:
        nvml: Any = import_module("pynvml")
        nvml.nvmlInit()
        try:
            driver = _text(nvml.nvmlSystemGetDriverVersion())
            handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
            found = [card for handle in handles for card in _cards(nvml, handle, driver)]
            return found if found or not handles else without_slices([_name(nvml, handle) for handle in handles])
        finally:
            nvml.nvmlShutdown()
    except Exception as error:  # noqa: BLE001  a package that is absent, or lacks one of these, tells nothing
        family, _, kind = type(error).__name__.partition("_")
        if family != "NVMLError" or kind in _NOT_HERE:
            return []
        return MISMATCH if kind == "LibRmVersionMismatch" else failed(_WHO, f"failed ({kind or family})")


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
            name=_name(nvml, part),
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


def _name(nvml: Any, handle: Any) -> str:
    return _text(nvml.nvmlDeviceGetName(handle))


def _text(value: Any) -> str:
    """Older versions of the package give bytes."""
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)
