"""The torch adapter against the obligations of `colabkeep.frameworks.base`."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from colabkeep.frameworks.base import Framework
from colabkeep.frameworks.torch.adapter import TorchFramework
from colabkeep.testing.frameworks import FrameworkContract


class TestTorch(FrameworkContract):
    def make_framework(self) -> Framework:
        return TorchFramework()

    def make_parts(self, seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        return self.built(width=6)

    def make_other_parts(self) -> dict[str, Any]:
        return self.built(width=7)

    def built(self, width: int) -> dict[str, Any]:
        model = torch.nn.Sequential(
            torch.nn.Conv1d(2, width, 3), torch.nn.BatchNorm1d(width), torch.nn.Dropout(0.3), torch.nn.Flatten(1),
            torch.nn.Linear(4 * width, 1),
        )  # fmt: skip
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        return {
            "model": model,
            "optimizer": optimizer,
            "scheduler": torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=50),
            "scaler": torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2),
            "ema": torch.optim.swa_utils.AveragedModel(model, use_buffers=True),
        }

    def train(self, parts: Mapping[str, Any], steps: int) -> None:
        for _ in range(steps):
            noise = random.gauss(0, 1) + float(np.random.normal())
            loss = parts["model"](torch.randn(8, 2, 6) + noise).square().mean()
            parts["optimizer"].zero_grad()
            parts["scaler"].scale(loss).backward()
            parts["scaler"].step(parts["optimizer"])
            parts["scaler"].update()
            parts["scheduler"].step()
            parts["ema"].update_parameters(parts["model"])

    def tensor(self, number: float) -> Any:
        return torch.tensor(number)
