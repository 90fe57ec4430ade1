"""The precision that a card trains best in.

Asked of the card, not of the framework: `torch.cuda.is_bf16_supported()` says yes on a T4, because emulation
counts (pytorch pull request 148322), and emulated bf16 is some 20 times slower there than fp16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from colabkeep.hardware.base import Accelerator
from colabkeep.hardware.catalogue import Card, capability_of, find_card

__all__ = ["PrecisionAdvice", "advised_precision", "sixteen_bit"]


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
