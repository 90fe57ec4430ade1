"""A learning rate by `epoch + i / n`. The shape of facebookresearch/mae, engine_pretrain.py and util/lr_sched.py:
warm-up, then a half cosine, set anew for each batch before the forward pass, which masks at random; a loss that is
not finite ends the script."""

from __future__ import annotations

import math
import sys
from typing import Any

import torch
from torch import nn

from tests.loops.ports._parts import by_epoch, digits, mlp, seed

RESUMES = "mid-epoch"
EPOCHS, WARMUP = 4, 1


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(64, 32, 16), mlp(16, 64)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        pixels = images.flatten(1)
        hidden = torch.rand_like(pixels) < 0.75
        decoded = self.decoder(torch.relu(self.encoder(pixels.masked_fill(hidden, 0.0))))
        return ((decoded - pixels) ** 2)[hidden].mean()


def build() -> tuple[Any, ...]:
    seed()
    model = Masked()
    return by_epoch(digits()), model, torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95))


def adjust_learning_rate(optimizer: Any, epoch: float) -> None:
    lr = 1e-2 * epoch / WARMUP
    if epoch >= WARMUP:
        lr = 1e-4 + 9.9e-3 * 0.5 * (1.0 + math.cos(math.pi * (epoch - WARMUP) / (EPOCHS - WARMUP)))
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_scale", 1.0)


def update(model: Any, optimizer: Any, samples: Any) -> torch.Tensor:
    loss = model(samples)
    if not math.isfinite(loss.item()):
        sys.exit(1)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def original() -> dict[str, Any]:
    data_loader, model, optimizer = build()
    for epoch in range(EPOCHS):
        data_loader.sampler.set_epoch(epoch)
        model.train(True)
        for data_iter_step, (samples, _) in enumerate(data_loader):
            adjust_learning_rate(optimizer, data_iter_step / len(data_loader) + epoch)
            update(model, optimizer, samples)
    return {"model": model.state_dict(), "lr": optimizer.param_groups[0]["lr"]}


def train(colabkeep: Any) -> dict[str, Any]:
    data_loader, model, optimizer = build()
    with colabkeep.Run("mae", model=model, optimizer=optimizer) as run:
        for epoch in run.epochs(EPOCHS):
            model.train(True)
            for data_iter_step, (samples, _) in run.enumerate(data_loader):
                adjust_learning_rate(optimizer, data_iter_step / len(data_loader) + epoch)
                run.step(loss=update(model, optimizer, samples))
    return {"model": model.state_dict(), "lr": optimizer.param_groups[0]["lr"]}
