"""A Wasserstein GAN. The shape of eriklindernoren/PyTorch-GAN, wgan/wgan.py: an iterator kept by hand, several batches
and updates of the critic for each of the generator, weights clamped by `.data`, noise from NumPy.

The iterator becomes `run.next`, and a step is one update of the generator."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from tests.loops.ports._parts import digits, in_order, mlp, seed

RESUMES = "step"
EPOCHS, CRITIC, LATENT = 4, 3, 8


def build() -> tuple[Any, ...]:
    seed()
    loader = in_order(digits())  # six batches: a multiple of CRITIC, so an epoch has no rest
    generator = nn.Sequential(
        nn.Linear(LATENT, 32), nn.BatchNorm1d(32), nn.LeakyReLU(0.2), nn.Linear(32, 64), nn.Tanh()
    )
    critic = mlp(64, 32, 1)
    optimizer_g = torch.optim.RMSprop(generator.parameters(), lr=5e-5)
    return loader, generator, critic, optimizer_g, torch.optim.RMSprop(critic.parameters(), lr=5e-5)


def noise(count: int) -> torch.Tensor:
    return torch.tensor(np.random.normal(0, 1, (count, LATENT)), dtype=torch.float32)


def criticise(generator: Any, critic: Any, optimizer: Any, images: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    fake = generator(noise(len(images)))
    loss = critic(fake).mean() - critic(images.flatten(1)).mean()
    loss.backward()
    optimizer.step()
    for parameter in critic.parameters():
        parameter.data.clamp_(-0.01, 0.01)
    return loss


def generate(generator: Any, critic: Any, optimizer: Any, count: int) -> torch.Tensor:
    optimizer.zero_grad()
    loss = -critic(generator(noise(count))).mean()
    loss.backward()
    optimizer.step()
    return loss


def original() -> dict[str, Any]:
    loader, generator, critic, optimizer_g, optimizer_d = build()
    for _ in range(EPOCHS):
        data_iter = iter(loader)
        for _ in range(len(loader) // CRITIC):
            for _ in range(CRITIC):
                images, _ = next(data_iter)
                criticise(generator, critic, optimizer_d, images)
            generate(generator, critic, optimizer_g, len(images))
    return {"generator": generator.state_dict(), "critic": critic.state_dict()}


def train(colabkeep: Any) -> dict[str, Any]:
    loader, generator, critic, optimizer_g, optimizer_d = build()
    others = {"critic": critic, "optimizer_d": optimizer_d}
    with colabkeep.Run("wgan", model=generator, optimizer=optimizer_g, state=others) as run:
        for _ in run.steps(EPOCHS * (len(loader) // CRITIC)):
            for _ in range(CRITIC):
                images, _ = run.next(loader)
                criticise(generator, critic, optimizer_d, images)
            run.step(loss=generate(generator, critic, optimizer_g, len(images)))
    return {"generator": generator.state_dict(), "critic": critic.state_dict()}
