"""Signs of NVIDIA's cards where nobody tells which: the second witness, so that a silent tool is not taken for none."""

from __future__ import annotations

from colabkeep.hardware.base import Answer
from colabkeep.hardware.folders import numbered, pci_devices
from colabkeep.hardware.nvidia_smi import find_program
from colabkeep.hardware.nvidia_troubles import traces
from colabkeep.vocabulary.environment import Environment

__all__ = ["NvidiaTraces"]

_NVIDIA = "0x10de"
_DISPLAY = "0x03"  # PCI classes of graphics, with and without a screen; cards have sound and USB on the bus, too


class NvidiaTraces:
    """A card's device file is a sign. One on the PCI bus is a sign only beside `nvidia-smi`: a container is shown the
    bus of its host, whether or not it was handed the cards, and a laptop may use its card for the screen alone."""

    name = "traces"

    def find(self, environment: Environment, *, timeout: float) -> Answer:
        if files := numbered(environment, "/dev", "nvidia"):
            return traces(f"/dev/nvidia{files[0]}")
        if find_program(environment) is not None:
            for device in pci_devices(environment, _NVIDIA):
                if device.kind.startswith(_DISPLAY):
                    return traces(f"PCI device {device.address}")
        return []
