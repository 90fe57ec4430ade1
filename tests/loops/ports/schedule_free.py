"""An optimizer without a schedule. The shape of facebookresearch/schedule_free, examples/mnist/main.py: the optimizer
itself is put into training and evaluation mode, which moves the weights between two points; what it counts it keeps in
its groups. The optimizer is written out here."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from tests.loops.ports._parts import by_epoch, digits, in_order, seed, small_net

RESUMES = "mid-epoch"
EPOCHS = 3


class ScheduleFree(torch.optim.Optimizer):
    """SGD whose gradients are taken at y, between the fast point z and the average x; the weights are y, or x."""

    def __init__(self, params: Any, lr: float, momentum: float = 0.9, warmup_steps: int = 0) -> None:
        defaults = {"lr": lr, "momentum": momentum, "warmup_steps": warmup_steps}
        super().__init__(params, {**defaults, "k": 0, "weight_sum": 0.0, "lr_max": -1.0, "train_mode": False})

    def _to(self, training: bool, weight: float) -> None:
        for group in self.param_groups:
            if group["train_mode"] != training:
                for p in group["params"]:
                    if "z" in self.state[p]:
                        p.data.lerp_(self.state[p]["z"], weight)
                group["train_mode"] = training

    def train(self) -> None:
        self._to(True, 1 - self.param_groups[0]["momentum"])

    def eval(self) -> None:
        self._to(False, 1 - 1 / self.param_groups[0]["momentum"])

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            assert group["train_mode"], "the optimizer is not in training mode"
            group["k"] += 1
            lr = group["lr"] * min(1.0, group["k"] / max(1, group["warmup_steps"]))
            group["lr_max"] = max(lr, group["lr_max"])
            group["weight_sum"] += group["lr_max"] ** 2
            share, momentum = group["lr_max"] ** 2 / group["weight_sum"], group["momentum"]
            for p in group["params"]:
                z = self.state[p].setdefault("z", p.clone())
                p.lerp_(z, share)
                p.add_(p.grad, alpha=lr * (momentum * (1 - share) - 1))
                z.sub_(p.grad, alpha=lr)


def build() -> tuple[Any, ...]:
    seed()
    model = small_net()
    optimizer = ScheduleFree(model.parameters(), lr=0.25, warmup_steps=4)
    return by_epoch(digits()), in_order(digits(8)), model, optimizer


def update(model: Any, optimizer: Any, data: Any, target: Any) -> torch.Tensor:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(data), target)
    loss.backward()
    optimizer.step()
    return loss


def test(model: Any, optimizer: Any, loader: Any) -> float:
    model.eval()
    optimizer.eval()
    with torch.no_grad():
        return sum(F.cross_entropy(model(data), target).item() for data, target in loader)


def original() -> dict[str, Any]:
    train_loader, test_loader, model, optimizer = build()
    log = []
    for epoch in range(EPOCHS):
        train_loader.sampler.set_epoch(epoch)
        model.train()
        optimizer.train()
        for data, target in train_loader:
            update(model, optimizer, data, target)
        log.append(test(model, optimizer, test_loader))
    return {"model": model.state_dict(), "log": log}


def train(colabkeep: Any) -> dict[str, Any]:
    train_loader, test_loader, model, optimizer = build()
    with colabkeep.Run("schedule-free", model=model, optimizer=optimizer) as run:
        run.state.log = []
        for _ in run.epochs(EPOCHS):
            model.train()
            optimizer.train()
            for _, (data, target) in run.enumerate(train_loader):
                run.step(loss=update(model, optimizer, data, target))
            run.state.log.append(test(model, optimizer, test_loader))
    return {"model": model.state_dict(), "log": run.state.log}
