"""What the loop of `resumable_fit` adds to each step of an equal loop written by hand, in a notebook as most are.

NumPy's generators are loaded, as pandas, scikit-learn and Matplotlib do; an own data set is read by a DataLoader
that shuffles, in the main process; the display is on, and saves are as by default."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy.random  # noqa: F401 - see above
import torch
from epochs import MANY, Turns, compared, fitting, in_turn, saves, terminal
from measuring import Figure, Setting, figure
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

import colabkeep

Task = tuple[Callable[[], nn.Module], Any]

ADDED = 0.21
"""What may be added to the smallest step: 25 of 120 µs, where that step takes so long."""

_DEFAULT = "auto"  # of `resumable_fit`


class Rows(Dataset[Any]):
    """A data set as people write them. It draws nothing."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self._x, self._y = x, y

    @property
    def whole(self) -> tuple[torch.Tensor, torch.Tensor]:
        """All of it."""
        return self._x, self._y

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._x[index], self._y[index]


class Curriculum(Rows):
    """One that asks how far the run is, so that the loader leads to the run."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        super().__init__(x, y)
        self.run: Any = None
        self.late = False

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.late = self.run.progress.epoch > 3
        return super().__getitem__(index)


class Trainer:
    """Whose method collates, so that the loader leads to the optimizer, and to all that hears of its steps."""

    optimizer: Any = None

    def collate(self, items: Any) -> Any:
        return default_collate(items)


def run(setting: Setting) -> list[Figure]:
    """Epochs by hand and epochs of ours in turn: as in a notebook, with simpler data, without saves, and with one every
    half second."""
    torch.set_num_threads(1)
    few, many = (2, 3) if setting.quick else (6, MANY)
    steps = 20 if setting.quick else 1000
    rows, trainer = _tiny_rows(steps), Trainer()
    led = DataLoader(rows, batch_size=8, shuffle=True, collate_fn=trainer.collate)
    found = []
    for name, data, number, save_every in (
        ("a data set of one's own", DataLoader(rows, batch_size=8, shuffle=True), 6, _DEFAULT),
        ("a collate_fn that leads to the optimizer", led, 6, _DEFAULT),
        ("list of batches", _tiny_list(steps), 12, None),
        ("DataLoader over TensorDataset", _tiny_tensors(steps), 12, None),
    ):
        epochs = many if save_every else few
        turns = _rounds(setting, number, (_mlp, data), epochs, save_every, trainer)
        found += _added(f"tiny MLP, {name}", steps * epochs, turns)
        found += [saves(f"tiny MLP, {name}", turns)] if save_every else []
    name, asking = "a curriculum that asks run.progress", Curriculum(*rows.whole)
    loop = _mlp, DataLoader(asking, batch_size=8, shuffle=True)
    runs = [in_turn(_by_hand(loop), _own_loop(loop, many + 1, setting.folder)) for _ in range(setting.rounds(6))]
    found += [*_added(f"tiny MLP, {name}", steps * many, runs), saves(f"tiny MLP, {name}", runs)]
    task = _cnn(3 if setting.quick else 40)
    for name, number, epochs, save_every, goal in (
        ("small CNN", 6, many, _DEFAULT, 1.02),
        ("small CNN, never saved", 12, few, None, 1.02),
        ("small CNN, saved every 0.5 s", 12, few, "1 epoch", None),
    ):
        turns = _rounds(setting, number, task, epochs, save_every)
        found += [*compared(name, turns, goal), *([saves(name, turns)] if save_every else [])]
    return found


def _added(name: str, steps: int, turns: Sequence[Turns]) -> list[Figure]:
    more, cpu = ([(turn.ours[clock] - turn.hand[clock]) / steps * 1e6 for turn in turns] for clock in (0, 1))
    return [
        figure(f"{name}: a step by hand", "µs", [turn.hand[0] / steps * 1e6 for turn in turns]),
        figure(f"{name}: colabkeep adds", "µs", more),
        figure(f"{name}: … in CPU time of the training thread", "µs", cpu),
        figure(f"{name}: … of a step by hand", "times", [turn.ours[0] / turn.hand[0] - 1 for turn in turns], ADDED),
    ]


def _rounds(
    setting: Setting, number: int, task: Task, epochs: int, save_every: str | None, trainer: Trainer | None = None
) -> list[Turns]:
    return [
        in_turn(_by_hand(task), _ours(task, epochs + 1, save_every, setting.folder, trainer or Trainer()))
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


def _ours(task: Task, epochs: int, save_every: str | None, folder: Path, trainer: Trainer) -> Callable[[Any], None]:
    torch.manual_seed(0)
    model, data = task[0](), task[1]
    optimizer = trainer.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return fitting(model, data, optimizer, cross_entropy, max_epochs=epochs, storage=folder, save_every=save_every)


def _own_loop(task: Task, epochs: int, folder: Path) -> Callable[[Any], None]:
    def fit(observer: Any) -> None:
        torch.manual_seed(0)
        model, data = task[0](), task[1]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        words: dict[str, Any] = {"storage": folder, "resume": "never", "keep_last": 1, "callbacks": [observer]}
        with terminal(), colabkeep.Run("epochs", model=model, optimizer=optimizer, **words) as run:
            data.dataset.run = run
            for _ in run.epochs(epochs):
                for x, y in run.batches(data):
                    loss = cross_entropy(model(x), y)
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)
                    run.step(loss)

    return fit


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))


def _tiny_list(steps: int) -> Any:
    return list(zip(torch.randn(steps, 8, 16), torch.randint(0, 4, (steps, 8)), strict=True))


def _tiny_rows(steps: int) -> Rows:
    return Rows(torch.randn(steps * 8, 16), torch.randint(0, 4, (steps * 8,)))


def _tiny_tensors(steps: int) -> Any:
    data = TensorDataset(torch.randn(steps * 8, 16), torch.randint(0, 4, (steps * 8,)))
    return DataLoader(data, batch_size=8, shuffle=True)


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

    data = Rows(torch.randn(steps * 64, 1, 28, 28), torch.randint(0, 10, (steps * 64,)))
    return build, DataLoader(data, batch_size=64, shuffle=True)
