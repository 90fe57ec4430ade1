"""The same as `growing_data`, as such scripts have it: the samples are chosen at the top of the epoch, from the weights
there. An epoch that is resumed in its middle would choose others, from weights that are later ones."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Subset

from tests.loops.ports._parts import in_order
from tests.loops.ports.growing_data import EPOCHS, build, easiest, original, update

__all__ = ["original"]

RESUMES = "mid-epoch"
EXACT = False
TOLD = ("That was between two epochs of this session",)
TOLD_AFTER = ("the weights will not be those of an uninterrupted run",)
REFUSED = "training data: other indices in a Subset"  # where no epoch had other data than the one before yet
FIRST_KILL = 14


def train(colabkeep: Any) -> dict[str, Any]:
    data, model, optimizer = build()
    with colabkeep.Run("growing", model=model, optimizer=optimizer) as run:
        for epoch in run.epochs(EPOCHS):
            for x, y in run.batches(in_order(Subset(data, easiest(data, model, epoch)))):
                run.step(loss=update(model, optimizer, x, y))
    return {"model": model.state_dict()}
