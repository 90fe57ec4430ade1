"""NVIDIA's cards, as the driver's program `nvidia-smi` tells them; their signs where it does not, and what is wrong."""

from __future__ import annotations

import re
import time
from dataclasses import replace

from colabkeep.core.system import Environment
from colabkeep.hardware.base import Accelerator, Answer, Trouble, numbered, pci_devices, seen
from colabkeep.hardware.programs import ProgramAnswer, ask, locate

_USUAL_FOLDERS = ("/usr/bin", "/opt/bin", "/usr/local/nvidia/bin", "/usr/lib/wsl/lib")
"""Where it lies when a shortened PATH does not say so: packages, Colab's image, GKE nodes, WSL."""

# The name comes last: it is the only one that may have a ", " in it.
_OLD_FIELDS: tuple[str, ...] = ("uuid", "memory.total", "memory.used", "driver_version", "name")
_FIELDS: tuple[str, ...] = ("compute_cap", "mig.mode.current", *_OLD_FIELDS)  # for drivers of 510 and 450 on

# Exit codes, by its manual ("RETURN VALUE").
_NO_DRIVER = (9, 12)  # it is not loaded, or its library is not there: the images of sessions without GPU are so, too
_MISMATCH = 18
_BAD_ARGUMENT = 2
_NOT_TOLD = re.compile(r"\[.*\]|N/A")  # "[N/A]", "[Not Supported]", "[Insufficient Permissions]"
_FORMS = {
    "uuid": re.compile(r"GPU-[0-9a-f-]+"),
    "memory.total": re.compile(r"[0-9]{1,8}"),  # MiB
    "memory.used": re.compile(r"[0-9]{1,8}"),
    "driver_version": re.compile(r"[0-9]{1,6}(\.[0-9]{1,6}){0,3}"),
    "compute_cap": re.compile(r"[0-9]{1,2}\.[0-9]{1,2}"),
    "name": re.compile(r"[^\ufffd]{1,200}"),  # that stands for bytes that were no text
}
_PARENT = re.compile(r"GPU [0-9]+: .* \(UUID: (GPU-[0-9a-f-]+)\)")
_SLICE = re.compile(r" +(MIG \S+) +Device +[0-9]+: \(UUID: (MIG-\S+)\)")

MISMATCH = Trouble(
    problem="The NVIDIA driver was updated while it ran: its library and its kernel module are of different versions",
    remedy="Restart the machine (end this session and start a new one); nothing can compute on the GPU before that.",
    usable=False,
)


def find_nvidia(environment: Environment, timeout: float) -> Answer:
    """Name, memory and capability of every card; the slices of a partitioned one (MIG) by name.

    A card's device file is a sign that it is here, also without the program. One on the PCI bus is a sign only beside
    it: a container is shown the bus of its host, and a laptop may use its card for the screen alone.
    """
    end = time.monotonic() + timeout
    program = locate(environment, "nvidia-smi", also=_USUAL_FOLDERS)
    if program is None:
        return _nameless(_device_file(environment))

    def tell(*arguments: str) -> ProgramAnswer | None:
        return ask((program, *arguments), environment.environ, timeout=end - time.monotonic())

    fields = _FIELDS
    answer = tell(*_query(fields))
    if answer is not None and (answer.code == _BAD_ARGUMENT or "not a valid field" in answer.text):
        fields = _OLD_FIELDS
        answer = tell(*_query(fields))
    sign = _device_file(environment) or _on_the_bus(environment)
    if answer is not None and answer.code in _NO_DRIVER:
        return _without_driver(sign, answer.code) if sign else []
    if answer is None or answer.text.strip() == "No devices were found":  # exit code 0 or 6, by the driver's age
        return _nameless(sign)
    rows = _rows(answer, fields)
    if rows is None:
        return _trouble(answer)
    if any(row.get("mig.mode.current") == "Enabled" for row in rows):
        slices = _slices(tell("-L"))
        if slices is None:
            return _failed("does not say how the GPU is divided (MIG)")
        cards = [part for row in rows for part in _parts(row, slices)]
        return seen(cards, environment, "CUDA_VISIBLE_DEVICES") if cards else _undivided([row["name"] for row in rows])
    return seen([_card(row) for row in rows], environment, "CUDA_VISIBLE_DEVICES")


def _query(fields: tuple[str, ...]) -> tuple[str, str]:
    return f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"


def _rows(answer: ProgramAnswer, fields: tuple[str, ...]) -> list[dict[str, str]] | None:
    """What it told of each card, without what it says it cannot tell. One line that is not what it prints makes the
    whole answer worthless."""
    lines = [line.split(", ", len(fields) - 1) for line in answer.text.splitlines()]
    if answer.code != 0 or not answer.whole or not lines or any(len(line) != len(fields) for line in lines):
        return None
    rows = []
    for line in lines:
        row = {field: value for field, value in zip(fields, line, strict=True) if not _NOT_TOLD.fullmatch(value)}
        forms = all(field not in _FORMS or _FORMS[field].fullmatch(value) for field, value in row.items())
        if not forms or "name" not in row or not row["name"].isprintable():
            return None
        rows.append(row)
    return rows


def _card(row: dict[str, str]) -> Accelerator:
    major, _, minor = row.get("compute_cap", "").partition(".")
    return Accelerator(
        kind="cuda",
        name=row["name"],
        memory_bytes=int(row["memory.total"]) << 20 if "memory.total" in row else None,
        used_bytes=int(row["memory.used"]) << 20 if "memory.used" in row else None,
        capability=(int(major), int(minor)) if major else None,
        uuid=row.get("uuid"),
        driver=row.get("driver_version"),
        found_by="nvidia-smi",
    )


def _slices(answer: ProgramAnswer | None) -> dict[str, list[tuple[str, str]]] | None:
    """Profile and uuid of each slice, by the uuid of its card."""
    if answer is None or answer.code != 0 or not answer.whole:
        return None
    slices: dict[str, list[tuple[str, str]]] = {}
    for line in answer.text.splitlines():
        if parent := _PARENT.fullmatch(line):
            slices[parent[1]] = []
        elif (one := _SLICE.fullmatch(line)) and slices:
            slices[next(reversed(slices))].append((one[1], one[2]))
        else:
            return None
    return slices


def _parts(row: dict[str, str], slices: dict[str, list[tuple[str, str]]]) -> list[Accelerator]:
    """A partitioned card cannot be used as a whole: its slices stand in its place, named as CUDA names them. Their
    memory is told by the profile's name, and only roughly, so it is left open."""
    card = _card(row)
    if row.get("mig.mode.current") != "Enabled":
        return [card]
    return [
        replace(card, name=f"{card.name} {profile}", uuid=uuid, memory_bytes=None, used_bytes=None)
        for profile, uuid in slices.get(card.uuid or "", ())
    ]


def _device_file(environment: Environment) -> str:
    files = numbered(environment, "/dev", "nvidia")
    return f"/dev/nvidia{files[0]}" if files else ""


def _on_the_bus(environment: Environment) -> str:
    # Class 0x03 is graphics, with and without a screen; cards have sound and USB on the bus, too.
    cards = (one.address for one in pci_devices(environment, "0x10de") if one.kind.startswith("0x03"))
    return next((f"PCI device {address}" for address in cards), "")


def _nameless(sign: str) -> Answer:
    """Trouble where there is a sign of a card, and nothing that tells which."""
    if not sign:
        return []
    return Trouble(
        problem=f"An NVIDIA GPU is on this machine ({sign}), and no tool of its driver says which",
        remedy="Run !nvidia-smi in a cell. If it lists no GPU, restart the session. Start a container of your own with "
        "--gpus=all.",
    )


def _without_driver(sign: str, code: int | None) -> Trouble:
    what = "its driver is not loaded" if code == _NO_DRIVER[0] else "the library of its driver is missing"
    return Trouble(
        problem=f"An NVIDIA GPU is on this machine ({sign}), and {what} (nvidia-smi ended with exit code {code})",
        remedy="Restart the machine (end this session and start a new one). Start a container of your own with "
        "--gpus=all. If a machine of your own stays like this, reinstall NVIDIA's driver.",
        usable=False,
    )


def _undivided(names: list[str]) -> Trouble:
    return Trouble(
        problem=f"{', '.join(names)}: in MIG mode, but not divided yet, so no framework can use any of it",
        remedy='Make one slice of the whole card, "sudo nvidia-smi mig -cgi 0 -C", or leave the mode, "sudo nvidia-smi '
        '-mig 0"; then restart the kernel.',
        usable=False,
    )


def _trouble(answer: ProgramAnswer) -> Trouble:
    if answer.code is None:
        return Trouble(
            problem="nvidia-smi gave no answer",
            remedy="Run !nvidia-smi in a cell: if it hangs too, restart the session.",
        )
    if answer.code == _MISMATCH:
        return MISMATCH
    return _failed("does not answer as it should" if answer.code == 0 else f"failed with exit code {answer.code}")


def _failed(how: str) -> Trouble:
    return Trouble(
        problem=f"nvidia-smi {how}",
        remedy="Run !nvidia-smi in a cell: if it does not list the GPU as it should, restart the session.",
    )
