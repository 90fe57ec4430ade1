"""What the loop of `resumable_fit` adds to each step of an equal loop written by hand, its display on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from epochs import MANY, Span, compared, fitting, in_turn
from measuring import Figure, Setting, figure
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

Task = tuple[Callable[[], nn.Module], Any]


def run(setting: Setting) -> list[Figure]:
    """Epochs by hand and epochs of ours in turn: without saves, with saves when colabkeep chooses (its default), and
    with one every half second."""
    torch.set_num_threads(1)
    found = []
    few, many = (2, 3) if setting.quick else (6, MANY)
    steps = 20 if setting.quick else 1000
    for name, task in (("list of batches", _tiny(steps)), ("DataLoader over TensorDataset", _tiny_loader(steps))):
        found += _added(f"tiny MLP, {name}", steps, _rounds(setting, 12, task, few, None))
    steps *= 5
    task = _tiny(steps)
    found += _added('tiny MLP, save_every="auto"', steps, _rounds(setting, 3, task, many, "auto"))
    task = _cnn(3 if setting.quick else 40)
    found += compared("small CNN", _rounds(setting, 12, task, few, None))
    found += compared('small CNN, save_every="auto"', _rounds(setting, 5, task, many, "auto"))
    found += compared("small CNN, saved every 0.5 s", _rounds(setting, 12, task, few, "1 epoch"), goal=None)
    return found


def _added(name: str, steps: int, pairs: Sequence[tuple[Span, Span]]) -> list[Figure]:
    return [
        figure(f"{name}: a step by hand", "µs", [a[0] / steps * 1e6 for a, _ in pairs]),
        figure(f"{name}: resumable_fit adds", "µs", [(b[0] - a[0]) / steps * 1e6 for a, b in pairs], goal=25),
        figure(
            f"{name}: … in CPU time of the training thread",
            "µs",
            [(b[1] - a[1]) / steps * 1e6 for a, b in pairs],
            goal=25,
        ),
    ]


def _rounds(setting: Setting, number: int, task: Task, epochs: int, save_every: str | None) -> list[tuple[Span, Span]]:
    """In each round, the seconds of one epoch, by hand and of ours."""
    found = []
    for _ in range(setting.rounds(number)):
        by_hand, fit = _by_hand(task), _ours(task, epochs + 1, save_every, setting.folder)
        hand, ours = in_turn(by_hand, fit)
        found.append(((hand[0] / epochs, hand[1] / epochs), (ours[0] / epochs, ours[1] / epochs)))
    return found


def _by_hand(task: Task) -> Callable[[], None]:
    torch.manual_seed(0)
    model, data = task[0](), task[1]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model.train()

    def epoch() -> None:
        for x, y in data:
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return epoch


def _ours(task: Task, epochs: int, save_every: str | None, folder: Path) -> Callable[[Any], None]:
    torch.manual_seed(0)
    model, data = task[0](), task[1]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return fitting(model, data, optimizer, cross_entropy, max_epochs=epochs, storage=folder, save_every=save_every)


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
