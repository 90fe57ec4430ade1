"""Small trainings under a boundary, for tests of saves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from colabkeep.frameworks.torch.adapter import TorchFramework
from colabkeep.testing.frameworks import captured, through_files

Parts = dict[str, Any]
WIDE = 192  # a weight of 147 kB: large enough for a proof where it is frozen


class Training:
    """A training under a boundary, as a run has it."""

    def __init__(self, parts: Parts, step: Callable[[Parts], None] | None = None) -> None:
        self.parts = parts
        self.framework = TorchFramework()
        self.boundary = self.framework.boundary(parts)
        self._step = step or plain_step
        self.boundary.mark()

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self._step(self.parts)
            self.boundary.mark()

    def save(self) -> tuple[Any, Any]:
        """The capture under way, and what a full stop gives."""
        reference = captured(TorchFramework(), self.parts)
        return self.framework.capture(self.parts), reference


def plain_step(parts: Parts) -> None:
    for name in [name for name in parts if name.startswith("optimizer")]:
        parts[name].zero_grad()
    parts["model"](torch.randn(4, WIDE)).square().mean().backward()
    for name in [name for name in parts if name.startswith("optimizer")]:
        parts[name].step()


def mlp(**settings: Any) -> Parts:
    model = nn.Sequential(nn.Linear(WIDE, WIDE), nn.BatchNorm1d(WIDE), nn.Dropout(0.2), nn.Linear(WIDE, WIDE))
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.01, **settings)}


def finished(capture: Any) -> Any:
    snapshot = capture.finish()
    trees = through_files(snapshot.parts)
    snapshot.release()
    return trees
