"""The loader is read past colabkeep: `for x, y in loader:` where `run.batches(loader)` was forgotten. It is saved at
the ends of epochs only, and told so."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from tests.loops.ports._parts import digits, seed, small_net

RESUMES = "epoch"
TOLD = ("can be saved at its end only",)
EPOCHS = 4


def build() -> tuple[Any, ...]:
    seed()
    loader = torch.utils.data.DataLoader(digits(), batch_size=4, shuffle=True)
    model = small_net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return loader, model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def update(model: Any, optimizer: Any, x: Any, y: Any) -> torch.Tensor:
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def original() -> dict[str, Any]:
    loader, model, optimizer, scheduler = build()
    for _ in range(EPOCHS):
        for x, y in loader:
            update(model, optimizer, x, y)
        scheduler.step()
    return {"model": model.state_dict()}


def train(colabkeep: Any) -> dict[str, Any]:
    loader, model, optimizer, scheduler = build()
    with colabkeep.Run("mistaken", model=model, optimizer=optimizer, scheduler=scheduler) as run:
        for _ in run.epochs(EPOCHS):
            for x, y in loader:
                run.step(loss=update(model, optimizer, x, y))
            scheduler.step()
    return {"model": model.state_dict()}
