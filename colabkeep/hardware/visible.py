"""Which devices a variable such as CUDA_VISIBLE_DEVICES leaves to this process."""

from __future__ import annotations

import re
from collections.abc import Sequence

from colabkeep.hardware.base import Accelerator, Hidden
from colabkeep.vocabulary.environment import Environment

__all__ = ["seen", "visible"]

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
