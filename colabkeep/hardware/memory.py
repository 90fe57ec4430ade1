"""What fits into a card's memory: bytes per parameter by way of training.

Only the part that does not depend on the data: weights, gradients, optimizer state. Activations come on top and grow
with the batch, so a model of the size named here trains at small batches only. 1 GiB is taken off for the CUDA context
and the libraries, and a tenth for what fragments.
"""

from __future__ import annotations

from dataclasses import dataclass

from colabkeep.hardware.catalogue import Card

__all__ = ["MODES", "Mode", "largest_model", "usable_bytes"]

_GIB = 2**30
_OVERHEAD = 1 * _GIB  # 0.5 to 2 GiB were seen
_KEPT_FREE = 0.1
_USABLE = 0.93  # of what a card is sold with, where it is not known better: the least of those that are (P4, P40, T4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """A way of training, or of using a model. `parts` says what the bytes per parameter are made of, at their most.
    `bf16`: only cards with hardware for bf16 do it well."""

    name: str
    bytes_per_parameter: float
    parts: str
    bf16: bool = False


MODES = (
    Mode(name="Adam, 32 bit", bytes_per_parameter=16, parts="weights 4, gradients 4, optimizer 8"),
    Mode(
        name="Adam, 16-bit mixed",
        bytes_per_parameter=18,
        parts="weights 4, gradients 4, optimizer 8, copies in 16 bit up to 2: mixed precision shrinks activations only",
    ),
    Mode(name="8-bit Adam, mixed", bytes_per_parameter=12, parts="weights 4, gradients 4, optimizer 2, copies up to 2"),
    Mode(name="SGD + momentum", bytes_per_parameter=12, parts="weights 4, gradients 4, momentum 4"),
    Mode(name="Adam, all bf16", bytes_per_parameter=8, parts="weights 2, gradients 2, optimizer 4", bf16=True),
    Mode(
        name="LoRA on 4 bit",
        bytes_per_parameter=0.76,
        parts="frozen weights 0.6, and adapters of 1 % of the parameters at 16 bytes each",
    ),
    Mode(name="inference, 16 bit", bytes_per_parameter=2, parts="weights 2"),
)


def usable_bytes(card: Card) -> int:
    """What a framework gets of the card's memory, in bytes; always less than the label says."""
    gib = card.memory_gib * _USABLE if card.usable_gib is None else card.usable_gib
    return int(gib * _GIB)


def largest_model(memory: int, mode: Mode) -> int:
    """The largest number of parameters whose static part fits into `memory` bytes."""
    return max(0, int((memory * (1 - _KEPT_FREE) - _OVERHEAD) / mode.bytes_per_parameter))
