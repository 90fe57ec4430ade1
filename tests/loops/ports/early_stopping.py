"""Early stopping. The shape of Bjarten/early-stopping-pytorch: a patience that is counted after each validation, the
best weights kept in memory and put back behind the loop. Counter, best loss and best weights move into `run.state`; the
loop is left at the top of the next epoch, so that it is left there again however often the cell is run."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from tests.loops.ports._parts import by_epoch, digits, in_order, mlp, seed

RESUMES = "mid-epoch"
EPOCHS, PATIENCE = 9, 2


def build() -> tuple[Any, ...]:
    seed()
    model = mlp(64, 32, 4)
    return by_epoch(digits()), in_order(digits(8)), model, torch.optim.Adam(model.parameters(), lr=0.2)


def update(model: Any, optimizer: Any, x: Any, y: Any) -> torch.Tensor:
    loss = F.cross_entropy(model(x.flatten(1)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def validate(model: Any, loader: Any) -> float:
    model.eval()
    with torch.no_grad():
        return sum(F.cross_entropy(model(x.flatten(1)), y).item() for x, y in loader)


def copied(model: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def original() -> dict[str, Any]:
    loader, val_loader, model, optimizer = build()
    best, counter, weights, losses = None, 0, None, []
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        model.train()
        for x, y in loader:
            update(model, optimizer, x, y)
        losses.append(validate(model, val_loader))
        if best is None or losses[-1] < best:
            best, counter, weights = losses[-1], 0, copied(model)
        else:
            counter += 1
        if counter >= PATIENCE:
            break
    model.load_state_dict(weights)
    assert len(losses) < EPOCHS, "nothing was stopped early"
    return {"model": model.state_dict(), "losses": losses, "counter": counter}


def train(colabkeep: Any) -> dict[str, Any]:
    loader, val_loader, model, optimizer = build()
    with colabkeep.Run("early", model=model, optimizer=optimizer) as run:
        state = run.state
        state.best, state.counter, state.weights, state.losses = None, 0, None, []
        for _ in run.epochs(EPOCHS):
            if state.counter >= PATIENCE:
                break
            model.train()
            for x, y in run.batches(loader):
                run.step(loss=update(model, optimizer, x, y))
            state.losses.append(validate(model, val_loader))
            if state.best is None or state.losses[-1] < state.best:
                state.best, state.counter, state.weights = state.losses[-1], 0, copied(model)
            else:
                state.counter += 1
    model.load_state_dict(state.weights)
    return {"model": model.state_dict(), "losses": state.losses, "counter": state.counter}
