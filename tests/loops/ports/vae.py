"""A variational autoencoder. The shape of pytorch/examples, vae/main.py: noise in the forward pass, a sum of losses by
hand, a sample drawn from the latent space after each epoch (which moves the random stream)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.loops.ports._parts import by_epoch, digits, in_order, seed

RESUMES = "mid-epoch"
EPOCHS = 3


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(64, 32), nn.Linear(32, 3), nn.Linear(32, 3)
        self.fc3, self.fc4 = nn.Linear(3, 32), nn.Linear(32, 64)

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = F.relu(self.fc1(x.view(-1, 64)))
        mu, logvar = self.fc21(hidden), self.fc22(hidden)
        return self.decode(mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)), mu, logvar


def loss_function(x: torch.Tensor, decoded: torch.Tensor, mu: torch.Tensor, logvar: torch.Tensor) -> torch.Tensor:
    bce = F.binary_cross_entropy(decoded, x.view(-1, 64).sigmoid(), reduction="sum")
    return bce - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


def build() -> tuple[Any, ...]:
    seed()
    train_loader, test_loader, model = by_epoch(digits()), in_order(digits(8)), VAE()
    return train_loader, test_loader, model, torch.optim.Adam(model.parameters(), lr=1e-3)


def update(model: Any, optimizer: Any, data: Any) -> torch.Tensor:
    optimizer.zero_grad()
    loss = loss_function(data, *model(data))
    loss.backward()
    optimizer.step()
    return loss


def after_an_epoch(model: Any, test_loader: Any) -> tuple[float, torch.Tensor]:
    model.eval()
    with torch.no_grad():
        test_loss = sum(loss_function(data, *model(data)).item() for data, _ in test_loader)
        return test_loss, model.decode(torch.randn(4, 3))


def original() -> dict[str, Any]:
    train_loader, test_loader, model, optimizer = build()
    log = []
    for epoch in range(EPOCHS):
        train_loader.sampler.set_epoch(epoch)
        model.train()
        train_loss = 0.0
        for data, _ in train_loader:
            train_loss += update(model, optimizer, data).item()
        log.append([train_loss, *after_an_epoch(model, test_loader)])
    return {"model": model.state_dict(), "log": log}


def train(colabkeep: Any) -> dict[str, Any]:
    train_loader, test_loader, model, optimizer = build()
    with colabkeep.Run("vae", model=model, optimizer=optimizer) as run:
        run.state.log = []
        for _ in run.epochs(EPOCHS):
            model.train()
            run.state.train_loss = 0.0
            for data, _ in run.batches(train_loader):
                loss = update(model, optimizer, data)
                run.step(loss=loss)
                run.state.train_loss += loss.item()
            run.state.log.append([run.state.train_loss, *after_an_epoch(model, test_loader)])
    return {"model": model.state_dict(), "log": run.state.log}
