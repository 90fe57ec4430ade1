"""Many tensors copied out of a file's buffers, two at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from colabkeep.frameworks.common.bulk import LARGE, copy_pairs

__all__ = ["copy_all"]


def copy_all(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy each source into its target; gradients are not tracked."""
    copy_pairs(list(zip(targets, sources, strict=True)), _copy, _is_large)


def _is_large(target: torch.Tensor) -> bool:
    return target.is_cpu and target.nbytes >= LARGE


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    with torch.no_grad():  # of this thread
        target.copy_(source)
