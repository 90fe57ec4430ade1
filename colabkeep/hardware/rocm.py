"""AMD's cards, as the kernel's driver shows them."""

from __future__ import annotations

from colabkeep.hardware.base import Accelerator, Answer
from colabkeep.hardware.folders import names, pci_devices
from colabkeep.hardware.visible import seen
from colabkeep.vocabulary.environment import Environment

__all__ = ["RocmFinder"]

_AMD = "0x1002"
_LEAST_BYTES = 4 << 30  # below that it is graphics built into a processor, which ROCm does not support
_DIGITS = 16  # more than any number of bytes has
_VARIABLES = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


class RocmFinder:
    """Knows memory in all and used; the product's name only where the card carries one.

    Files of the amdgpu driver ("Linux GPU driver developer's guide", kernel 6). Computing goes through /dev/kfd: a
    container without it cannot use a card that it sees.
    """

    name = "rocm"

    def find(self, environment: Environment, *, timeout: float) -> Answer:
        if "kfd" not in names(environment, "/dev"):
            return []
        cards = [_card(environment, device.address, device.device) for device in pci_devices(environment, _AMD)]
        found = [card for card in cards if (card.memory_bytes or 0) >= _LEAST_BYTES]
        return seen(found, environment, *_VARIABLES)


def _card(environment: Environment, address: str, device: str) -> Accelerator:
    def told(name: str) -> str:
        return environment.text(f"/sys/bus/pci/devices/{address}/{name}", 256).strip()

    return Accelerator(
        kind="rocm",
        name=told("product_name") or f"AMD GPU {device}",
        memory_bytes=_number(told("mem_info_vram_total")),
        used_bytes=_number(told("mem_info_vram_used")),
        found_by=RocmFinder.name,
    )


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < _DIGITS else None
