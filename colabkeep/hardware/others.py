"""TPUs, and AMD's, Intel's, Kunlun and Ascend cards, as the kernel shows them: one row each. Apple's GPUs. And cards
as torch tells them, once the user's code has started them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from colabkeep.core.system import Environment
from colabkeep.core.timeouts import within_or
from colabkeep.hardware.base import (
    PCI,
    Accelerator,
    Answer,
    Kind,
    PciDevice,
    Trouble,
    names,
    numbered,
    pci_devices,
    seen,
)
from colabkeep.hardware.programs import ask, locate


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One maker's accelerators. `chips`: their names, and GiB of memory where that is known, by PCI device, or device
    and subsystem. `otherwise`: the name of another device of this vendor, "" where that is no accelerator.

    `display`: only graphics count, and none that is built into a processor. `least_bytes`: of memory. `needs`: a file
    in /dev without which no framework computes. `files`: what the device files in /dev are called, before their number,
    where a container sees the whole host's bus and only its own files. `variables`: those that hide devices.
    `hints`: variables that tell, with a device file below one of `nodes`, of a device whose bus is not shown.
    """

    kind: Kind
    vendor: str
    chips: Mapping[str, tuple[str, int | None]] = field(default_factory=dict)
    otherwise: str = ""
    display: bool = False
    least_bytes: int = 0
    needs: str = ""
    files: str = ""
    variables: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    nodes: tuple[tuple[str, str], ...] = ()


ROWS = (
    Row(  # ids: wandb `core/pkg/monitor/tpu.go`, torch_xla `tpu.py`; names: jax; memory: Google Cloud; all read in 2026
        kind="tpu",
        vendor="0x1ae0",  # network cards and disks of Google's cloud, too: only these are TPUs
        chips={
            "0x0027 0x004e": ("TPU v2", 16),
            "0x0027 0x004f": ("TPU v3", 32),
            "0x0027": ("TPU", None),
            "0x005e": ("TPU v4", 32),
            "0x0063": ("TPU v5 lite", 16),
            "0x0062": ("TPU v5p", 95),
            "0x006f": ("TPU v6 lite", 32),
            "0x0076": ("TPU7x", 192),
        },
        hints=("TPU_ACCELERATOR_TYPE", "ISTPUVM"),
        nodes=(("/dev", "accel"), ("/dev/vfio", "")),
    ),
    Row(  # files of the amdgpu driver: "Linux GPU driver developer's guide", kernel 6
        kind="rocm",
        vendor="0x1002",
        otherwise="AMD GPU",
        least_bytes=4 << 30,  # below that it is graphics built into a processor, which ROCm does not support
        needs="kfd",
        variables=("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    ),
    Row(kind="xpu", vendor="0x8086", otherwise="Intel GPU", display=True, needs="dri"),
    Row(  # ids: pci.ids (pciutils, 2026); files: Paddle's container instructions
        kind="xpu",
        vendor="0x1d22",
        chips={"0x3684": ("Kunlun K200", None), "0x3685": ("Kunlun R200", None), "0x3688": ("Kunlun P800", None)},
        otherwise="Kunlun XPU",
        files="xpu",
        variables=("XPU_VISIBLE_DEVICES",),
    ),
    Row(  # ids: the installer of Huawei's driver, 2026
        kind="npu",
        vendor="0x19e5",
        chips={
            "0xd100": ("Ascend 310", None),
            "0xd500": ("Ascend 310P", None),
            "0xd801": ("Ascend 910", None),
            "0xd802": ("Ascend 910B", None),
            "0xd803": ("Ascend 910C", None),
        },
        otherwise="Ascend NPU",
        files="davinci",
        variables=("ASCEND_RT_VISIBLE_DEVICES",),
    ),
)

_DISPLAY = ("0x0300", "0x0380")  # PCI classes: graphics with and without a screen
_BUILT_IN = ":00:02.0"  # graphics built into an Intel processor always has this address
_DIGITS = 16  # more than any number of bytes has


def find_listed(row: Row, environment: Environment, _timeout: float) -> Answer:
    """The devices of one row. Files are read at once."""
    if row.needs and row.needs not in names(environment, "/dev"):
        return []
    found = [one for device in pci_devices(environment, row.vendor) if (one := _device(row, device, environment))]
    if row.files:
        sorts = {one.name for one in found if one.name != row.otherwise}
        name = sorts.pop() if len(sorts) == 1 else row.otherwise
        found = [_named(row, name) for _ in numbered(environment, "/dev", row.files)]
    elif row.hints and not names(environment, PCI) and any(environment.environ.get(name) for name in row.hints):
        nodes = next((nodes for place in row.nodes if (nodes := numbered(environment, *place))), ())
        found = [_named(row, "TPU") for _ in nodes]
    return seen(found, environment, *row.variables)


def _device(row: Row, device: PciDevice, environment: Environment) -> Accelerator | None:
    def told(name: str) -> str:
        return environment.text(f"{PCI}/{device.address}/{name}", 256).strip()

    if row.display and (not device.kind.startswith(_DISPLAY) or device.address.endswith(_BUILT_IN)):
        return None
    by_subsystem = row.chips.get(f"{device.device} {device.subsystem}")
    name, gib = by_subsystem or row.chips.get(device.device) or (row.otherwise, None)
    memory = _number(told("mem_info_vram_total")) if gib is None else gib << 30
    if not name or (memory or 0) < row.least_bytes:
        return None
    if name == row.otherwise and not row.files:
        name = told("product_name") or f"{name} {device.device}"
    return _named(row, name, memory, _number(told("mem_info_vram_used")))


def _named(row: Row, name: str, memory: int | None = None, used: int | None = None) -> Accelerator:
    return Accelerator(kind=row.kind, name=name, memory_bytes=memory, used_bytes=used, found_by="kernel")


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < _DIGITS else None


_MACOS = "/System/Library/CoreServices/SystemVersion.plist"
_LONGEST_NAME = 200


def find_apple(environment: Environment, timeout: float) -> Answer:
    """Each of Apple's own processors has one GPU, which shares the computer's memory. `sysctl` comes with macOS; torch
    (2.3 and later) runs on no other Macs."""
    program = locate(environment, "sysctl", also=("/usr/sbin",)) if environment.is_file(_MACOS) else None
    if program is None:
        return []
    answer = ask((program, "-n", "machdep.cpu.brand_string", "hw.memsize"), environment.environ, timeout=timeout)
    if answer is None:
        return []
    if answer.code is None:
        return Trouble(
            problem="macOS gave no answer when it was asked for its processor (sysctl)",
            remedy="Run  import torch; torch.backends.mps.is_available()  in a cell: it says whether torch finds it.",
        )
    name, _, memory = answer.text.strip().partition("\n")
    if answer.code != 0 or not name.startswith("Apple ") or not name.isprintable() or len(name) > _LONGEST_NAME:
        return []
    return [Accelerator(kind="mps", name=f"{name.strip()} GPU", memory_bytes=_number(memory), found_by="sysctl")]


_SILENT = Trouble(
    problem="torch, as loaded here, gave no answer when it was asked for its GPUs",
    remedy="Run !nvidia-smi in a cell: if it hangs too, restart the session.",
)


def find_loaded(environment: Environment, timeout: float) -> Answer:
    """Cards as torch tells them, once the user's code has started them. Imports and initialises nothing.

    For machines without the driver's own tools, and Intel's cards, whose names and memory nobody else tells. The list
    is as torch counts. Memory in use is not asked for: that would open a context on every card.
    """
    torch = sys.modules.get("torch") if "torch" in environment.modules else None
    # A call into a driver in trouble fails, or never returns.
    return [] if torch is None else within_or(timeout, partial(_ask, torch), otherwise=_SILENT)


def _ask(torch: Any) -> list[Accelerator]:
    try:
        if torch.cuda.is_initialized():
            cards = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
            if torch.version.hip:
                return [_card("rocm", card) for card in cards]
            return [_card("cuda", card, capability=(int(card.major), int(card.minor))) for card in cards]
        if torch.xpu.is_initialized():
            return [_card("xpu", torch.xpu.get_device_properties(index)) for index in range(torch.xpu.device_count())]
    except (AttributeError, TypeError):  # half imported, without this part, or another package of that name
        pass
    return []


def _card(kind: Any, properties: Any, **more: Any) -> Accelerator:
    name, memory = str(properties.name), int(properties.total_memory)
    return Accelerator(kind=kind, name=name, memory_bytes=memory, found_by="torch", **more)
