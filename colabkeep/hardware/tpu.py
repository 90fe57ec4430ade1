"""Google's TPUs, seen on the PCI bus. Listing them through jax would claim them."""

from __future__ import annotations

from colabkeep.hardware.base import Accelerator, Answer
from colabkeep.hardware.folders import PciDevice, names, numbered, pci_devices
from colabkeep.vocabulary.environment import Environment

__all__ = ["TpuFinder"]

_GOOGLE = "0x1ae0"  # its network cards and disks too, on every machine of its cloud: only the ids below are TPUs
_CHIPS = {
    # (device, subsystem): chip. wandb `core/pkg/monitor/tpu.go`, torch_xla `tpu.py`; read 2026.
    ("0x0027", "0x004e"): "v2",
    ("0x0027", "0x004f"): "v3",
    ("0x005e", ""): "v4",
    ("0x0063", ""): "v5e",
    ("0x0062", ""): "v5p",
    ("0x006f", ""): "v6e",
    ("0x0076", ""): "v7",
}
_OLD = "0x0027"  # v2 or v3
_NAMES_AND_GIB = {
    # Names as jax has them (`device_kind`); GiB of memory of one chip, Google Cloud's TPU documentation, 2026.
    "v2": ("TPU v2", 16),
    "v3": ("TPU v3", 32),
    "v4": ("TPU v4", 32),
    "v5e": ("TPU v5 lite", 16),
    "v5p": ("TPU v5p", 95),
    "v6e": ("TPU v6 lite", 32),
    "v7": ("TPU7x", 192),
}
_TYPES = {
    "v2": "v2",
    "v3": "v3",
    "v4": "v4",
    "v5litepod": "v5e",
    "v5e": "v5e",
    "v5p": "v5p",
    "v6e": "v6e",
    "tpu7x": "v7",
}


class TpuFinder:
    """One accelerator for each chip; a v2 or v3 chip has two cores with half of the memory each.

    Variables are hints, never proof, for a user may set them anywhere: TPU_ACCELERATOR_TYPE tells v2 from v3, and
    where the bus cannot be seen, a device file together with one of the variables is believed.
    """

    name = "tpu"

    def find(self, environment: Environment, *, timeout: float) -> Answer:
        if names(environment, "/sys/bus/pci/devices"):
            chips = (_chip(device, environment) for device in pci_devices(environment, _GOOGLE))
            return [_accelerator(chip) for chip in chips if chip is not None]
        variables = environment.environ
        hinted = "TPU_ACCELERATOR_TYPE" in variables or "ISTPUVM" in variables or variables.get("PJRT_DEVICE") == "TPU"
        nodes = numbered(environment, "/dev", "accel") or numbered(environment, "/dev/vfio", "")
        return [_accelerator(_hint(environment)) for _ in nodes] if hinted else []


def _chip(device: PciDevice, environment: Environment) -> str | None:
    """Its generation; "" for one that is only known to be old; None for what is no TPU."""
    if device.device == _OLD:
        return _CHIPS.get((_OLD, device.subsystem)) or _hint(environment)
    return _CHIPS.get((device.device, ""))


def _hint(environment: Environment) -> str:
    """The generation in TPU_ACCELERATOR_TYPE, such as "v5litepod-8"; "" if it is not said."""
    return _TYPES.get(environment.environ.get("TPU_ACCELERATOR_TYPE", "").partition("-")[0].lower(), "")


def _accelerator(chip: str) -> Accelerator:
    title, gib = _NAMES_AND_GIB.get(chip, ("TPU", None))
    return Accelerator(kind="tpu", name=title, memory_bytes=None if gib is None else gib << 30, found_by=TpuFinder.name)
