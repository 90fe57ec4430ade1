"""TPUs, Apple's graphics, AMD's, Intel's, Kunlun and Ascend cards, as the kernel shows them."""

from __future__ import annotations

from colabkeep.core.system import Environment
from colabkeep.hardware.base import Accelerator, Answer, Hidden, PciDevice, Trouble, names, numbered, pci_devices, seen
from colabkeep.hardware.probe import ask, locate

__all__ = [
    "MpsFinder",
    "NpuFinder",
    "RocmFinder",
    "TpuFinder",
    "XpuFinder",
]

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


_MACOS = "/System/Library/CoreServices/SystemVersion.plist"
_MAKER = "Apple "  # "Apple M2 Pro"; processors of Intel's, and virtual machines, call themselves otherwise
_DIGITS = 16  # more than any number of bytes has
_LONGEST_NAME = 200


class MpsFinder:
    """Each of Apple's own processors has one GPU, which shares the computer's memory. Known by `sysctl`, which comes
    with macOS; torch (2.3 and later) runs on no other Macs."""

    name = "mps"

    def find(self, environment: Environment, *, timeout: float) -> Answer:
        program = locate(environment, "sysctl", also=("/usr/sbin",)) if environment.is_file(_MACOS) else None
        if program is None:
            return []
        answer = ask((program, "-n", "machdep.cpu.brand_string", "hw.memsize"), environment.environ, timeout=timeout)
        if answer is None:
            return []
        if answer.code is None:
            return Trouble(problem="macOS gave no answer when it was asked for its processor (sysctl)", remedy=_LOOK)
        name, _, memory = answer.text.strip().partition("\n")
        if answer.code != 0 or not name.startswith(_MAKER) or not name.isprintable() or len(name) > _LONGEST_NAME:
            return []
        known = memory.isascii() and memory.isdigit() and len(memory) < _DIGITS
        return [
            Accelerator(
                kind="mps",
                name=f"{name.strip()} GPU",
                memory_bytes=int(memory) if known else None,
                found_by=self.name,
            )
        ]


_LOOK = "Run  import torch; torch.backends.mps.is_available()  in a cell: it says whether torch finds the GPU."


_AMD = "0x1002"
_LEAST_BYTES = 4 << 30  # below that it is graphics built into a processor, which ROCm does not support
_DIGITS_OF_ROCM = 16  # more than any number of bytes has
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
    return int(text) if text.isascii() and text.isdigit() and len(text) < _DIGITS_OF_ROCM else None


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
