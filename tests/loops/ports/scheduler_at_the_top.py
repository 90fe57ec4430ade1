"""`scheduler.step()` where the epoch begins. The shape of loops from before PyTorch 1.1, and of those that were never
changed since; torch warns, and the schedule is one step ahead. In an epoch that is resumed in its middle the top runs
again: its step is in the checkpoint already, and must not be taken twice."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.nn import functional as F

from tests.loops.ports._parts import by_epoch, digits, seed, small_net

RESUMES = "mid-epoch"
EPOCHS = 4


def build() -> tuple[Any, ...]:
    seed()
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return by_epoch(digits()), model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.3)


def step(scheduler: Any) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        scheduler.step()


def update(model: Any, optimizer: Any, x: Any, y: Any) -> torch.Tensor:
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def original() -> dict[str, Any]:
    loader, model, optimizer, scheduler = build()
    for epoch in range(EPOCHS):
        step(scheduler)
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            update(model, optimizer, x, y)
    return {"model": model.state_dict(), "lr": optimizer.param_groups[0]["lr"]}


def train(colabkeep: Any) -> dict[str, Any]:
    loader, model, optimizer, scheduler = build()
    with colabkeep.Run("old", model=model, optimizer=optimizer, scheduler=scheduler) as run:
        for _ in run.epochs(EPOCHS):
            step(scheduler)
            for x, y in run.batches(loader):
                run.step(loss=update(model, optimizer, x, y))
    return {"model": model.state_dict(), "lr": optimizer.param_groups[0]["lr"]}
