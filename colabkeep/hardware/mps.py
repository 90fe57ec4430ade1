"""Apple's own graphics, which torch calls "mps"."""

from __future__ import annotations

from colabkeep.hardware.base import Accelerator, Answer, Trouble
from colabkeep.hardware.programs import ask, locate
from colabkeep.vocabulary.environment import Environment

__all__ = ["MpsFinder"]

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
