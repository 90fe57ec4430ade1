"""The cards side by side, as plain data: what each has, how fast it is, where it is free, and what fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from colabkeep.hardware.base import Kind
from colabkeep.hardware.catalogue import Card, cards
from colabkeep.hardware.memory import MODES, largest_model, usable_bytes
from colabkeep.hardware.precision import sixteen_bit
from colabkeep.hardware.scores import Workload, score, tier
from colabkeep.hardware.wheels import wheels_for, wheels_in_short

__all__ = ["Row", "compare"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One card. None: not known, or not comparable.

    `memory_gib`: as sold. `bandwidth_gb_s`: GB/s. `tensor_cores`: fp16 TFLOPS of its tensor cores by the data sheet, 0
    without. `sixteen_bit`: what 16-bit numbers are good for. `speed`: by workload, relative to a T4 with 16-bit mixed
    precision, give or take `UNCERTAINTY`. `free`: where it can be had without paying. `torch`: the torch wheels with
    kernels for it, in short, and in a sentence in `torch_text`. `fits`: the largest number of parameters by mode.
    """

    name: str
    kind: Kind
    architecture: str
    capability: str | None
    memory_gib: float
    bandwidth_gb_s: float | None
    tensor_cores: float | None
    sixteen_bit: str
    speed: Mapping[Workload, float] | None
    tier: str
    free: tuple[str, ...]
    torch: str | None
    torch_text: str | None
    fits: Mapping[str, int] | None
    confidence: str
    source: tuple[str, ...]
    notes: str


def compare() -> tuple[Row, ...]:
    """All cards of the catalogue, the fastest first, those without a comparable speed last."""
    rows = [_row(card) for card in cards()]
    return tuple(sorted(rows, key=lambda row: 0.0 if row.speed is None else -row.speed["transformer"]))


def _row(card: Card) -> Row:
    speed = {workload: score(card, workload) for workload in get_args(Workload)}
    known = {workload: round(value, 2) for workload, value in speed.items() if value is not None}
    return Row(
        name=card.name,
        kind=card.kind,
        architecture=card.architecture,
        capability=None if card.capability is None else "{}.{}".format(*card.capability),
        memory_gib=card.memory_gib,
        bandwidth_gb_s=card.bandwidth_gb_s,
        tensor_cores=card.tensor_tflops,
        sixteen_bit=sixteen_bit(card),
        speed=known or None,
        tier=tier(card),
        free=card.free,
        torch=None if card.capability is None else wheels_in_short(card.capability),
        torch_text=None if card.capability is None else wheels_for(card.capability),
        fits=_fits(card),
        confidence=card.confidence,
        source=card.source,
        notes=card.notes,
    )


def _fits(card: Card) -> Mapping[str, int] | None:
    """None for anything but a GPU: a board of several TPU chips has no memory in common."""
    if card.kind != "cuda":
        return None
    memory = usable_bytes(card)
    return {mode.name: largest_model(memory, mode) for mode in MODES if card.bf16 or not mode.bf16}
