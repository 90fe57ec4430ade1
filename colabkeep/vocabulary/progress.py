"""How far a run has come."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Progress"]


class Progress(NamedTuple):
    """A position between two optimizer steps, counted over the whole run.

    `epoch` is the epoch under way, from 0; at the end of epoch *e* it is *e + 1* with
    `batches == 0`. `step` counts optimizer updates, `batches` and `epoch_samples` what the training
    loop has consumed of this epoch (loader workers run ahead; what they prefetched is not
    counted), `samples` what it consumed in all, `seconds` the training time of all sessions.
    """

    epoch: int = 0
    step: int = 0
    batches: int = 0
    epoch_samples: int = 0
    samples: int = 0
    seconds: float = 0.0
