"""Mixup and CutMix. The shape of facebookresearch/mixup-cifar10, train.py, with clovaai/CutMix-PyTorch's box: the
share is drawn from NumPy's beta distribution, the partners from torch's stream, and sums for the report are kept by
hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from tests.loops.ports._parts import by_epoch, digits, seed, small_net

RESUMES = "mid-epoch"
EPOCHS = 3


def build() -> tuple[Any, ...]:
    seed()
    net = small_net()
    return by_epoch(digits()), net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)


def mixed(x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
    lam, index = np.random.beta(1.0, 1.0), torch.randperm(len(x))
    if np.random.rand() < 0.5:
        side = int(8 * np.sqrt(1.0 - lam))
        top, left = np.random.randint(0, 9 - side), np.random.randint(0, 9 - side)
        x = x.clone()
        x[:, :, top : top + side, left : left + side] = x[index, :, top : top + side, left : left + side]
        lam = 1 - side * side / 64
    else:
        x = lam * x + (1 - lam) * x[index]
    return x, y, y[index], lam


def update(net: Any, optimizer: Any, inputs: Any, targets: Any) -> tuple[float, float]:
    inputs, targets_a, targets_b, lam = mixed(inputs, targets)
    outputs = net(inputs)
    loss = lam * F.cross_entropy(outputs, targets_a) + (1 - lam) * F.cross_entropy(outputs, targets_b)
    predicted = outputs.argmax(1)
    correct = lam * predicted.eq(targets_a).sum().item() + (1 - lam) * predicted.eq(targets_b).sum().item()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item(), correct


def adjust_learning_rate(optimizer: Any, epoch: int) -> None:
    for group in optimizer.param_groups:
        group["lr"] = 0.1 if epoch < 1 else 0.01


def original() -> dict[str, Any]:
    trainloader, net, optimizer = build()
    log = []
    for epoch in range(EPOCHS):
        trainloader.sampler.set_epoch(epoch)
        train_loss, correct, total = 0.0, 0.0, 0
        for inputs, targets in trainloader:
            loss, right = update(net, optimizer, inputs, targets)
            train_loss, correct, total = train_loss + loss, correct + right, total + len(inputs)
        log.append((train_loss, correct / total))
        adjust_learning_rate(optimizer, epoch)
    return {"net": net.state_dict(), "log": log}


def train(colabkeep: Any) -> dict[str, Any]:
    trainloader, net, optimizer = build()
    with colabkeep.Run("mixup", model=net, optimizer=optimizer) as run:
        state = run.state
        state.log = []
        for epoch in run.epochs(EPOCHS):
            state.train_loss, state.correct, state.total = 0.0, 0.0, 0
            for inputs, targets in run.batches(trainloader):
                loss, right = update(net, optimizer, inputs, targets)
                run.step(loss=loss)
                state.train_loss += loss
                state.correct += right
                state.total += len(inputs)
            state.log.append((state.train_loss, state.correct / state.total))
            adjust_learning_rate(optimizer, epoch)
    return {"net": net.state_dict(), "log": state.log}
