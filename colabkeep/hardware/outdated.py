"""Advice of 2019 and 2020 on GPUs that is still found everywhere, and what is true today.

Against a widely copied GPU review (February 2020), Dettmers' guide (2019) and training checklists of 2020.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["OUTDATED", "Outdated"]


@dataclass(frozen=True, slots=True)
class Outdated:
    """What was said `then`, and what holds `now`."""

    then: str
    now: str


OUTDATED = (
    Outdated(
        "Reconnect to Colab until a P100 comes instead of a K80.",
        "Free Colab gives a T4 and nothing else of that kind; K80, P4 and P100 are gone. "
        "Reconnecting does not improve a T4.",
    ),
    Outdated(
        "A P100 is the best that can come.",
        "Default torch has had no kernels for it since 2.8: Colab's since February 2026, Kaggle's since March, and in "
        "September Kaggle retired it. Where torch has them, it is faster than a T4 in 32 bits and slower than a T4 in "
        "16-bit mixed precision.",
    ),
    Outdated(
        "Kaggle has a K80.",
        "It had none any more when that was written. Today: two T4s or a TPU v5e-8; the P100 was retired in 2026.",
    ),
    Outdated(
        "The V100 of AI Studio is the strongest free card.",
        "Still twice a T4, but default torch dropped it with 2.11, and 2.15 has no wheel for it at all.",
    ),
    Outdated(
        "Colab gives a free TPU v2-8.", "It was withdrawn in September 2025. The free one is a v5e-1 with 16 GiB."
    ),
    Outdated(
        "16-bit training is faster everywhere.",
        "Only with tensor cores (compute capability 7.0 on). bf16 is emulated on T4 and V100, and "
        "several times slower.",
    ),
    Outdated(
        "Training in 16 bits is worth half as much memory again.",
        "It shrinks activations, not weights, gradients and optimizer state: batches grow by a factor between 1 and 2.",
    ),
    Outdated(
        "24 GB take three times the batch of 8 GB.",
        "What a model needs in any case comes off both: the factor was between 2 and 8 in that review's own table.",
    ),
    Outdated(
        "Arithmetic counts for more than memory bandwidth.",
        "Measured over CNNs and Transformers on the cards of 2017 to 2022, bandwidth counts for the most.",
    ),
    Outdated(
        "Use Apex for 16 bits.",
        "It is part of torch: torch.amp.autocast and torch.amp.GradScaler; in colabkeep, the argument precision.",
    ),
    Outdated("The more loader workers, the better.", "Free Colab has two CPU cores: two workers."),
)
