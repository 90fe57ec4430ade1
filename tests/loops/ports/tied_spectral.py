"""Tied and spectral-normed weights. The shape of SNGAN's discriminators and of language models with one embedding for
both ends: norms in both of torch's spellings, whose power iteration moves buffers in each forward pass, and weight norm
beside them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, spectral_norm

from tests.loops.ports._parts import by_epoch, digits, seed

RESUMES = "mid-epoch"
EPOCHS = 3


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hooked = spectral_norm(nn.Linear(64, 16))
        self.parametrized = parametrizations.spectral_norm(nn.Linear(16, 16))
        self.weighed = parametrizations.weight_norm(nn.Linear(16, 16))
        self.encoder, self.decoder = nn.Linear(16, 16), nn.Linear(16, 16)
        self.decoder.weight = self.encoder.weight
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.parametrized(torch.relu(self.hooked(x.flatten(1)))))
        return self.head(self.decoder(torch.tanh(self.encoder(self.weighed(hidden)))))


def build() -> tuple[Any, ...]:
    seed()
    model = Net()
    return by_epoch(digits()), model, torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.0, 0.9))


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
        for x, y in loader:
            update(model, optimizer, x, y)
    return {"model": model.state_dict(), "weight": model.parametrized.weight}


def train(colabkeep: Any) -> dict[str, Any]:
    loader, model, optimizer = build()
    with colabkeep.Run("sngan", model=model, optimizer=optimizer) as run:
        for _ in run.epochs(EPOCHS):
            for x, y in run.batches(loader):
                run.step(loss=update(model, optimizer, x, y))
    return {"model": model.state_dict(), "weight": model.parametrized.weight}
