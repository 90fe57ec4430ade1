"""The cards we know, with their sources, and which of them an accelerator is.

The numbers lie in `cards.json`, which `scripts/make_cards.py` makes of `scripts/gpus.csv`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from colabkeep.hardware.base import Accelerator, Kind

__all__ = ["Card", "capability_of", "cards", "find_card"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What is known of one kind of accelerator. None: not known.

    `names`: as machines tell it. `memory_gib`: as sold; `usable_gib`: what a framework gets; `total_mib`: the lowest
    and the highest total that nvidia-smi tells. `bandwidth_gb_s`: of its memory. `fp32_tflops`: without tensor
    cores. `tensor_tflops`: fp16 products summed in fp32, dense; 0 without tensor cores. `measured_tflops`: fp16
    matrix products as measured, where the sheet's figure is a burst. `bf16`, `tf32`: has hardware for them.
    `free`: where it can be had without paying, "Kaggle (two)". `seen`: where and when it was. `source`: where the
    numbers are from; `confidence`: how sure they are.
    """

    name: str
    kind: Kind
    names: tuple[str, ...]
    architecture: str
    capability: tuple[int, int] | None
    memory_gib: float
    usable_gib: float | None
    total_mib: tuple[int, int]
    bandwidth_gb_s: float | None
    fp32_tflops: float | None
    tensor_tflops: float | None
    measured_tflops: float | None
    bf16: bool | None
    tf32: bool | None
    free: tuple[str, ...]
    seen: tuple[str, ...]
    source: tuple[str, ...]
    confidence: str
    notes: str


def cards() -> tuple[Card, ...]:
    """All of them, in the order of the table."""
    text = Path(__file__).with_name("cards.json").read_text(encoding="utf-8")
    return tuple(Card(**{name: _frozen(value) for name, value in record.items()}) for record in json.loads(text))


def find_card(accelerator: Accelerator) -> Card | None:
    """The card that `accelerator` is; None for one we do not know. A slice of a card (MIG), and a part of one that is
    lent to a virtual machine (vGPU), come as their share of it.

    Every word of the name has to fit: an L40S is not an L4, an "RTX 2080 SUPER" not an "RTX 2080". Variants of one
    name are told apart by their memory, since what a label says and what came may differ.
    """
    slice_ = _MIG.search(accelerator.name)
    name = _MIG.sub("", accelerator.name)
    words = _words(name)
    found = [card for card in cards() if card.kind == accelerator.kind and _is_named(card, words)]
    found = [card for card in found if accelerator.capability in (None, card.capability)]
    sliced = slice_ is not None or _VIRTUAL.search(name) is not None
    mib = _sold_mib(name) if sliced or accelerator.memory_bytes is None else accelerator.memory_bytes / 2**20
    if mib is not None:
        found = [card for card in found if _fits(card, mib)]
    form = "PCIE" in name.upper()
    found.sort(key=lambda card: ("PCIE" in card.names[0].upper()) != form)
    if not found:
        return None
    if slice_ is not None:
        return _share(found[0], slice_)
    virtual = _VIRTUAL.search(name)
    return found[0] if virtual is None else _lent(found[0], float(virtual["gb"]))


def capability_of(accelerator: Accelerator) -> tuple[int, int] | None:
    """Its CUDA capability, as told, else as it is known of its card; old drivers tell none. None for other kinds: a
    Kunlun XPU tells that of an Ampere card, which is a placeholder (Paddle's source)."""
    if accelerator.kind != "cuda" or accelerator.capability is not None:
        return accelerator.capability if accelerator.kind == "cuda" else None
    card = find_card(accelerator)
    return None if card is None else card.capability


_MIG = re.compile(r"\s+MIG\s+(?:(?P<compute>\d+)c\.)?(?P<slices>\d+)g\.(?P<gb>\d+)gb\S*", re.IGNORECASE)
_VIRTUAL = re.compile(r"-(?P<gb>\d+)[ABCQ]\d*$")  # a vGPU profile: "GRID T4-16Q", "NVIDIA A100-40C"
_SOLD = re.compile(r"(?<![\w.])(\d+)GB\b", re.IGNORECASE)
_NOISE = re.compile(
    r"NVIDIA|TESLA|GRID|PCIE|SXM\d?|FHHL|DGXS|OAM|HBM\d?E?|\d+GB"
)  # what does not tell which chip it is
_TOLERANCE = 0.12  # ECC on or off is 7 %, what a framework keeps back 2 to 4 %; a P100 with 12 instead of 16 GB is 25 %


def _words(name: str) -> tuple[str, ...]:
    """ "Tesla V100-SXM2-16GB" → ("V100",)."""
    words = re.split(r"[\s\-]+", _VIRTUAL.sub("", name.strip()).upper())
    return tuple(word for word in words if word and not _NOISE.fullmatch(word))


def _is_named(card: Card, words: tuple[str, ...]) -> bool:
    return bool(words) and words in {_words(name) for name in card.names}


def _sold_mib(name: str) -> float | None:
    """The memory that a name speaks of, in MiB."""
    sold = _SOLD.search(_VIRTUAL.sub("", name))
    return None if sold is None else float(sold[1]) * 1024


def _fits(card: Card, mib: float) -> bool:
    low, high = card.total_mib
    return low * (1 - _TOLERANCE) <= mib <= high * (1 + _TOLERANCE)


def _share(card: Card, slice_: re.Match[str]) -> Card:
    """A MIG slice: it has its own share of the compute units (sevenths on data centre cards, quarters on workstation
    ones; NVIDIA's MIG user guide), of the memory, and of the bandwidth with the memory."""
    memory = float(slice_["gb"])
    units = 4 if card.capability == (12, 0) else 7
    compute = min(1.0, float(slice_["compute"] or slice_["slices"]) / units)
    return replace(
        card,
        name=f"{card.name}, slice {slice_['slices']}g.{slice_['gb']}gb",
        memory_gib=memory,
        usable_gib=None,
        total_mib=(int(memory * 1024), int(memory * 1024)),
        bandwidth_gb_s=_times(card.bandwidth_gb_s, memory / card.memory_gib),
        fp32_tflops=_times(card.fp32_tflops, compute),
        tensor_tflops=_times(card.tensor_tflops, compute),
        measured_tflops=None,
        free=(),
    )


def _lent(card: Card, gb: float) -> Card:
    """A vGPU: as many of them as fit into the memory share one card, and take turns in computing (NVIDIA's vGPU user
    guide, equal and fixed share). Alone on the card it may be faster; nothing of that is promised."""
    share = gb / card.memory_gib
    if share >= 1.0:
        return card
    return replace(
        card,
        name=f"{card.name}, vGPU with {gb:g} of {card.memory_gib:g} GB",
        memory_gib=gb,
        usable_gib=None,
        total_mib=(int(gb * 1024), int(gb * 1024)),
        bandwidth_gb_s=_times(card.bandwidth_gb_s, share),
        fp32_tflops=_times(card.fp32_tflops, share),
        tensor_tflops=_times(card.tensor_tflops, share),
        measured_tflops=_times(card.measured_tflops, share),
        free=(),
    )


def _times(number: float | None, share: float) -> float | None:
    return None if number is None else number * min(1.0, share)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
