"""The Paddle adapter against the obligations of `colabkeep.frameworks.base`."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import paddle
from paddle import nn

from colabkeep.frameworks.base import Framework
from colabkeep.frameworks.paddle.adapter import PaddleFramework
from colabkeep.testing.frameworks import FrameworkContract


class TestPaddle(FrameworkContract):
    def make_framework(self) -> Framework:
        return PaddleFramework()

    def make_parts(self, seed: int) -> dict[str, Any]:
        paddle.seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        return self.built(width=6)

    def make_other_parts(self) -> dict[str, Any]:
        return self.built(width=7)

    def built(self, width: int) -> dict[str, Any]:
        model = nn.Sequential(
            nn.Conv1D(2, width, 3), nn.BatchNorm1D(width), nn.Dropout(0.3), nn.Flatten(1), nn.Linear(4 * width, 1)
        )
        scheduler = paddle.optimizer.lr.OneCycleLR(0.1, total_steps=50)
        optimizer = paddle.optimizer.AdamW(
            scheduler, parameters=model.parameters(), grad_clip=nn.ClipGradByGlobalNorm(1.0)
        )
        return {"model": model, "optimizer": optimizer, "scheduler": scheduler}

    def train(self, parts: Mapping[str, Any], steps: int) -> None:
        for _ in range(steps):
            noise = random.gauss(0, 1) + float(np.random.normal())
            loss = parts["model"](paddle.randn([8, 2, 6]) + noise).square().mean()
            loss.backward()
            parts["optimizer"].step()
            parts["optimizer"].clear_grad()
            parts["scheduler"].step()

    def tensor(self, number: float) -> Any:
        return paddle.to_tensor(number)


class TestPaddleThatDoesNotTellItsPosition(TestPaddle):
    """As before version 3: the stream is sown anew where it is saved."""

    def make_framework(self) -> Framework:
        return PaddleFramework(reseed=True)
