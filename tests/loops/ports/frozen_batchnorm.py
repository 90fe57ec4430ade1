"""Fine-tuning with a body that is frozen at first and with BatchNorm in evaluation mode. The shape of detection and
transfer-learning scripts: `train()` is overridden so that the statistics stay, and in one epoch, once, the body is
thawed by `requires_grad`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.loops.ports._parts import by_epoch, digits, in_order, seed

RESUMES = "mid-epoch"
FIRST_KILL = 17  # behind the epoch in which the body was thawed
EPOCHS, THAWED = 4, 1


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))

    def train(self, mode: bool = True) -> Net:
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.eval()
        return self


def build() -> tuple[Any, ...]:
    seed()
    model = Net()
    model.body.requires_grad_(False)
    return by_epoch(digits()), in_order(digits(8)), model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def update(model: Any, optimizer: Any, x: Any, y: Any) -> torch.Tensor:
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def evaluate(model: Any, loader: Any) -> float:
    model.eval()
    with torch.no_grad():
        return sum(F.cross_entropy(model(x), y).item() for x, y in loader)


def original() -> dict[str, Any]:
    loader, val_loader, model, optimizer = build()
    log = []
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        if epoch == THAWED:
            model.body.requires_grad_(True)
        model.train()
        for x, y in loader:
            update(model, optimizer, x, y)
        log.append(evaluate(model, val_loader))
    return {"model": model.state_dict(), "log": log}


def train(colabkeep: Any) -> dict[str, Any]:
    loader, val_loader, model, optimizer = build()
    with colabkeep.Run("frozen", model=model, optimizer=optimizer) as run:
        run.state.log = []
        for epoch in run.epochs(EPOCHS):
            if epoch == THAWED:
                model.body.requires_grad_(True)
            model.train()
            for x, y in run.batches(loader):
                run.step(loss=update(model, optimizer, x, y))
            run.state.log.append(evaluate(model, val_loader))
    return {"model": model.state_dict(), "log": run.state.log}
