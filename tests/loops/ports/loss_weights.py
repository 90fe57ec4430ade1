"""Several tasks whose losses are weighed by what is learnt. The shape of yaringal/multi-task-learning-example: the log
variances are tensors of the script, in no module, and given to the optimizer beside the model's parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from tests.loops.ports._parts import by_epoch, digits, mlp, seed

RESUMES = "mid-epoch"
EPOCHS = 3


def build() -> tuple[Any, ...]:
    seed()
    model = mlp(64, 24, 5)
    log_vars = [torch.zeros((1,), requires_grad=True), torch.zeros((1,), requires_grad=True)]
    return by_epoch(digits()), model, log_vars, torch.optim.Adam([*model.parameters(), *log_vars], lr=1e-2)


def update(model: Any, log_vars: Any, optimizer: Any, x: Any, y: Any) -> torch.Tensor:
    output = model(x.flatten(1))
    losses = F.cross_entropy(output[:, :4], y), F.mse_loss(output[:, 4], x.mean((1, 2, 3)))
    loss = sum(torch.exp(-log_var) * each + log_var for each, log_var in zip(losses, log_vars, strict=True)).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def original() -> dict[str, Any]:
    loader, model, log_vars, optimizer = build()
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            update(model, log_vars, optimizer, x, y)
    return {"model": model.state_dict(), "log_vars": log_vars}


def train(colabkeep: Any) -> dict[str, Any]:
    loader, model, log_vars, optimizer = build()
    with colabkeep.Run("tasks", model=model, optimizer=optimizer) as run:
        for _ in run.epochs(EPOCHS):
            for x, y in run.batches(loader):
                run.step(loss=update(model, log_vars, optimizer, x, y))
    return {"model": model.state_dict(), "log_vars": log_vars}
