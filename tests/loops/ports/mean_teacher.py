"""A teacher that is the average of its student. The shape of CuriousAI/mean-teacher, main.py: the average is taken
through `.data` with a rate by the number of steps so far, the weight of the consistency loss ramps up by the epoch.

Student and teacher are wide enough (256 KiB) for copies of them to hide behind the next step."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.loops.ports._parts import by_epoch, digits, seed

RESUMES = "mid-epoch"
EPOCHS = 3


def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 1024), nn.ReLU(), nn.Dropout(0.2), nn.Linear(1024, 4))


def build() -> tuple[Any, ...]:
    seed()
    model, ema_model = net(), net()
    for parameter in ema_model.parameters():
        parameter.detach_()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, nesterov=True)
    return by_epoch(digits()), model, ema_model, optimizer


def update_ema_variables(model: Any, ema_model: Any, alpha: float, global_step: int) -> None:
    alpha = min(1 - 1 / (global_step + 1), alpha)
    for ema_parameter, parameter in zip(ema_model.parameters(), model.parameters(), strict=True):
        ema_parameter.data.mul_(alpha).add_(parameter.data, alpha=1 - alpha)


def update(model: Any, ema_model: Any, optimizer: Any, epoch: float, batch: Any) -> torch.Tensor:
    images, target = batch
    logits, ema_logits = model(images), ema_model(images + 0.1 * torch.randn_like(images)).detach()
    weight = math.exp(-5.0 * (1.0 - min(epoch / EPOCHS, 1.0)) ** 2)
    loss = F.cross_entropy(logits, target) + weight * F.mse_loss(logits.softmax(1), ema_logits.softmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def original() -> dict[str, Any]:
    loader, model, ema_model, optimizer = build()
    global_step = 0
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            update(model, ema_model, optimizer, epoch, batch)
            global_step += 1
            update_ema_variables(model, ema_model, 0.99, global_step)
    return {"model": model.state_dict(), "ema": ema_model.state_dict()}


def train(colabkeep: Any) -> dict[str, Any]:
    loader, model, ema_model, optimizer = build()
    with colabkeep.Run("teacher", model=model, optimizer=optimizer, ema=ema_model) as run:
        for epoch in run.epochs(EPOCHS):
            for batch in run.batches(loader):
                run.step(loss=update(model, ema_model, optimizer, epoch, batch))
                update_ema_variables(model, ema_model, 0.99, run.progress.step)
    return {"model": model.state_dict(), "ema": ema_model.state_dict()}
