"""A learning rate by the number of the batch, where the number comes from a plain `enumerate`. The shape of most public
training loops, ported by wrapping the loader and nothing else; it is told in the first session what goes wrong."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from tests.loops.ports._parts import by_epoch, digits, seed, small_net

RESUMES = "mid-epoch"
EXACT = False
TOLD = ("will go wrong there. Write: for i, batch in run.enumerate(loader)",)
TOLD_AFTER = ("counts from 0 in this resumed epoch too",)
EPOCHS = 3


def build() -> tuple[Any, ...]:
    seed()
    model = small_net()
    return by_epoch(digits()), model, torch.optim.SGD(model.parameters(), lr=0.1)


def update(model: Any, optimizer: Any, rate: float, x: Any, y: Any) -> torch.Tensor:
    for group in optimizer.param_groups:
        group["lr"] = rate
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def original() -> dict[str, Any]:
    loader, model, optimizer = build()
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(loader):
            update(model, optimizer, 0.1 / (1 + epoch + i / len(loader)), x, y)
    return {"model": model.state_dict()}


def train(colabkeep: Any) -> dict[str, Any]:
    loader, model, optimizer = build()
    with colabkeep.Run("plain", model=model, optimizer=optimizer) as run:
        for epoch in run.epochs(EPOCHS):
            for i, (x, y) in enumerate(run.batches(loader)):
                run.step(loss=update(model, optimizer, 0.1 / (1 + epoch + i / len(loader)), x, y))
    return {"model": model.state_dict()}
