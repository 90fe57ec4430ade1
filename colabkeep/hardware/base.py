"""What is known of an accelerator, and what the kernel and variables such as CUDA_VISIBLE_DEVICES show of them.

A way of finding them is a function of the environment and a time in seconds. It answers in that time, whatever the
tool it asks does; it initialises no CUDA, imports no framework, touches no network, and raises nothing for what the
machine is like. It returns nothing where it finds nothing, `Hidden` where a variable takes away all that it found, and
`Trouble` where a device or its tool is here and does not answer sensibly.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from colabkeep.core.system import Environment

Kind: TypeAlias = Literal["cuda", "rocm", "tpu", "xpu", "npu", "mps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One device. `name`: exactly as the machine tells it. `memory_bytes`: in all; `used_bytes`: used now, by whom
    ever. `capability`: (major, minor) of CUDA. `uuid`, `driver`: as told. `found_by`: who told. None where it was not
    told."""

    kind: Kind
    name: str
    memory_bytes: int | None = None
    used_bytes: int | None = None
    capability: tuple[int, int] | None = None
    uuid: str | None = None
    driver: str | None = None
    found_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """There are accelerators, `count` of them, and `variable`, which is set to `value`, leaves none to this process."""

    variable: str
    value: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """An accelerator, or the tool that comes with it, is here and does not say what it should. `problem`: what
    happened, without a full stop; `remedy`: the next thing to do, as a sentence. `usable`: False where it is certain
    that no framework can compute on it, None where that is not known."""

    problem: str
    remedy: str
    usable: Literal[False] | None = None


Answer: TypeAlias = Sequence[Accelerator] | Hidden | Trouble


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """A framework as installed here, found without importing it. `version`: "2.11.0+cu128". `cuda`: "12.8", None for
    a build without CUDA; `hip`: the same for AMD's cards, never known of Paddle. `architectures`: what it has kernels
    for ("sm_75", …, "compute_120"); None if not known. `known_from`: "loaded" (asked the imported framework), "table"
    (this version's published wheels), "stated" (by Paddle's version file, which does not tell portable code: so "…"
    ends the list)."""

    framework: str
    version: str
    cuda: str | None
    architectures: tuple[str, ...] | None
    known_from: Literal["loaded", "table", "stated", "unknown"]
    hip: str | None = None


# Device files are neither files nor folders to Python, so they are looked for by name.


PCI = "/sys/bus/pci/devices"


@dataclass(frozen=True, slots=True, kw_only=True)
class PciDevice:
    """One device of the bus: its address, and its ids in the form of the kernel ("0x0027"); "" where not told."""

    address: str
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
    for address in names(environment, PCI):
        folder = f"{PCI}/{address}"
        if environment.text(f"{folder}/vendor", 16).strip() == vendor:
            device, subsystem, kind = (
                environment.text(f"{folder}/{name}", 16).strip() for name in ("device", "subsystem_device", "class")
            )
            found.append(PciDevice(address=address, device=device, subsystem=subsystem, kind=kind))
    return tuple(found)


# As the driver reads it: "1 and more" is 1. Numbers of more digits name no device there is.
_NUMBER = re.compile(r"\s*[+-]?0*([0-9]{1,4})(?![0-9])")


def seen(accelerators: Sequence[Accelerator], environment: Environment, *variables: str) -> list[Accelerator] | Hidden:
    """The accelerators that `variables` leave to this process, each counting what the one before has left; `Hidden`
    where one of them takes the last away."""
    left = list(accelerators)
    for variable in variables:
        value = environment.environ.get(variable)
        before, left = left, visible(left, value)
        if before and not left:
            return Hidden(variable=variable, value=value or "", count=len(before))
    return left


def visible(accelerators: Sequence[Accelerator], value: str | None) -> list[Accelerator]:
    """The accelerators that `value` names, in its order; all of them if it is None.

    The driver's rules (CUDA programming guide, "CUDA environment variables"; torch's `torch/cuda/__init__.py` does
    the same): indexes, or identifiers that may be cut short as long as they stay unique. The list ends before the
    first entry that names no device, such as -1, and names nothing if an entry comes twice. Indexes count devices
    as the driver's tools do; where two different cards are in one machine, CUDA itself may count the faster one first
    unless CUDA_DEVICE_ORDER is PCI_BUS_ID.
    """
    if value is None:
        return list(accelerators)
    by_identifier = value.lstrip().startswith(("GPU-", "MIG-"))
    chosen: list[int] = []
    for entry in value.split(","):
        index = _identified(accelerators, entry.strip()) if by_identifier else _counted(accelerators, entry)
        if index is None:
            break
        if index in chosen:
            return []
        chosen.append(index)
    return [accelerators[index] for index in chosen]


def _counted(accelerators: Sequence[Accelerator], entry: str) -> int | None:
    match = _NUMBER.match(entry)
    if match is None:
        return None
    index = int(match[1])
    negative = index > 0 and "-" in match[0]
    return index if index < len(accelerators) and not negative else None


def _identified(accelerators: Sequence[Accelerator], entry: str) -> int | None:
    if not entry.startswith(("GPU-", "MIG-")):
        return None
    fits = [number for number, one in enumerate(accelerators) if (one.uuid or "").startswith(entry)]
    return fits[0] if len(fits) == 1 else None
