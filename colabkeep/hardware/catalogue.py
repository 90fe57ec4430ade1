"""The cards we know, with their sources: which of them an accelerator is, how fast it trains, what fits into it,
and its best precision.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from colabkeep.hardware.base import Accelerator, Kind

# The numbers lie in `cards.json`, which `scripts/make_cards.py` makes of `scripts/gpus.csv`.


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What is known of one kind of accelerator. None: not known.

    `names`: as machines tell it. `memory_gib`: as sold; `usable_gib`: what a framework gets; `total_mib`: the lowest
    and the highest total that nvidia-smi tells. `bandwidth_gb_s`: of its memory. `fp32_tflops`: without tensor
    cores. `tensor_tflops`: fp16 products summed in fp32, dense; 0 without tensor cores. `measured_tflops`: fp16
    matrix products as measured, where the sheet's figure is a burst. `bf16`: has hardware for it. `free`: where
    it can be had without paying, "Kaggle (two)". `source`: where the numbers are from; `confidence`: how sure they are.
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
    free: tuple[str, ...]
    source: tuple[str, ...]
    confidence: str
    notes: str


def cards() -> tuple[Card, ...]:
    """All of them, in the order of the table."""
    text = Path(__file__).with_name("cards.json").read_text(encoding="utf-8")
    known: list[dict[str, Any]] = json.loads(text)
    for record in known:
        record |= {name: tuple(value) for name, value in record.items() if isinstance(value, list)}
    return tuple(Card(**record) for record in known)


def find_card(accelerator: Accelerator) -> Card | None:
    """The card that `accelerator` is; None for one we do not know. A slice of a card (MIG), and a part of one that is
    lent to a virtual machine (vGPU), come as their share of it.

    Every word of the name has to fit: an L40S is not an L4, an "RTX 2080 SUPER" not an "RTX 2080". Variants of one
    name are told apart by their memory, since what a label says and what came may differ.
    """
    slice_ = _MIG.search(accelerator.name)
    name = _MIG.sub("", accelerator.name)
    words = _words(name)
    of_kind = (card for card in cards() if card.kind == accelerator.kind and words)
    found = [card for card in of_kind if words in map(_words, card.names)]
    found = [card for card in found if accelerator.capability in (None, card.capability)]
    virtual = _VIRTUAL.search(name)
    told = accelerator.memory_bytes if slice_ is None and virtual is None else None
    mib = _sold_mib(name) if told is None else told / 2**20
    if mib is not None:
        found = [card for card in found if _fits(card, mib)]
    form = "PCIE" in name.upper()
    found.sort(key=lambda card: ("PCIE" in card.names[0].upper()) != form)
    if not found:
        return None
    card = found[0]
    if slice_ is not None:
        # Sevenths of the compute units on data centre cards, quarters on workstation ones (NVIDIA's MIG user guide).
        units = 4 if card.capability == (12, 0) else 7
        compute = float(slice_["compute"] or slice_["slices"]) / units
        return _part(card, f"slice {slice_['slices']}g.{slice_['gb']}gb", float(slice_["gb"]), compute)
    if virtual is not None and (gb := float(virtual["gb"])) < card.memory_gib:
        # As many as fit into the memory take turns in computing (NVIDIA's vGPU user guide, equal and fixed share).
        return _part(card, f"vGPU with {gb:g} of {card.memory_gib:g} GB", gb, gb / card.memory_gib)
    return card


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


def _sold_mib(name: str) -> float | None:
    """The memory that a name speaks of, in MiB."""
    sold = _SOLD.search(_VIRTUAL.sub("", name))
    return None if sold is None else float(sold[1]) * 1024


def _fits(card: Card, mib: float) -> bool:
    low, high = card.total_mib
    return low * (1 - _TOLERANCE) <= mib <= high * (1 + _TOLERANCE)


def _part(card: Card, name: str, gb: float, compute: float) -> Card:
    """A part of a card, with that share of its `compute` and with the bandwidth of its memory."""

    def times(number: float | None, share: float) -> float | None:
        return None if number is None else number * min(1.0, share)

    return replace(
        card,
        name=f"{card.name}, {name}",
        memory_gib=gb,
        usable_gib=None,
        total_mib=(int(gb * 1024), int(gb * 1024)),
        bandwidth_gb_s=times(card.bandwidth_gb_s, gb / card.memory_gib),
        fp32_tflops=times(card.fp32_tflops, compute),
        tensor_tflops=times(card.tensor_tflops, compute),
        measured_tflops=times(card.measured_tflops, compute),
        free=(),
    )


# A weighted geometric mean of three figures, each relative to the T4's: matrix products at the precision that will be
# used, plain 32-bit arithmetic, and memory bandwidth. Checked against published measurements (Lambda's benchmark of
# 2022, commit a5681044, and three smaller sets): the order of the cards comes out right (rank correlation of 0.92 or
# more), any one figure is good to about 30 % (`UNCERTAINTY`). Memory is no part of it: a model fits or not.


Workload: TypeAlias = Literal["cnn", "transformer", "rnn"]

UNCERTAINTY = 0.3
"""Of any score, as a share of it."""


def score(card: Card, workload: Workload) -> float | None:
    """The expected speed, T4 = 1; None where the figures are not known or not comparable (TPU, XPU, NPU)."""
    # Without tensor cores half precision is no faster: measured on P100, P4 and GTX 10, against their data sheets.
    matrix = card.fp32_tflops if card.tensor_tflops == 0 else card.tensor_tflops
    if card.kind != "cuda" or matrix is None or card.fp32_tflops is None or card.bandwidth_gb_s is None:
        return None
    for_matrix, for_fp32, for_bandwidth = _WEIGHTS[workload]
    return float(
        (matrix / _T4_TENSOR) ** for_matrix
        * (card.fp32_tflops / _T4_FP32) ** for_fp32
        * (card.bandwidth_gb_s / _T4_BANDWIDTH) ** for_bandwidth
    )


def tier(card: Card | None, *, usable: bool | None = None) -> str:
    """ "S" (four T4s and more), "A", "B" (like a T4), "C", "D" (hardly worth starting on), or "unknown".

    `usable`: can the installed framework compute on it? A card that it cannot use is a "D", whatever it could do.
    """
    if usable is False:
        return "D"
    speed = None if card is None else score(card, "transformer")
    if speed is None:
        return "unknown"
    return next(name for name, at_least in _TIERS if speed >= at_least)


# The T4's figures, by its data sheet.
_T4_TENSOR, _T4_FP32, _T4_BANDWIDTH = 65.0, 8.1, 320.0

# Exponents of matrix products, 32-bit arithmetic and bandwidth; each row sums to 1. Those of CNNs have the smallest
# error on Lambda's image models, those of Transformers are the best compromise over all of its models. Recurrent nets
# of short sequences live on bandwidth (Dettmers 2019); at large batches they behave like Transformers.
_WEIGHTS: Mapping[Workload, tuple[float, float, float]] = {
    "cnn": (0.30, 0.20, 0.50),
    "transformer": (0.40, 0.20, 0.40),
    "rnn": (0.28, 0.14, 0.58),
}
_TIERS = (("S", 4.0), ("A", 1.3), ("B", 0.8), ("C", 0.3), ("D", 0.0))


# Only the part that does not depend on the data: weights, gradients, optimizer state. Activations come on top and grow
# with the batch, so a model of the size named here trains at small batches only. 1 GiB is taken off for the CUDA
# context and the libraries, and a tenth for what fragments.


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


# Asked of the card, not of the framework: `torch.cuda.is_bf16_supported()` says yes on a T4, because emulation counts
# (pytorch pull request 148322), and emulated bf16 is some 20 times slower there than fp16.


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionAdvice:
    """`word` is what `resumable_fit` takes as its `precision`; `text` says why, in one or two sentences."""

    word: Literal["32-true", "16-mixed", "bf16-mixed"]
    text: str


def advised_precision(accelerator: Accelerator, framework: str = "torch") -> PrecisionAdvice:
    """What to train in on `accelerator` with "torch" or "paddle". On one that is not known, 32 bits: slower perhaps,
    never wrong."""
    if (capability := capability_of(accelerator)) is not None:
        return _for_cuda(capability, framework)
    card = find_card(accelerator) if accelerator.kind == "npu" else None
    if accelerator.kind == "tpu" or (card is not None and card.bf16):
        return _BF16_ELSEWHERE
    return _UNKNOWN


def sixteen_bit(card: Card) -> str:
    """What 16-bit numbers are good for on `card`, in a few words for a table."""
    if card.kind != "cuda":
        return "bf16" if card.bf16 else "?"
    if card.tensor_tflops == 0:
        return "saves memory"
    return "bf16, fp16" if card.bf16 else "fp16"


def _for_cuda(capability: tuple[int, int], framework: str) -> PrecisionAdvice:
    fp32, fp16, bf16 = _PADDLE if framework == "paddle" else (_FP32, _FP16, _BF16)
    if capability < (7, 0):
        return fp32
    return fp16 if capability < (8, 0) else bf16


_FP32 = PrecisionAdvice(
    word="32-true",
    text="This card has no tensor cores: 16-bit training is no faster on it, and torch.compile does not support it.",
)
_FP16 = PrecisionAdvice(
    word="16-mixed",
    text="fp16 with a gradient scaler uses this card's tensor cores. Not bf16: it is emulated here and many times "
    "slower, although torch.cuda.is_bf16_supported() says yes.",
)
_BF16 = PrecisionAdvice(
    word="bf16-mixed",
    text="bf16 is as fast as fp16 here and needs no gradient scaler; for the rest, "
    'torch.set_float32_matmul_precision("high") turns TF32 on.',
)
_PADDLE = (
    PrecisionAdvice(word="32-true", text="This card has no tensor cores: 16-bit training is no faster on it."),
    PrecisionAdvice(
        word="16-mixed",
        text="fp16 with a gradient scaler uses this card's tensor cores. Not bf16: paddle.amp.is_bfloat16_supported() "
        "says no here, and paddle.amp.auto_cast then trains in 32 bits with no more than a warning.",
    ),
    PrecisionAdvice(
        word="bf16-mixed",
        text="bf16 is as fast as fp16 here and needs no gradient scaler; paddle.amp.is_bfloat16_supported() says if "
        "this build has it (from CUDA 11 on).",
    ),
)
"""Read in python/paddle/amp/auto_cast.py, Paddle 3.3.1."""

_BF16_ELSEWHERE = PrecisionAdvice(word="bf16-mixed", text="bf16 is what this accelerator computes in.")
_UNKNOWN = PrecisionAdvice(word="32-true", text="It is not known what 16-bit numbers do on this device.")
