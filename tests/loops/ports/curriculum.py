"""A curriculum. The shape of fairseq-like data sets with `set_epoch`: what the data set gives depends on the epoch,
here how much the images are disturbed, and how."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.data import Dataset

from tests.loops.ports._parts import by_epoch, digits, seed, small_net

RESUMES = "mid-epoch"
EPOCHS = 4


class Harder(Dataset[Any]):
    def __init__(self, data: Dataset[Any]) -> None:
        self.data, self.epoch = data, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image, label = self.data[index]
        noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(1000 * self.epoch + index))
        return image + 0.2 * self.epoch * noise, label


def build() -> tuple[Any, ...]:
    seed()
    model = small_net()
    return by_epoch(Harder(digits())), model, torch.optim.NAdam(model.parameters(), lr=1e-2)


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
        loader.dataset.set_epoch(epoch)
        for x, y in loader:
            update(model, optimizer, x, y)
    return {"model": model.state_dict()}


def train(colabkeep: Any) -> dict[str, Any]:
    loader, model, optimizer = build()
    with colabkeep.Run("harder", model=model, optimizer=optimizer) as run:
        for epoch in run.epochs(EPOCHS):
            loader.dataset.set_epoch(epoch)
            for x, y in run.batches(loader):
                run.step(loss=update(model, optimizer, x, y))
    return {"model": model.state_dict()}
