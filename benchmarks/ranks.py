"""Two processes that train together: an epoch of `resumable_fit` beside one written by hand, in turn in the same two
processes. By hand: DistributedDataParallel over gloo, a DistributedSampler, a loss that is read each step."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measuring import Figure, Setting, figure
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import colabkeep

GOAL = 1.03
EPOCHS = 9
BATCH = 32  # samples, of both processes together


def convolutions() -> nn.Module:
    """Where computing is most of a step."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def wide() -> nn.Module:
    """Where the gradients are most of it: 4 million parameters, 17 MB."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3072, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )


def in_turn(make: Callable[[], nn.Module], samples: int, epochs: int, folder: str) -> list[tuple[float, float]]:
    """In each of the processes: seconds of an epoch by hand and of one of ours, again and again."""
    made = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(samples, 3, 32, 32, generator=made), torch.randint(10, (samples,), generator=made))
    torch.manual_seed(0)
    own, ours = nn.parallel.DistributedDataParallel(make()), make()
    optimizer = torch.optim.AdamW(own.parameters(), lr=1e-4)
    ranks = torch.distributed.get_world_size()
    sampler: Any = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH // ranks, sampler=sampler)

    def by_hand(epoch: int) -> None:
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = cross_entropy(own(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loss.item()

    took: list[tuple[float, float]] = []

    class Turns:
        """A scheduler, stepped at the end of each epoch in all processes: it has an epoch by hand follow."""

        def __init__(self) -> None:
            self.began = time.perf_counter()

        def step(self) -> None:
            middle = time.perf_counter()
            by_hand(len(took))
            took.append((time.perf_counter() - middle, middle - self.began))
            self.began = time.perf_counter()

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: Any) -> None:
            pass

    colabkeep.resumable_fit(
        ours,
        DataLoader(data, batch_size=BATCH, shuffle=True),
        optimizer=torch.optim.AdamW(ours.parameters(), lr=1e-4),
        loss_fn=cross_entropy,
        scheduler=Turns(),
        max_epochs=epochs,
        run_name="ranks",
        storage=Path(folder),
        on_bad_gpu="ignore",
    )
    return took[1:]  # the first has the start of both


def run(setting: Setting) -> list[Figure]:
    """Both models."""
    figures = []
    for name, make, samples in (("a small CNN", convolutions, 1600), ("17 MB of gradients", wide, 800)):
        folder = str(setting.folder / name.replace(" ", "-"))
        epochs = 3 if setting.quick else EPOCHS
        took = colabkeep.launch(
            in_turn, [make, 128 if setting.quick else samples, epochs, folder], devices=2, progress="off"
        )
        ratios = [ours / hand for hand, ours in took]
        steps = (128 if setting.quick else samples) / BATCH
        figures += [
            figure(f"{name}: epochs of resumable_fit, two processes", "times by hand", ratios, goal=GOAL),
            figure(f"{name}: a step by hand", "ms", [1e3 * hand / steps for hand, _ in took]),
        ]
    return figures
