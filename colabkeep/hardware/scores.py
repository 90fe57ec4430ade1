"""How fast a card trains, relative to a T4 with 16-bit mixed precision, and the tier that follows.

A weighted geometric mean of three figures, each relative to the T4's: matrix products at the precision that will be
used, plain 32-bit arithmetic, and memory bandwidth. Checked against published measurements (Lambda's benchmark of
2022, commit a5681044, and three smaller sets): the order of the cards comes out right (rank correlation of
0.92 or more), any one figure is good to about 30 % (`UNCERTAINTY`). Memory is no part of it: a model fits or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from colabkeep.hardware.catalogue import Card

__all__ = ["UNCERTAINTY", "Workload", "score", "tier"]

Workload: TypeAlias = Literal["cnn", "transformer", "rnn"]

UNCERTAINTY = 0.3
"""Of any score, as a share of it."""


def score(card: Card, workload: Workload) -> float | None:
    """The expected speed, T4 = 1; None where the figures are not known or not comparable (TPU, XPU, NPU)."""
    matrix = _matrix_tflops(card)
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


def _matrix_tflops(card: Card) -> float | None:
    """Without tensor cores half precision is no faster: measured on P100, P4 and GTX 10, against their data sheets."""
    return card.fp32_tflops if card.tensor_tflops == 0 else card.tensor_tflops
