"""Signs of NVIDIA's cards where nobody tells which: the second witness, so that a silent tool is not taken for none."""

from __future__ import annotations

from colabkeep.hardware.base import Answer
from colabkeep.hardware.nvidia_signs import device_file, on_the_bus
from colabkeep.hardware.nvidia_smi import find_program
from colabkeep.hardware.nvidia_troubles import traces
from colabkeep.vocabulary.environment import Environment

__all__ = ["NvidiaTraces"]


class NvidiaTraces:
    """A card's device file is a sign. One on the PCI bus is a sign only beside `nvidia-smi`."""

    name = "traces"

    def find(self, environment: Environment, *, timeout: float) -> Answer:
        sign = device_file(environment) or (on_the_bus(environment) if find_program(environment) is not None else "")
        return traces(sign) if sign else []
