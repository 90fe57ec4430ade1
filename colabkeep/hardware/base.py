"""What is known of an accelerator, and what a way of finding them must do.

A new way is one file, one line in `colabkeep.hardware`, and one subclass of
`colabkeep.testing.hardware.FinderContract`. A finder:

* MUST NOT initialise CUDA in this process, import a framework, or touch a network.
* MUST answer in `timeout` seconds, whatever the tool it asks does: hang, print garbage, die.
* MUST return an empty list where it finds nothing or has nobody to ask, `Hidden` where a variable takes away all that
  it found, and `Trouble` where a device or its tool is here and does not answer sensibly: what could not be told is
  not the same as nothing. It never raises for what the machine is like.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from colabkeep.vocabulary.environment import Environment

__all__ = ["Accelerator", "Answer", "Build", "Finder", "Hidden", "Kind", "Trouble"]

Kind: TypeAlias = Literal["cuda", "rocm", "tpu", "xpu", "npu", "mps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One device. `name`: exactly as the machine tells it. `memory_bytes`: in all; `used_bytes`: used now, by whom
    ever. `capability`: (major, minor) of CUDA. `uuid`, `driver`: as told. `found_by`: the finder's name. None
    where it was not told."""

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


class Finder(Protocol):
    """One way of finding accelerators. The obligations are on top of this page."""

    name: str

    def find(self, environment: Environment, *, timeout: float) -> Answer:
        """The accelerators of this machine in the order of their index, or why there are none to be told."""
        ...
