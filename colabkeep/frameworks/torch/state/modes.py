"""Torch's modes, which say what becomes of a tensor that is made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["ordinary"]


@contextmanager
def ordinary() -> Iterator[None]:
    """What is made in here may be written to later, also if the caller is in inference mode: its tensors may not."""
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False), torch.no_grad():  # leaving it would turn gradients on
            yield
    else:
        yield
