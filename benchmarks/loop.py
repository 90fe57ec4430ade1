"""What the loop of `resumable_fit` adds to each step of an equal loop written by hand, its display on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from epochs import compared, marking, now, spans, terminal
from measuring import Figure, Setting, figure
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import colabkeep

Task = tuple[Callable[[], nn.Module], Any]


def run(setting: Setting) -> list[Figure]:
    """Epochs by hand and epochs of ours in turn."""
    torch.set_num_threads(1)
    found = []
    steps = 20 if setting.quick else 1000
    for name, task in (("list of batches", _tiny(steps)), ("DataLoader over TensorDataset", _tiny_loader(steps))):
        found += _added(f"tiny MLP, {name}", task, steps, setting, None)
    found += _added("tiny MLP, list of batches, saved every epoch", _tiny(steps * 5), steps * 5, setting, "auto")
    steps = 3 if setting.quick else 40
    found += _times("small CNN", _cnn(steps), setting, None)
    found += _times("small CNN, saved every epoch (0.5 s)", _cnn(steps), setting, "auto")
    return found


def _added(name: str, task: Task, steps: int, setting: Setting, save_every: str | None) -> list[Figure]:
    hand, wall, cpu = [], [], []
    for _ in range(setting.rounds(8)):
        for (a, a_cpu), (b, b_cpu) in _pairs(task, 3, save_every, setting.folder):
            hand.append(a / steps * 1e6)
            wall.append((b - a) / steps * 1e6)
            cpu.append((b_cpu - a_cpu) / steps * 1e6)
    return [
        figure(f"{name}: a step by hand", "µs", hand),
        figure(f"{name}: resumable_fit adds", "µs", wall, goal=25),
        figure(f"{name}: … in CPU time of the training thread", "µs", cpu, goal=25),
    ]


def _times(name: str, task: Task, setting: Setting, save_every: str | None) -> list[Figure]:
    return compared(
        name, [pair for _ in range(setting.rounds(8)) for pair in _pairs(task, 2, save_every, setting.folder)]
    )


def _pairs(task: Task, epochs: int, save_every: str | None, folder: Path) -> Iterator[tuple[Any, Any]]:
    """(wall, CPU) seconds of an epoch by hand and of one of ours. The first of each warms up."""
    by_hand = _by_hand(task, epochs + 1)
    ours = _ours(task, epochs + 1, save_every, folder)
    yield from zip(by_hand[1:], ours[1:], strict=True)


def _by_hand(task: Task, epochs: int) -> list[tuple[float, float]]:
    torch.manual_seed(0)
    model, data = task[0](), task[1]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model.train()
    marks = [now()]
    for _ in range(epochs):
        for x, y in data:
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        marks.append(now())
    return spans(marks)


def _ours(task: Task, epochs: int, save_every: str | None, folder: Path) -> list[tuple[float, float]]:
    torch.manual_seed(0)
    model, data = task[0](), task[1]
    marks: list[tuple[float, float]] = []

    with terminal():
        colabkeep.resumable_fit(
            model,
            data,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
            loss_fn=cross_entropy,
            max_epochs=epochs,
            storage=folder,
            resume="never",
            save_every=save_every,
            keep_last=1,
            callbacks=[marking(marks)],
        )
    return spans(marks)


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))


def _tiny(steps: int) -> Task:
    return _mlp, list(zip(torch.randn(steps, 8, 16), torch.randint(0, 4, (steps, 8)), strict=True))


def _tiny_loader(steps: int) -> Task:
    data = TensorDataset(torch.randn(steps * 8, 16), torch.randint(0, 4, (steps * 8,)))
    return _mlp, DataLoader(data, batch_size=8, shuffle=True)


def _cnn(steps: int) -> Task:
    def build() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 16, 3),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 5 * 5, 10),
        )

    data = TensorDataset(torch.randn(steps * 64, 1, 28, 28), torch.randint(0, 10, (steps * 64,)))
    return build, DataLoader(data, batch_size=64, shuffle=True)
