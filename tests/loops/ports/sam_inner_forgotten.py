"""The same as `sam`, with the outer optimizer handed in alone, as everybody would: its `state_dict()`, which public
checkpoints of it hold too, lacks the momentum of the inner one."""

from __future__ import annotations

from typing import Any

from tests.loops.ports.sam import EPOCHS, build, original, update

__all__ = ["original"]

RESUMES = "mid-epoch"


def train(colabkeep: Any) -> dict[str, Any]:
    loader, model, optimizer, scheduler = build()
    with colabkeep.Run("sam", model=model, optimizer=optimizer, scheduler=scheduler) as run:
        for _ in run.epochs(EPOCHS):
            model.train()
            for x, y in run.batches(loader):
                run.step(loss=update(model, optimizer, x, y))
            scheduler.step()
    return {"model": model.state_dict()}
