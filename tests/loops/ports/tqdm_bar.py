"""A progress bar around the loader. The shape of a thousand notebooks: `for x, y in tqdm(loader)` with the loss behind
it, a scheduler by batches, the accuracy of the epoch kept in a list."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch.nn import functional as F
from torch.optim.lr_scheduler import OneCycleLR
from tqdm import tqdm

from tests.loops.ports._parts import by_epoch, digits, seed, small_net

RESUMES = "mid-epoch"
EPOCHS = 3


def build() -> tuple[Any, ...]:
    seed()
    loader, model = by_epoch(digits()), small_net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return loader, model, optimizer, OneCycleLR(optimizer, max_lr=1e-2, total_steps=EPOCHS * len(loader))


def update(model: Any, optimizer: Any, scheduler: Any, x: Any, y: Any) -> tuple[torch.Tensor, int]:
    optimizer.zero_grad()
    output = model(x)
    loss = F.cross_entropy(output, y)
    loss.backward()
    optimizer.step()
    scheduler.step()
    return loss, int((output.argmax(1) == y).sum())


def original() -> dict[str, Any]:
    loader, model, optimizer, scheduler = build()
    accuracies = []
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        correct = 0
        bar = tqdm(loader, desc=f"epoch {epoch}", file=io.StringIO())
        for x, y in bar:
            loss, right = update(model, optimizer, scheduler, x, y)
            correct += right
            bar.set_postfix(loss=loss.item())
        accuracies.append(correct / 24)
    return {"model": model.state_dict(), "accuracies": accuracies}


def train(colabkeep: Any) -> dict[str, Any]:
    loader, model, optimizer, scheduler = build()
    with colabkeep.Run("bar", model=model, optimizer=optimizer, scheduler=scheduler) as run:
        run.state.accuracies = []
        for epoch in run.epochs(EPOCHS):
            run.state.correct = 0
            bar = tqdm(run.batches(loader), desc=f"epoch {epoch}", total=len(loader), file=io.StringIO())
            for x, y in bar:
                loss, right = update(model, optimizer, scheduler, x, y)
                run.step(loss=loss)
                run.state.correct += right
                bar.set_postfix(loss=loss.item())
            run.state.accuracies.append(run.state.correct / 24)
    return {"model": model.state_dict(), "accuracies": run.state.accuracies}
