"""Muon for the matrices, AdamW for the rest. The shape of KellerJordan/modded-nanogpt's loop: a list of optimizers,
each stepped, and Muon's momentum warmed up by the number of the step. Torch's own Muon where it has one (2.9 and
newer)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.loops.ports._parts import by_epoch, digits, mlp, seed

RESUMES = "step"
STEPS = 18


class HandMadeMuon(torch.optim.Optimizer):
    """Momentum, of which the update is the nearest orthogonal matrix, by Newton and Schulz."""

    def __init__(self, params: Any, lr: float, weight_decay: float, momentum: float) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                momentum = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                momentum.lerp_(p.grad, 1 - group["momentum"])
                x = p.grad.lerp(momentum, group["momentum"])
                x = x / (x.norm() + 1e-7)
                for _ in range(5):
                    square = x @ x.mT
                    x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
                p.mul_(1 - group["lr"] * group["weight_decay"]).add_(x, alpha=-group["lr"])


Muon = getattr(torch.optim, "Muon", HandMadeMuon)


def build() -> tuple[Any, ...]:
    seed()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.LayerNorm(24), mlp(24, 24, 4))
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    muon = Muon(matrices, lr=0.02, weight_decay=0.01, momentum=0.85)
    return by_epoch(digits()), model, [muon, torch.optim.AdamW(others, lr=3e-3, betas=(0.9, 0.95))]


def update(model: Any, optimizers: Any, step: int, batch: Any) -> torch.Tensor:
    x, y = batch
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    for group in optimizers[0].param_groups:
        group["momentum"] = 0.85 + 0.1 * min(step / 10, 1)
    for optimizer in optimizers:
        optimizer.step()
    model.zero_grad(set_to_none=True)
    return loss


def original() -> dict[str, Any]:
    loader, model, optimizers = build()
    epoch, batches = -1, iter(())
    for step in range(STEPS):
        batch = next(batches, None)
        if batch is None:
            epoch += 1
            loader.sampler.set_epoch(epoch)
            batches = iter(loader)
            batch = next(batches)
        update(model, optimizers, step, batch)
    return {"model": model.state_dict()}


def train(colabkeep: Any) -> dict[str, Any]:
    loader, model, optimizers = build()
    with colabkeep.Run("muon", model=model, optimizer=optimizers[0], state={"adamw": optimizers[1]}) as run:
        for step in run.steps(STEPS):
            run.step(loss=update(model, optimizers, step, run.next(loader)))
    return {"model": model.state_dict()}
