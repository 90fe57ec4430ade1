"""A schedule that is stepped in the loop and was not handed in: `scheduler=` was forgotten. It begins anew in each
session, while the optimizer's learning rate is that of the checkpoint."""

from __future__ import annotations

from typing import Any

from tests.loops.ports.loader_by_mistake import update
from tests.loops.ports.scheduler_at_the_top import EPOCHS, build

RESUMES = "mid-epoch"
EXACT = False
TOLD = ("was not handed in",)
TOLD_AFTER = ("was not handed in",)
FIRST_KILL = 16


def original() -> dict[str, Any]:
    loader, model, optimizer, scheduler = build()
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            update(model, optimizer, x, y)
        scheduler.step()
    return {"model": model.state_dict(), "lr": optimizer.param_groups[0]["lr"]}


def train(colabkeep: Any) -> dict[str, Any]:
    loader, model, optimizer, scheduler = build()
    with colabkeep.Run("forgotten", model=model, optimizer=optimizer) as run:
        for _ in run.epochs(EPOCHS):
            for x, y in run.batches(loader):
                run.step(loss=update(model, optimizer, x, y))
            scheduler.step()
    return {"model": model.state_dict(), "lr": optimizer.param_groups[0]["lr"]}
