"""A scheduler that is stepped in the loop and was not handed in: `scheduler=` was forgotten. It begins anew in each
session."""

from __future__ import annotations

from typing import Any

import torch

from tests.loops.ports._parts import by_epoch, digits, seed, small_net
from tests.loops.ports.loader_by_mistake import update

RESUMES = "mid-epoch"
EXACT = False
TOLD = ("was not passed to",)
TOLD_AFTER = ("was not passed to",)
FIRST_KILL = 11  # in the second epoch: in the first one it had not moved yet
EPOCHS = 4


def build() -> tuple[Any, ...]:
    seed()
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 / (1 + epoch))
    return by_epoch(digits()), model, optimizer, scheduler


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
