"""NVIDIA's cards, asked through `nvidia-smi`, which comes with the driver."""

from __future__ import annotations

import re
import time
from dataclasses import replace

from colabkeep.hardware.base import Accelerator
from colabkeep.hardware.base import Answer as Found
from colabkeep.hardware.nvidia_signs import device_file, on_the_bus
from colabkeep.hardware.nvidia_troubles import MISMATCH, failed, silent, without_driver, without_slices
from colabkeep.hardware.programs import Answer, ask, locate
from colabkeep.hardware.visible import seen
from colabkeep.vocabulary.environment import Environment

__all__ = ["NvidiaSmiFinder", "find_program"]

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

    def find(self, environment: Environment, *, timeout: float) -> Found:
        end = time.monotonic() + timeout
        program = find_program(environment)
        if program is None:
            return []

        def tell(*arguments: str) -> Answer | None:
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


def _trouble(answer: Answer) -> Found:
    if answer.code is None:
        return silent(NvidiaSmiFinder.name)
    if answer.code == _MISMATCH:
        return MISMATCH
    how = "does not answer as it should" if answer.code == 0 else f"failed with exit code {answer.code}"
    return failed(NvidiaSmiFinder.name, how)


def _query(fields: tuple[str, ...]) -> tuple[str, str]:
    return f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"


def _does_not_know_a_field(answer: Answer) -> bool:
    return answer.code == 2 or "not a valid field" in answer.text  # 2: "a supplied argument is invalid" (its manual)


def _rows(answer: Answer, fields: tuple[str, ...]) -> list[dict[str, str]] | None:
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


def _slices(answer: Answer | None) -> dict[str, list[tuple[str, str]]] | None:
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
