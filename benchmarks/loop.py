"""What the loop of `resumable_fit` adds to each step of an equal loop written by hand, its display on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from epochs import MANY, Turns, compared, fitting, in_turn, saves
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
        found += _added(f"tiny MLP, {name}", steps * few, _rounds(setting, 12, task, few, None))
    steps *= 5
    task = _tiny(steps)
    name, turns = 'tiny MLP, save_every="auto"', _rounds(setting, 3, task, many, "auto")
    found += [*_added(name, steps * many, turns), saves(name, turns)]
    task = _cnn(3 if setting.quick else 40)
    found += compared("small CNN", _rounds(setting, 12, task, few, None))
    for name, number, epochs, save_every, goal in (
        ('small CNN, save_every="auto"', 5, many, "auto", 1.02),
        ("small CNN, saved every 0.5 s", 12, few, "1 epoch", None),
    ):
        turns = _rounds(setting, number, task, epochs, save_every)
        found += [*compared(name, turns, goal), saves(name, turns)]
    return found


def _added(name: str, steps: int, turns: Sequence[Turns]) -> list[Figure]:
    more, cpu = ([(turn.ours[clock] - turn.hand[clock]) / steps * 1e6 for turn in turns] for clock in (0, 1))
    return [
        figure(f"{name}: a step by hand", "µs", [turn.hand[0] / steps * 1e6 for turn in turns]),
        figure(f"{name}: resumable_fit adds", "µs", more, goal=25),
        figure(f"{name}: … in CPU time of the training thread", "µs", cpu, goal=25),
    ]


def _rounds(setting: Setting, number: int, task: Task, epochs: int, save_every: str | None) -> list[Turns]:
    return [
        in_turn(_by_hand(task), _ours(task, epochs + 1, save_every, setting.folder))
        for _ in range(setting.rounds(number))
    ]


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
