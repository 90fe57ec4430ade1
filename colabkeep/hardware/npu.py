"""Huawei's Ascend cards."""

from __future__ import annotations

from colabkeep.hardware.base import Accelerator, Answer
from colabkeep.hardware.folders import numbered, pci_devices
from colabkeep.hardware.visible import seen
from colabkeep.vocabulary.environment import Environment

__all__ = ["NpuFinder"]

_HUAWEI = "0x19e5"
_ASCEND = {
    # By PCI device, as the installer of Huawei's driver has them, 2026.
    "0xd100": "Ascend 310",
    "0xd500": "Ascend 310P",
    "0xd801": "Ascend 910",
    "0xd802": "Ascend 910B",
    "0xd803": "Ascend 910C",
}


class NpuFinder:
    """Knows how many were handed to this machine (/dev/davinci0, …), and which if the PCI bus shows one sort only."""

    name = "npu"

    def find(self, environment: Environment, *, timeout: float) -> Answer:
        known = {_ASCEND[device.device] for device in pci_devices(environment, _HUAWEI) if device.device in _ASCEND}
        title = known.pop() if len(known) == 1 else "Ascend NPU"
        cards = [
            Accelerator(kind="npu", name=title, found_by=self.name) for _ in numbered(environment, "/dev", "davinci")
        ]
        return seen(cards, environment, "ASCEND_RT_VISIBLE_DEVICES")
