"""An image that is optimized. The shape of PyTorch's neural style tutorial: no model is trained, LBFGS moves the
pixels, which its closure clamps through `.data`, and the steps are counted by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.loops.ports._parts import seed

RESUMES = "step"
STEPS = 12


def build() -> tuple[Any, ...]:
    seed()
    network = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3)).requires_grad_(False).eval()
    content, style = torch.rand(1, 1, 10, 10), torch.rand(1, 1, 10, 10)
    image = content.clone().requires_grad_(True)
    return network, content, style, image, torch.optim.LBFGS([image], max_iter=3)


def gram(features: torch.Tensor) -> torch.Tensor:
    flat = features.flatten(2)[0]
    return flat @ flat.t() / flat.numel()


def update(network: Any, content: Any, style: Any, image: Any, optimizer: Any) -> torch.Tensor:
    def closure() -> torch.Tensor:
        image.data.clamp_(0, 1)
        optimizer.zero_grad()
        features = network(image)
        loss = nn.functional.mse_loss(features, network(content))
        loss = loss + 100 * nn.functional.mse_loss(gram(features), gram(network(style)))
        loss.backward()
        return loss

    return optimizer.step(closure)


def original() -> dict[str, Any]:
    parts = build()
    for _ in range(STEPS):
        update(*parts)
    return {"image": parts[3]}


def train(colabkeep: Any) -> dict[str, Any]:
    parts = build()
    with colabkeep.Run("style", optimizer=parts[4]) as run:
        for _ in run.steps(STEPS):
            run.step(loss=update(*parts))
    return {"image": parts[3]}
