"""A GAN with two models and two optimizers. The shape of pytorch/examples, dcgan/main.py: noise drawn between the two
updates, images of a fixed noise made now and then in training mode, which moves BatchNorm's statistics.

The generator is wide enough (256 KiB) for copies of it to hide behind the next step."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.loops.ports._parts import by_epoch, digits, seed

RESUMES = "mid-epoch"
EPOCHS, NZ = 2, 16


def build() -> dict[str, Any]:
    seed()
    net_g = nn.Sequential(
        nn.Linear(NZ, 1024), nn.BatchNorm1d(1024), nn.ReLU(), nn.Linear(1024, 64), nn.Tanh(), nn.Unflatten(1, (1, 8, 8))
    )
    net_d = nn.Sequential(
        nn.Conv2d(1, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(8, 8, 2), nn.BatchNorm2d(8), nn.Flatten(),
        nn.Linear(72, 1), nn.Sigmoid(),
    )  # fmt: skip
    for net in (net_g, net_d):
        for module in net.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                nn.init.normal_(module.weight, 1.0, 0.02)
    return {
        "loader": by_epoch(digits()),
        "net_g": net_g,
        "net_d": net_d,
        "fixed_noise": torch.randn(4, NZ),
        "optimizer_d": torch.optim.Adam(net_d.parameters(), lr=2e-4, betas=(0.5, 0.999)),
        "optimizer_g": torch.optim.Adam(net_g.parameters(), lr=2e-4, betas=(0.5, 0.999)),
    }


def update(parts: dict[str, Any], real: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    net_g, net_d, criterion = parts["net_g"], parts["net_d"], nn.BCELoss()
    net_d.zero_grad()
    label = torch.full((len(real), 1), 1.0)
    err_real = criterion(net_d(real), label)
    err_real.backward()
    fake = net_g(torch.randn(len(real), NZ))
    label.fill_(0.0)
    err_fake = criterion(net_d(fake.detach()), label)
    err_fake.backward()
    parts["optimizer_d"].step()
    net_g.zero_grad()
    label.fill_(1.0)
    err_g = criterion(net_d(fake), label)
    err_g.backward()
    parts["optimizer_g"].step()
    return err_real + err_fake, err_g


def original() -> dict[str, Any]:
    parts = build()
    images = []
    for epoch in range(EPOCHS):
        parts["loader"].sampler.set_epoch(epoch)
        for i, data in enumerate(parts["loader"], 0):
            update(parts, data[0])
            if i % 2 == 0:
                images.append(parts["net_g"](parts["fixed_noise"]).detach())
    return {"g": parts["net_g"].state_dict(), "d": parts["net_d"].state_dict(), "images": images}


def train(colabkeep: Any) -> dict[str, Any]:
    parts = build()
    with colabkeep.Run(
        "dcgan",
        model=parts["net_g"],
        optimizer=parts["optimizer_g"],
        state={"net_d": parts["net_d"], "optimizer_d": parts["optimizer_d"]},
    ) as run:
        run.state.images = []
        for _ in run.epochs(EPOCHS):
            for i, data in run.enumerate(parts["loader"]):
                err_d, err_g = update(parts, data[0])
                run.step(loss=err_d + err_g)
                if i % 2 == 0:
                    run.state.images.append(parts["net_g"](parts["fixed_noise"]).detach())
    return {"g": parts["net_g"].state_dict(), "d": parts["net_d"].state_dict(), "images": run.state.images}
