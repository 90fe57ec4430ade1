"""Mixed precision with gradient accumulation. The shape of PyTorch's AMP examples, "working with gradient
accumulation": autocast, a scaler that is updated with each step, an update every second batch by the number of the
batch and at the end of the epoch. On the CPU: bfloat16."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from tests.loops.ports._parts import by_epoch, digits, seed, small_net

RESUMES = "mid-epoch"
EPOCHS, ACCUMULATE = 4, 2


def build() -> tuple[Any, ...]:
    seed()
    loader, net = by_epoch(digits(26), 2), small_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    return loader, net, optimizer, torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=5)


def backward(net: Any, scaler: Any, x: Any, y: Any) -> torch.Tensor:
    with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
        loss = F.cross_entropy(net(x), y) / ACCUMULATE
    scaler.scale(loss).backward()
    return loss


def step(optimizer: Any, scaler: Any) -> None:
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


def original() -> dict[str, Any]:
    loader, net, optimizer, scaler = build()
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(loader):
            backward(net, scaler, x, y)
            if (i + 1) % ACCUMULATE == 0 or i + 1 == len(loader):
                step(optimizer, scaler)
    return {"net": net.state_dict(), "scale": scaler.get_scale()}


def train(colabkeep: Any) -> dict[str, Any]:
    loader, net, optimizer, scaler = build()
    with colabkeep.Run("amp", model=net, optimizer=optimizer, scaler=scaler) as run:
        for _ in run.epochs(EPOCHS):
            for i, (x, y) in run.enumerate(loader):
                loss = backward(net, scaler, x, y)
                if (i + 1) % ACCUMULATE == 0 or i + 1 == len(loader):
                    step(optimizer, scaler)
                    run.step(loss=loss * ACCUMULATE)
    return {"net": net.state_dict(), "scale": scaler.get_scale()}
