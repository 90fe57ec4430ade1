"""The hard training of torch."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, Dataset

from tests.trainings.base import BATCH, FEATURES, SAMPLES, Consumed, Witness

__all__ = ["Noisy", "Tied", "hard_training", "one_thread", "step_by_hand"]


_WIDE = 2048


class Noisy(Dataset[tuple[torch.Tensor, tuple[torch.Tensor, int]]]):
    """Pairs (features, (target, index)), augmented at random from torch, NumPy, `random` and a generator of its own."""

    def __init__(self, samples: int = SAMPLES) -> None:
        self._features = torch.linspace(-1, 1, samples * FEATURES).reshape(samples, FEATURES)
        self._own = np.random.default_rng()

    def __len__(self) -> int:
        return len(self._features)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, tuple[torch.Tensor, int]]:
        noise = random.gauss(0, 0.1) + float(np.random.normal(0, 0.1)) + float(self._own.normal(0, 0.1))
        features = self._features[index] + noise + 0.1 * torch.randn(FEATURES)
        return features, (features.flip(0), index)


class Tied(nn.Module):
    """Two layers that share one weight, with BatchNorm and dropout between them; beside them two that are wide enough
    (64 KiB each) for their copy to hide behind the next step."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, FEATURES)
        self.norm = nn.BatchNorm1d(FEATURES)
        self.drop = nn.Dropout(0.2)
        self.second = nn.Linear(FEATURES, FEATURES)
        self.second.weight = self.first.weight
        self.wide = nn.Sequential(nn.Linear(FEATURES, _WIDE), nn.ReLU(), nn.Linear(_WIDE, FEATURES))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Shape (n, 8) → (n, 8)."""
        hidden = self.drop(torch.relu(self.norm(self.first(features))))
        result: torch.Tensor = self.second(hidden) + self.wide(features)
        return result


def hard_training(
    *,
    workers: int = 0,
    accumulate: int = 1,
    epochs: int = 6,
    heard: Consumed = lambda *_: None,
    measured: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """The arguments of `colabkeep.resumable_fit`, all objects built anew from the same seed.

    `heard` is told of each step, `measured` is called for each batch of a validation.
    """
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    witness = Witness(heard, measured)

    def loss(output: torch.Tensor, target: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        wanted, index = target
        if output.requires_grad:
            witness.saw(index.tolist())
        else:
            witness.measured()
        return nn.functional.mse_loss(output, wanted)

    loader = DataLoader(Noisy(), BATCH, shuffle=True, num_workers=workers)
    steps = epochs * -(-len(loader) // accumulate)
    return {
        "model": model,
        "train_loader": loader,
        "optimizer": optimizer,
        "loss_fn": loss,
        "val_loader": DataLoader(Noisy(7), BATCH),
        "scheduler": torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=steps),
        "scheduler_interval": "step",
        "ema": AveragedModel(model, avg_fn=_follow, use_buffers=True),
        "accumulate_grad_batches": accumulate,
        "gradient_clip_val": 1.0,
        "max_epochs": epochs,
        "callbacks": (witness,),
        "progress": False,
    }


def step_by_hand(words: Mapping[str, Any], features: Any, target: Any) -> Any:
    """One step of a user's own loop over the objects of `hard_training`; its loss."""
    model, optimizer = words["model"], words["optimizer"]
    loss = words["loss_fn"](model(features), target)
    loss.backward()
    optimizer.step()
    words["scheduler"].step()
    words["ema"].update_parameters(model)
    optimizer.zero_grad()
    return loss


def one_thread() -> None:
    """Compute with one thread from here on."""
    torch.set_num_threads(1)


def _follow(average: torch.Tensor, now: torch.Tensor, _: Any) -> torch.Tensor:
    return average.lerp(now.to(average.dtype), 0.1) if average.is_floating_point() else now
