"""What is known of an accelerator, and what a way of finding them must do.

A new way is one file, one line in `colabkeep.hardware`, and one subclass of
`colabkeep.testing.hardware.FinderContract`. A finder:

* MUST NOT initialise CUDA in this process, import a framework, or touch a network.
* MUST answer in `timeout` seconds, whatever the tool it asks does: hang, print garbage, die.
* MUST return None when it cannot tell (no tool, no driver, nonsense), an empty list when it knows that there is
  nothing, and never raise for what the machine is like.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from colabkeep.vocabulary.environment import Environment

__all__ = ["Accelerator", "Build", "Finder", "Kind"]

Kind: TypeAlias = Literal["cuda", "rocm", "tpu", "xpu", "npu"]


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
class Build:
    """A framework as installed here, found without importing it. `version`: "2.11.0+cu128". `cuda`: "12.8", None for
    a build without CUDA. `architectures`: what it has kernels for ("sm_75", …, "compute_120"); None if not known.
    `known_from`: "loaded" (asked the imported framework), "table" (this version's published wheels)."""

    framework: str
    version: str
    cuda: str | None
    architectures: tuple[str, ...] | None
    known_from: Literal["loaded", "table", "unknown"]


class Finder(Protocol):
    """One way of finding accelerators. The obligations are on top of this page."""

    name: str

    def find(self, environment: Environment, *, timeout: float) -> Sequence[Accelerator] | None:
        """The accelerators of this machine in the order of their index, or None when this way cannot tell."""
        ...
