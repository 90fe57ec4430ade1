"""Sharpness-aware minimization. The shape of davda54/sam, example/train.py and sam.py: an optimizer around another one,
which shares its groups and keeps momentum of its own, which the outer one's `state_dict()` lacks; two forward and
backward passes to a step; BatchNorm's statistics switched off for the second one."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.loops.ports._parts import by_epoch, digits, seed, small_net

RESUMES = "mid-epoch"
EPOCHS = 3


class SAM(torch.optim.Optimizer):
    def __init__(self, params: Any, base_optimizer: Any, rho: float = 0.05, **kwargs: Any) -> None:
        super().__init__(params, {"rho": rho, **kwargs})
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups
        self.defaults.update(self.base_optimizer.defaults)

    @torch.no_grad()
    def first_step(self) -> None:
        parameters = [p for group in self.param_groups for p in group["params"]]
        norm = torch.norm(torch.stack([p.grad.norm(p=2) for p in parameters]), p=2)
        for p in parameters:
            self.state[p]["old_p"] = p.data.clone()
            p.add_(p.grad * (self.param_groups[0]["rho"] / (norm + 1e-12)))
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        self.zero_grad()

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        self.base_optimizer.param_groups = self.param_groups

    def step(self, closure: Any = None) -> None:
        raise NotImplementedError("first_step and second_step")


def build() -> tuple[Any, ...]:
    seed()
    model = small_net()
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.05, momentum=0.9)
    return by_epoch(digits()), model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer.base_optimizer, 2, 0.2)


def running_stats(model: nn.Module, momentum: float) -> None:
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = momentum


def update(model: Any, optimizer: Any, x: Any, y: Any) -> torch.Tensor:
    running_stats(model, 0.1)
    loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
    loss.backward()
    optimizer.first_step()
    running_stats(model, 0.0)
    F.cross_entropy(model(x), y, label_smoothing=0.1).backward()
    optimizer.second_step()
    return loss


def original() -> dict[str, Any]:
    loader, model, optimizer, scheduler = build()
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        model.train()
        for x, y in loader:
            update(model, optimizer, x, y)
        scheduler.step()
    return {"model": model.state_dict()}


def train(colabkeep: Any) -> dict[str, Any]:
    loader, model, optimizer, scheduler = build()
    with colabkeep.Run("sam", model=model, optimizer=optimizer, scheduler=scheduler) as run:
        for _ in run.epochs(EPOCHS):
            model.train()
            for x, y in run.batches(loader):
                run.step(loss=update(model, optimizer, x, y))
            scheduler.step()
    return {"model": model.state_dict()}
