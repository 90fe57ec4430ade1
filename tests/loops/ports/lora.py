"""Low-rank adapters on a frozen model, by hand. The shape of microsoft/LoRA's layers: beside a frozen weight two small
ones that train; the optimizer has only these."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.loops.ports._parts import by_epoch, digits, seed

RESUMES = "mid-epoch"
EPOCHS = 3


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.dropout = nn.Dropout(0.1)
        self.lora_a = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.dropout(x) @ self.lora_a.t() @ self.lora_b.t() * 2.0


def build() -> tuple[Any, ...]:
    seed()
    model = nn.Sequential(nn.Flatten(), LoRALinear(nn.Linear(64, 32), 2), nn.ReLU(), LoRALinear(nn.Linear(32, 4), 2))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    return by_epoch(digits()), model, optimizer, torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 18)


def update(model: Any, optimizer: Any, scheduler: Any, x: Any, y: Any) -> torch.Tensor:
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    return loss


def original() -> dict[str, Any]:
    loader, model, optimizer, scheduler = build()
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            update(model, optimizer, scheduler, x, y)
    return {"model": model.state_dict()}


def train(colabkeep: Any) -> dict[str, Any]:
    loader, model, optimizer, scheduler = build()
    with colabkeep.Run("lora", model=model, optimizer=optimizer, scheduler=scheduler) as run:
        for _ in run.epochs(EPOCHS):
            for x, y in run.batches(loader):
                run.step(loss=update(model, optimizer, scheduler, x, y))
    return {"model": model.state_dict()}
