"""NVIDIA's cards: asked through the driver's library or `nvidia-smi`, their signs where nobody tells, and what can
be wrong with them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from colabkeep.core.system import Environment
from colabkeep.core.timeouts import within_or
from colabkeep.hardware.base import Accelerator, Answer, Trouble, names, numbered, pci_devices, seen
from colabkeep.hardware.probe import ProgramAnswer, ask, locate

__all__ = [
    "MISMATCH",
    "NvidiaSmiFinder",
    "NvidiaTraces",
    "NvmlFinder",
    "device_file",
    "failed",
    "find_program",
    "on_the_bus",
    "silent",
    "traces",
    "without_driver",
    "without_slices",
]

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


MISMATCH = Trouble(
    problem="The NVIDIA driver was updated while it ran: its library and its kernel module are of different versions",
    remedy="Restart the machine (end this session and start a new one); nothing can compute on the GPU before that.",
    usable=False,
)


def silent(who: str) -> Trouble:
    """`who` should answer and did not."""
    return Trouble(
        problem=f"{who} gave no answer",
        remedy="Run !nvidia-smi in a cell: if it hangs too, restart the session.",
    )


def failed(who: str, how: str) -> Trouble:
    """`who` answered, and the answer is an error or nonsense."""
    return Trouble(
        problem=f"{who} {how}",
        remedy="Run !nvidia-smi in a cell: if it does not list the GPU as it should, restart the session.",
    )


def traces(sign: str) -> Trouble:
    """A `sign` of a card is there, and nothing that tells which."""
    return Trouble(
        problem=f"A GPU of NVIDIA's is on this machine ({sign}), and no tool of its driver says which",
        remedy=(
            "Run !nvidia-smi in a cell. If it lists no GPU, restart the session; a container of your own has to be "
            "started with --gpus=all."
        ),
    )


def without_driver(sign: str, code: int) -> Trouble:
    """A `sign` of a card is there, and nvidia-smi says by its exit code that there is no driver to talk to."""
    what = "its driver is not loaded" if code == 9 else "the library of its driver is missing"
    return Trouble(
        problem=f"A GPU of NVIDIA's is on this machine ({sign}), and {what} (nvidia-smi ended with exit code {code})",
        remedy=(
            "Restart the machine (end this session and start a new one); a container of your own has to be started "
            "with --gpus=all. On a machine of your own that stays like this, install NVIDIA's driver anew."
        ),
        usable=False,
    )


def without_slices(names: Sequence[str]) -> Trouble:
    """The cards `names` are to be used in slices (MIG), and none is made."""
    return Trouble(
        problem=f"{', '.join(names)}: in MIG mode, but not divided yet, so no framework can use any of it",
        remedy=(
            'Make one slice of the whole card, "sudo nvidia-smi mig -cgi 0 -C", or leave the mode, "sudo nvidia-smi '
            '-mig 0"; then restart the kernel.'
        ),
        usable=False,
    )


_DOORS = frozenset({"nvidiactl", "dxg"})  # how the library reaches the driver: Linux, and WSL
_WHO = "The driver's library (NVML)"
_NOT_HERE = frozenset({"DriverNotLoaded", "LibraryNotFound", "FunctionNotFound"})  # no driver, or not of this age


class NvmlFinder:
    """Knows everything that is asked, slices of a partitioned card (MIG) included.

    Needs the package `pynvml` (nvidia-ml-py; Colab's GPU image has it), and is not even imported on a machine
    without the driver's device file. A driver in trouble may never answer.
    """

    name = "nvml"

    def find(self, environment: Environment, *, timeout: float) -> Answer:
        if not _DOORS & set(names(environment, "/dev")):
            return []
        found = within_or(timeout, _ask, otherwise=silent(_WHO))
        return found if isinstance(found, Trouble) else seen(found, environment, "CUDA_VISIBLE_DEVICES")


def _ask() -> list[Accelerator] | Trouble:
    try:
        nvml: Any = import_module("pynvml")
        nvml.nvmlInit()
        try:
            driver = _text(nvml.nvmlSystemGetDriverVersion())
            handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
            found = [card for handle in handles for card in _cards(nvml, handle, driver)]
            return found if found or not handles else without_slices([_name(nvml, handle) for handle in handles])
        finally:
            nvml.nvmlShutdown()
    except Exception as error:  # noqa: BLE001  a package that is absent, or lacks one of these, tells nothing
        family, _, kind = type(error).__name__.partition("_")
        if family != "NVMLError" or kind in _NOT_HERE:
            return []
        return MISMATCH if kind == "LibRmVersionMismatch" else failed(_WHO, f"failed ({kind or family})")


def _parts(nvml: Any, handle: Any) -> Iterator[Any]:
    """The card, or its slices if it is partitioned: then it cannot be used as a whole."""
    try:
        partitioned = nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE
    except (nvml.NVMLError, AttributeError):  # before Ampere there is no such mode
        partitioned = False
    if not partitioned:
        yield handle
        return
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except nvml.NVMLError_NotFound:  # places for slices are numbered with gaps
            continue
        yield part


def _cards(nvml: Any, handle: Any, driver: str) -> Iterator[Accelerator]:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)  # a slice has that of its card
    for part in _parts(nvml, handle):
        memory = _memory(nvml, part)
        yield Accelerator(
            kind="cuda",
            name=_name(nvml, part),
            memory_bytes=None if memory is None else int(memory.total),
            used_bytes=None if memory is None else int(memory.used),
            capability=(int(major), int(minor)),
            uuid=_text(nvml.nvmlDeviceGetUUID(part)),
            driver=driver,
            found_by=NvmlFinder.name,
        )


def _memory(nvml: Any, handle: Any) -> Any:
    try:
        # The second version does not count what the driver keeps for itself as used, as nvidia-smi does not.
        return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except (nvml.NVMLError, AttributeError, TypeError):  # an old driver, or an old package
        pass
    try:
        return nvml.nvmlDeviceGetMemoryInfo(handle)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_NoPermission):  # memory shared with the computer; a guest
        return None


def _name(nvml: Any, handle: Any) -> str:
    return _text(nvml.nvmlDeviceGetName(handle))


def _text(value: Any) -> str:
    """Older versions of the package give bytes."""
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)


_USUAL_FOLDERS = ("/usr/bin", "/opt/bin", "/usr/local/nvidia/bin", "/usr/lib/wsl/lib")
"""Where it lies when a shortened PATH does not say so: packages, Colab's image, GKE nodes, WSL."""

# The name comes last: it is the only one that may have a ", " in it.
_OLD_FIELDS: tuple[str, ...] = ("uuid", "memory.total", "memory.used", "driver_version", "name")
_FIELDS: tuple[str, ...] = ("compute_cap", "mig.mode.current", *_OLD_FIELDS)  # for drivers of 510 and 450 on

# Exit codes, by its manual ("RETURN VALUE").
_NO_DRIVER = (9, 12)  # it is not loaded, or its library is not there: the images of sessions without GPU are so, too
_MISMATCH = 18
_NOT_TOLD = re.compile(r"\[.*\]|N/A")  # "[N/A]", "[Not Supported]", "[Insufficient Permissions]"
_UUID = re.compile(r"GPU-[0-9a-f-]+")
_DRIVER = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6}){0,3}")
_MEMORY = re.compile(r"[0-9]{1,8}")  # MiB
_CAPABILITY = re.compile(r"([0-9]{1,2})\.([0-9]{1,2})")
_LONGEST_NAME = 200
_PARENT = re.compile(r"GPU [0-9]+: .* \(UUID: (GPU-[0-9a-f-]+)\)")
_SLICE = re.compile(r" +(MIG \S+) +Device +[0-9]+: \(UUID: (MIG-\S+)\)")


class NvidiaSmiFinder:
    """Knows name, memory and capability of every card, and the slices of a partitioned one by name.

    Lines that are not what the tool prints make the whole answer worthless: trouble.
    """

    name = "nvidia-smi"

    def find(self, environment: Environment, *, timeout: float) -> Answer:
        end = time.monotonic() + timeout
        program = find_program(environment)
        if program is None:
            return []

        def tell(*arguments: str) -> ProgramAnswer | None:
            return ask((program, *arguments), environment.environ, timeout=end - time.monotonic())

        fields = _FIELDS
        answer = tell(*_query(fields))
        if answer is not None and _does_not_know_a_field(answer):
            fields = _OLD_FIELDS
            answer = tell(*_query(fields))
        if answer is None:
            return []
        if answer.code in _NO_DRIVER:
            sign = device_file(environment) or on_the_bus(environment)
            return without_driver(sign, answer.code) if sign else []
        if answer.text.strip() == "No devices were found":  # exit code 0 or 6, by the driver's age
            return []
        rows = _rows(answer, fields)
        if rows is None:
            return _trouble(answer)
        cards = [_card(row) for row in rows]
        if any(row.get("mig.mode.current") == "Enabled" for row in rows):
            sliced = _slices(tell("-L"))
            if sliced is None:
                return failed(self.name, "does not say how the GPU is divided (MIG)")
            cards = _in_slices(cards, rows, sliced)
            if not cards:
                return without_slices([row["name"] for row in rows])
        return seen(cards, environment, "CUDA_VISIBLE_DEVICES")


def find_program(environment: Environment) -> str | None:
    """The path of `nvidia-smi`; None where there is none."""
    return locate(environment, "nvidia-smi", also=_USUAL_FOLDERS)


def _trouble(answer: ProgramAnswer) -> Answer:
    if answer.code is None:
        return silent(NvidiaSmiFinder.name)
    if answer.code == _MISMATCH:
        return MISMATCH
    how = "does not answer as it should" if answer.code == 0 else f"failed with exit code {answer.code}"
    return failed(NvidiaSmiFinder.name, how)


def _query(fields: tuple[str, ...]) -> tuple[str, str]:
    return f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"


def _does_not_know_a_field(answer: ProgramAnswer) -> bool:
    return answer.code == 2 or "not a valid field" in answer.text  # 2: "a supplied argument is invalid" (its manual)


def _rows(answer: ProgramAnswer, fields: tuple[str, ...]) -> list[dict[str, str]] | None:
    if answer.code != 0 or not answer.whole:
        return None
    lines = [line.split(", ", len(fields) - 1) for line in answer.text.splitlines()]
    rows = [dict(zip(fields, line, strict=False)) for line in lines if len(line) == len(fields)]
    return rows if rows and len(rows) == len(lines) and all(map(_makes_sense, rows)) else None


def _makes_sense(row: dict[str, str]) -> bool:
    expected = {
        "uuid": _UUID,
        "memory.total": _MEMORY,
        "memory.used": _MEMORY,
        "driver_version": _DRIVER,
        "compute_cap": _CAPABILITY,
    }
    told = {field: value for field, value in row.items() if not _NOT_TOLD.fullmatch(value)}
    return (
        "name" in told
        and told["name"].isprintable()
        and len(told["name"]) <= _LONGEST_NAME
        and "\ufffd" not in told["name"]  # bytes that were no text
        and all(pattern.fullmatch(told[field]) for field, pattern in expected.items() if field in told)
    )


def _card(row: dict[str, str]) -> Accelerator:
    told = {field: value for field, value in row.items() if not _NOT_TOLD.fullmatch(value)}
    capability = _CAPABILITY.fullmatch(told.get("compute_cap", ""))
    return Accelerator(
        kind="cuda",
        name=told["name"],
        memory_bytes=_bytes(told.get("memory.total")),
        used_bytes=_bytes(told.get("memory.used")),
        capability=(int(capability[1]), int(capability[2])) if capability else None,
        uuid=told.get("uuid"),
        driver=told.get("driver_version"),
        found_by=NvidiaSmiFinder.name,
    )


def _bytes(mebibytes: str | None) -> int | None:
    return None if mebibytes is None else int(mebibytes) << 20


def _slices(answer: ProgramAnswer | None) -> dict[str, list[tuple[str, str]]] | None:
    """Profile and uuid of each slice, by the uuid of its card."""
    if answer is None or answer.code != 0 or not answer.whole:
        return None
    slices: dict[str, list[tuple[str, str]]] = {}
    card = ""
    for line in answer.text.splitlines():
        if parent := _PARENT.fullmatch(line):
            card = parent[1]
            slices[card] = []
        elif (one := _SLICE.fullmatch(line)) and card:
            slices[card].append((one[1], one[2]))
        else:
            return None
    return slices


def _in_slices(
    cards: list[Accelerator], rows: list[dict[str, str]], slices: dict[str, list[tuple[str, str]]]
) -> list[Accelerator]:
    """A partitioned card cannot be used as a whole: its slices stand in its place, named as CUDA names them. How much
    memory a slice has is told only roughly, by its profile's name, so it is left open."""
    found = []
    for card, row in zip(cards, rows, strict=True):
        if row.get("mig.mode.current") == "Enabled":
            found += [
                replace(card, name=f"{card.name} {profile}", uuid=uuid, memory_bytes=None, used_bytes=None)
                for profile, uuid in slices.get(card.uuid or "", ())
            ]
        else:
            found.append(card)
    return found


class NvidiaTraces:
    """A card's device file is a sign. One on the PCI bus is a sign only beside `nvidia-smi`."""

    name = "traces"

    def find(self, environment: Environment, *, timeout: float) -> Answer:
        sign = device_file(environment) or (on_the_bus(environment) if find_program(environment) is not None else "")
        return traces(sign) if sign else []
