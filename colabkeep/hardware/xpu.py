"""Baidu's Kunlun cards, as AI Studio has them, and Intel's graphics cards. Frameworks call both "xpu"."""

from __future__ import annotations

from colabkeep.hardware.base import Accelerator, Answer, Hidden
from colabkeep.hardware.folders import names, numbered, pci_devices
from colabkeep.hardware.visible import seen
from colabkeep.vocabulary.environment import Environment

__all__ = ["XpuFinder"]

_BAIDU = "0x1d22"
_KUNLUN = {"0x3684": "Kunlun K200", "0x3685": "Kunlun R200", "0x3688": "Kunlun P800"}
"""By PCI device. pci.ids (pciutils, 2026) lists the first two as Kunlun and Kunlun 2."""

_INTEL = "0x8086"
_DISPLAY = ("0x0300", "0x0380")  # PCI classes: graphics with and without a screen
_BUILT_IN = "00:02.0"  # graphics built into an Intel processor always has this address; it is no accelerator


class XpuFinder:
    """Knows how many there are and roughly which; memory is told only by the makers' own tools.

    A container sees the whole host's PCI bus and only its own device files, so Kunlun cards are counted by the
    latter (/dev/xpu0, …, as Paddle's container instructions hand them over).
    """

    name = "xpu"

    def find(self, environment: Environment, *, timeout: float) -> Answer:
        kunlun = [_named(_kunlun(environment)) for _ in numbered(environment, "/dev", "xpu")]
        left, intel = seen(kunlun, environment, "XPU_VISIBLE_DEVICES"), _intel(environment)
        return (intel or left) if isinstance(left, Hidden) else [*left, *intel]


def _kunlun(environment: Environment) -> str:
    known = {_KUNLUN[device.device] for device in pci_devices(environment, _BAIDU) if device.device in _KUNLUN}
    return known.pop() if len(known) == 1 else "Kunlun XPU"


def _intel(environment: Environment) -> list[Accelerator]:
    if not names(environment, "/dev/dri"):
        return []
    cards = pci_devices(environment, _INTEL)
    return [
        _named(f"Intel GPU {card.device}")
        for card in cards
        if card.kind.startswith(_DISPLAY) and not card.address.endswith(f":{_BUILT_IN}")
    ]


def _named(name: str) -> Accelerator:
    return Accelerator(kind="xpu", name=name, found_by=XpuFinder.name)
