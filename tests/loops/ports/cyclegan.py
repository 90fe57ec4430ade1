"""Two generators, two discriminators, three optimizers. The shape of eriklindernoren/PyTorch-GAN,
cyclegan/cyclegan.py: one optimizer over two models chained, schedules that begin to fall in a later epoch, and
buffers of earlier fakes, drawn from at random: lists of tensors, handed in with methods to be saved."""

from __future__ import annotations

import itertools
import random
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from tests.loops.ports._parts import by_epoch, digits, mlp, seed

RESUMES = "mid-epoch"
EPOCHS, DECAY = 3, 1


class ReplayBuffer:
    def __init__(self, most: int = 6) -> None:
        self.most, self.data = most, []

    def push_and_pop(self, batch: torch.Tensor) -> torch.Tensor:
        given = []
        for element in batch.detach().split(1):
            if len(self.data) < self.most:
                self.data.append(element)
                given.append(element)
            elif random.uniform(0, 1) > 0.5:
                i = random.randint(0, self.most - 1)
                given.append(self.data[i].clone())
                self.data[i] = element
            else:
                given.append(element)
        return torch.cat(given)

    def state_dict(self) -> dict[str, Any]:
        return {"data": list(self.data)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.data = list(state["data"])


def build() -> dict[str, Any]:
    seed()
    nets = {"g_ab": mlp(64, 24, 64), "g_ba": mlp(64, 24, 64), "d_a": mlp(64, 16, 1), "d_b": mlp(64, 16, 1)}
    pair = itertools.chain(nets["g_ab"].parameters(), nets["g_ba"].parameters())
    optimizers = {
        "optimizer_g": torch.optim.Adam(pair, lr=2e-3, betas=(0.5, 0.999)),
        "optimizer_d_a": torch.optim.Adam(nets["d_a"].parameters(), lr=2e-3, betas=(0.5, 0.999)),
        "optimizer_d_b": torch.optim.Adam(nets["d_b"].parameters(), lr=2e-3, betas=(0.5, 0.999)),
    }
    schedules = {
        name.replace("optimizer", "schedule"): LambdaLR(
            each, lambda epoch: 1.0 - max(0, epoch + 1 - DECAY) / (EPOCHS + 1 - DECAY)
        )
        for name, each in optimizers.items()
    }
    buffers = {"buffer_a": ReplayBuffer(), "buffer_b": ReplayBuffer()}
    return {**nets, **optimizers, **schedules, **buffers}


def update(parts: dict[str, Any], images: torch.Tensor) -> torch.Tensor:
    real_a = images.flatten(1)
    real_b = real_a.flip(1) * 0.5
    ones, zeros, mse, l1 = torch.ones(len(images), 1), torch.zeros(len(images), 1), nn.MSELoss(), nn.L1Loss()
    parts["optimizer_g"].zero_grad()
    fake_b, fake_a = parts["g_ab"](real_a), parts["g_ba"](real_b)
    loss_gan = (mse(parts["d_b"](fake_b), ones) + mse(parts["d_a"](fake_a), ones)) / 2
    loss_cycle = (l1(parts["g_ba"](fake_b), real_a) + l1(parts["g_ab"](fake_a), real_b)) / 2
    loss_g = loss_gan + 10.0 * loss_cycle
    loss_g.backward()
    parts["optimizer_g"].step()
    for end, real, fake in (("a", real_a, fake_a), ("b", real_b, fake_b)):
        optimizer, net = parts[f"optimizer_d_{end}"], parts[f"d_{end}"]
        optimizer.zero_grad()
        older = parts[f"buffer_{end}"].push_and_pop(fake)
        ((mse(net(real), ones) + mse(net(older), zeros)) / 2).backward()
        optimizer.step()
    return loss_g


def end_epoch(parts: dict[str, Any]) -> None:
    for name in ("schedule_g", "schedule_d_a", "schedule_d_b"):
        parts[name].step()


def ended(parts: dict[str, Any]) -> dict[str, Any]:
    weights = {name: parts[name].state_dict() for name in ("g_ab", "g_ba", "d_a", "d_b")}
    return {**weights, "buffers": [parts["buffer_a"].data, parts["buffer_b"].data]}


def original() -> dict[str, Any]:
    parts, loader = build(), by_epoch(digits())
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for images, _ in loader:
            update(parts, images)
        end_epoch(parts)
    return ended(parts)


def train(colabkeep: Any) -> dict[str, Any]:
    parts, loader = build(), by_epoch(digits())
    others = {name: part for name, part in parts.items() if name not in ("g_ab", "optimizer_g", "schedule_g")}
    with colabkeep.Run(
        "cyclegan",
        model=parts["g_ab"],
        optimizer=parts["optimizer_g"],
        scheduler=parts["schedule_g"],
        state=others,
    ) as run:
        for _ in run.epochs(EPOCHS):
            for _, (images, _) in run.enumerate(loader):
                run.step(loss=update(parts, images))
            end_epoch(parts)
    return ended(parts)
