"""What the kernel shows of its devices: names in a folder, numbered device files, and the PCI bus.

Device files are neither files nor folders to Python, so they are looked for by name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from colabkeep.vocabulary.environment import Environment

__all__ = ["PciDevice", "names", "numbered", "pci_devices"]

_PCI = "/sys/bus/pci/devices"


@dataclass(frozen=True, slots=True, kw_only=True)
class PciDevice:
    """One device of the bus: its address, and its ids in the form of the kernel ("0x10de"); "" where not told."""

    address: str
    vendor: str
    device: str
    subsystem: str
    kind: str


def names(environment: Environment, folder: str) -> tuple[str, ...]:
    """What lies in `folder`, sorted; () if it is not there or may not be looked at."""
    try:
        return tuple(sorted(entry.name for entry in environment.path(folder).iterdir()))
    except OSError:
        return ()


def numbered(environment: Environment, folder: str, stem: str) -> tuple[int, ...]:
    """The numbers n, in order, for which `folder` has a `stem` + n."""
    matches = (re.fullmatch(re.escape(stem) + r"([0-9]{1,4})", name) for name in names(environment, folder))
    return tuple(sorted(int(match[1]) for match in matches if match))


def pci_devices(environment: Environment, vendor: str) -> tuple[PciDevice, ...]:
    """The devices of one vendor, in the order of their address. A container may be shown those of the whole host."""
    found = []
    for address in names(environment, _PCI):
        folder = f"{_PCI}/{address}"
        if environment.text(f"{folder}/vendor", 16).strip() == vendor:
            device, subsystem, kind = (
                environment.text(f"{folder}/{name}", 16).strip() for name in ("device", "subsystem_device", "class")
            )
            found.append(PciDevice(address=address, vendor=vendor, device=device, subsystem=subsystem, kind=kind))
    return tuple(found)
