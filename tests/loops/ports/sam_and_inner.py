"""The same as `sam`, by somebody who hands in the inner optimizer too: what the two share stays shared."""

from __future__ import annotations

from typing import Any

from tests.loops.ports.sam import EPOCHS, build, original, update

__all__ = ["original"]

RESUMES = "mid-epoch"


def train(colabkeep: Any) -> dict[str, Any]:
    loader, model, optimizer, scheduler = build()
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    with colabkeep.Run("sam", **parts, state={"base_optimizer": optimizer.base_optimizer}) as run:
        for _ in run.epochs(EPOCHS):
            model.train()
            for x, y in run.batches(loader):
                run.step(loss=update(model, optimizer, x, y))
            scheduler.step()
    return {"model": model.state_dict()}
