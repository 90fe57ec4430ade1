"""A model that counts for itself. The shape of annealed losses (beta-VAE, Gumbel softmax, scheduled sampling): the
module has plain attributes, which its own `forward` or the loop moves step by step. No `state_dict` holds them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.loops.ports._parts import by_epoch, digits, seed

RESUMES = "mid-epoch"
EPOCHS = 3


class Gumbel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(64, 6), nn.Linear(6, 64)
        self.temperature, self.num_iter = 1.0, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.num_iter += 1
        drawn = F.gumbel_softmax(self.encoder(x.flatten(1)), tau=self.temperature)
        loss = F.mse_loss(self.decoder(drawn), x.flatten(1))
        return loss + 0.01 * min(1.0, self.num_iter / 10) * (drawn * (drawn + 1e-9).log()).sum(1).mean()


def build() -> tuple[Any, ...]:
    seed()
    model = Gumbel()
    return by_epoch(digits()), model, torch.optim.Adam(model.parameters(), lr=1e-2)


def update(model: Any, optimizer: Any, x: Any) -> torch.Tensor:
    loss = model(x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.temperature = max(0.5, model.temperature * 0.97)
    return loss


def original() -> dict[str, Any]:
    loader, model, optimizer = build()
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for x, _ in loader:
            update(model, optimizer, x)
    return {"model": model.state_dict(), "moved": [model.temperature, model.num_iter]}


def train(colabkeep: Any) -> dict[str, Any]:
    loader, model, optimizer = build()
    with colabkeep.Run("gumbel", model=model, optimizer=optimizer) as run:
        for _ in run.epochs(EPOCHS):
            for x, _ in run.batches(loader):
                run.step(loss=update(model, optimizer, x))
    return {"model": model.state_dict(), "moved": [model.temperature, model.num_iter]}
