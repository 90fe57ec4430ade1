"""Gradual unfreezing. The shape of ULMFiT-like fine-tuning scripts: at the top of an epoch a deeper layer is made
trainable and given to the optimizer as one more group, with a smaller learning rate."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.loops.ports._parts import by_epoch, digits, seed

RESUMES = "mid-epoch"
EPOCHS = 4


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(64, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        for layer in (self.first, self.second):
            layer.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.second(torch.relu(self.first(x.flatten(1))))))


def build() -> tuple[Any, ...]:
    seed()
    model = Net()
    return by_epoch(digits()), model, torch.optim.AdamW(model.head.parameters(), lr=1e-2)


def unfreeze(model: Any, optimizer: Any, epoch: int) -> None:
    layer = {1: model.second, 2: model.first}.get(epoch)
    if layer is not None:
        layer.requires_grad_(True)
        optimizer.add_param_group({"params": layer.parameters(), "lr": 1e-2 / 2.6**epoch})


def update(model: Any, optimizer: Any, x: Any, y: Any) -> torch.Tensor:
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def original() -> dict[str, Any]:
    loader, model, optimizer = build()
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        unfreeze(model, optimizer, epoch)
        for x, y in loader:
            update(model, optimizer, x, y)
    return {"model": model.state_dict()}


def train(colabkeep: Any) -> dict[str, Any]:
    loader, model, optimizer = build()
    with colabkeep.Run("ulmfit", model=model, optimizer=optimizer) as run:
        for epoch in run.epochs(EPOCHS):
            unfreeze(model, optimizer, epoch)
            for x, y in run.batches(loader):
                run.step(loss=update(model, optimizer, x, y))
    return {"model": model.state_dict()}
