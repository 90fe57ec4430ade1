"""What the kernel shows of NVIDIA's cards, whoever else is silent."""

from __future__ import annotations

from colabkeep.hardware.folders import numbered, pci_devices
from colabkeep.vocabulary.environment import Environment

__all__ = ["device_file", "on_the_bus"]

_NVIDIA = "0x10de"
_DISPLAY = "0x03"  # PCI classes of graphics, with and without a screen; cards have sound and USB on the bus, too


def device_file(environment: Environment) -> str:
    """The device file of a card; "" where there is none."""
    files = numbered(environment, "/dev", "nvidia")
    return f"/dev/nvidia{files[0]}" if files else ""


def on_the_bus(environment: Environment) -> str:
    """The place of a card on the PCI bus; "" where none is. A container is shown the bus of its host, whether or not it
    was handed the cards, and a laptop may use its card for the screen alone."""
    cards = (one.address for one in pci_devices(environment, _NVIDIA) if one.kind.startswith(_DISPLAY))
    return next((f"PCI device {address}" for address in cards), "")
