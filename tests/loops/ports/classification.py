"""Image classification. The shape of pytorch/examples, mnist/main.py: a function for training and one for testing,
a report every few batches by the number of the batch, a schedule by epochs."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F
from torch.optim.lr_scheduler import StepLR

from tests.loops.ports._parts import by_epoch, digits, in_order, seed, small_net

RESUMES = "mid-epoch"
EPOCHS = 3


def build() -> tuple[Any, ...]:
    seed()
    train_loader, test_loader = by_epoch(digits()), in_order(digits(8))
    model = small_net()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    return train_loader, test_loader, model, optimizer, StepLR(optimizer, step_size=1, gamma=0.7)


def update(model: Any, optimizer: Any, data: Any, target: Any) -> torch.Tensor:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(data), target)
    loss.backward()
    optimizer.step()
    return loss


def test(model: Any, test_loader: Any) -> float:
    model.eval()
    with torch.no_grad():
        return sum(F.cross_entropy(model(data), target, reduction="sum").item() for data, target in test_loader)


def original() -> dict[str, Any]:
    train_loader, test_loader, model, optimizer, scheduler = build()
    log = []
    for epoch in range(EPOCHS):
        train_loader.sampler.set_epoch(epoch)
        model.train()
        for batch_idx, (data, target) in enumerate(train_loader):
            loss = update(model, optimizer, data, target)
            if batch_idx % 2 == 0:
                log.append((epoch, batch_idx, loss.item()))
        log.append((epoch, test(model, test_loader)))
        scheduler.step()
    return {"model": model.state_dict(), "log": log}


def train(colabkeep: Any) -> dict[str, Any]:
    train_loader, test_loader, model, optimizer, scheduler = build()
    with colabkeep.Run("mnist", model=model, optimizer=optimizer, scheduler=scheduler) as run:
        run.state.log = []
        for epoch in run.epochs(EPOCHS):
            model.train()
            for batch_idx, (data, target) in run.enumerate(train_loader):
                loss = update(model, optimizer, data, target)
                run.step(loss=loss)
                if batch_idx % 2 == 0:
                    run.state.log.append((epoch, batch_idx, loss.item()))
            run.state.log.append((epoch, test(model, test_loader)))
            scheduler.step()
    return {"model": model.state_dict(), "log": run.state.log}
