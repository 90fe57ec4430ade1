"""Meters. The shape of pytorch/examples, imagenet/main.py: AverageMeter objects for loss and accuracies that are
reported every few batches and at the end of the epoch, a learning rate by the number of the epoch, the best accuracy
kept.

The meters become `run.average`: in an epoch that is resumed in its middle they go on where they were."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from tests.loops.ports._parts import by_epoch, digits, in_order, seed, small_net

RESUMES = "mid-epoch"
EPOCHS = 3


class AverageMeter:
    def __init__(self) -> None:
        self.sum, self.count = 0.0, 0

    def update(self, value: float, n: int) -> None:
        self.sum, self.count = self.sum + value * n, self.count + n

    @property
    def avg(self) -> float:
        return self.sum / self.count


def build() -> tuple[Any, ...]:
    seed()
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    return by_epoch(digits(22)), in_order(digits(10)), model, optimizer


def accuracy(output: torch.Tensor, target: torch.Tensor) -> list[float]:
    first = output.topk(2, 1).indices.eq(target.view(-1, 1))
    return [first[:, :k].any(1).float().mean().item() * 100.0 for k in (1, 2)]


def adjust_learning_rate(optimizer: Any, epoch: int) -> None:
    for group in optimizer.param_groups:
        group["lr"] = 0.1 * (0.1 ** (epoch // 2))


def update(model: Any, optimizer: Any, images: Any, target: Any) -> tuple[torch.Tensor, list[float]]:
    output = model(images)
    loss = F.cross_entropy(output, target)
    acc = accuracy(output, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss, acc


def validate(model: Any, loader: Any) -> float:
    model.eval()
    top1 = AverageMeter()
    with torch.no_grad():
        for images, target in loader:
            top1.update(accuracy(model(images), target)[0], len(images))
    return top1.avg


def original() -> dict[str, Any]:
    train_loader, val_loader, model, optimizer = build()
    best_acc1, log = 0.0, []
    for epoch in range(EPOCHS):
        train_loader.sampler.set_epoch(epoch)
        adjust_learning_rate(optimizer, epoch)
        losses, top1, top2 = AverageMeter(), AverageMeter(), AverageMeter()
        model.train()
        for i, (images, target) in enumerate(train_loader):
            loss, (acc1, acc2) = update(model, optimizer, images, target)
            losses.update(loss.item(), len(images))
            top1.update(acc1, len(images))
            top2.update(acc2, len(images))
            if i % 2 == 0:
                log.append((losses.avg, top1.avg))
        best_acc1 = max(best_acc1, validate(model, val_loader))
        log.append((losses.avg, top1.avg, top2.avg))
    return {"model": model.state_dict(), "log": log, "best": best_acc1}


def train(colabkeep: Any) -> dict[str, Any]:
    train_loader, val_loader, model, optimizer = build()
    with colabkeep.Run("imagenet", model=model, optimizer=optimizer, monitor="acc1", mode="max") as run:
        run.state.best_acc1, run.state.log = 0.0, []
        for epoch in run.epochs(EPOCHS):
            adjust_learning_rate(optimizer, epoch)
            model.train()
            for i, (images, target) in run.enumerate(train_loader):
                loss, (acc1, acc2) = update(model, optimizer, images, target)
                run.step(loss=loss)
                run.average(loss=loss, top1=acc1, top2=acc2)
                if i % 2 == 0:
                    run.state.log.append((run.average.loss, run.average.top1))
            acc1 = validate(model, val_loader)
            run.log(acc1=acc1, **run.average)
            run.state.best_acc1 = max(run.state.best_acc1, acc1)
            run.state.log.append((run.average.loss, run.average.top1, run.average.top2))
    return {"model": model.state_dict(), "log": run.state.log, "best": run.state.best_acc1}
