"""What the ports are made of: small data and models, built from one seed."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

__all__ = ["Pole", "by_epoch", "digits", "in_order", "mlp", "seed", "small_net"]


def seed(number: int = 1) -> None:
    """What every script does first."""
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


def digits(count: int = 24, side: int = 8, classes: int = 4) -> TensorDataset:
    """Images (count, 1, side, side) in which a bright row says the class."""
    labels = torch.arange(count) % classes
    images = 0.3 * torch.randn(count, 1, side, side)
    for image, label in zip(images, labels, strict=True):
        image[0, 2 * int(label)] += 1.0
    return TensorDataset(images, labels)


def in_order(data: Dataset[Any], batch: int = 4, **words: Any) -> DataLoader[Any]:
    """A loader that does not shuffle.

    A loader of torch's own draws one number per epoch, for its workers, from the global stream, unless it is given
    a generator for that; one that colabkeep reads draws none. Here the two are to be compared, so it has one.
    """
    return DataLoader(data, batch, generator=torch.Generator(), **words)


def by_epoch(data: Dataset[Any], batch: int = 4, **words: Any) -> DataLoader[Any]:
    """A loader whose order is a function of the epoch, as scripts for several GPUs have it: with colabkeep it is the
    same as without, shuffled as it is. Without it, `loader.sampler.set_epoch(epoch)` is the script's to call."""
    return in_order(data, batch, sampler=DistributedSampler(data, num_replicas=1, rank=0, seed=0), **words)


def mlp(*sizes: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for number, (before, after) in enumerate(pairwise(sizes)):
        layers += [nn.ReLU()] * (number > 0) + [nn.Linear(before, after)]
    return nn.Sequential(*layers)


def small_net(classes: int = 4) -> nn.Sequential:
    """Convolution, BatchNorm, dropout, linear: shape (n, 1, 8, 8) → (n, classes)."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(64, classes),
    )


class Pole:
    """A small environment: a pole that falls sooner or later, pushed from the left (0) or from the right (1).

    Like those of gymnasium it draws from a generator of its own. Its state can be saved: two methods more.
    """

    def __init__(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)
        self.state = np.zeros(4)

    def reset(self) -> np.ndarray:
        self.state = self.generator.uniform(-0.05, 0.05, 4)
        return self.state.copy()

    def step(self, action: int) -> tuple[np.ndarray, float, bool]:
        """The next state, the reward, and whether it fell."""
        place, speed, angle, turn = self.state
        push = (2 * action - 1) + self.generator.normal(0, 0.3)
        self.state = np.array([place + 0.1 * speed, speed + 0.1 * push, angle + 0.1 * turn, turn + angle - 0.2 * push])
        return self.state.copy(), 1.0, bool(abs(self.state[2]) > 0.5)

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.bit_generator.state, "state": self.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.bit_generator.state = state["generator"]
        self.state = np.array(state["state"])
