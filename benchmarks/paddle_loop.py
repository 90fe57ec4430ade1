"""What `resumable_fit` adds to an epoch of a small CNN in Paddle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import paddle
from epochs import MANY, compared, fitting, in_turn, saves
from measuring import Figure, Setting
from paddle import nn
from paddle.nn.functional import cross_entropy


def small_cnn(setting: Setting) -> list[Figure]:
    """Epochs by hand and epochs of ours in turn: without saves, and with saves when colabkeep chooses (its default)."""
    data = _data(3 if setting.quick else 40)
    few, many = (2, 3) if setting.quick else (6, MANY)
    found: list[Figure] = []
    for name, epochs, number, save_every in (
        ("small CNN", few, 12, None),
        ('small CNN, save_every="auto"', many, 4, "auto"),
    ):
        rounds = range(setting.rounds(number))
        turns = [in_turn(_by_hand(data), _ours(data, epochs + 1, save_every, setting.folder)) for _ in rounds]
        found += compared(name, turns)
        if save_every is not None:
            found.append(saves(name, turns))
    return found


def _by_hand(data: Any) -> Callable[[], None]:
    model, optimizer = _built()
    model.train()

    def epoch() -> None:
        for x, y in data:
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.clear_grad(set_to_zero=False)

    return epoch


def _ours(data: Any, epochs: int, save_every: str | None, folder: Path) -> Callable[[Any], None]:
    model, optimizer = _built()
    return fitting(model, data, optimizer, cross_entropy, max_epochs=epochs, storage=folder, save_every=save_every)


def _built() -> tuple[nn.Layer, paddle.optimizer.Optimizer]:
    paddle.seed(0)
    model = nn.Sequential(
        nn.Conv2D(1, 16, 3),
        nn.BatchNorm2D(16),
        nn.ReLU(),
        nn.MaxPool2D(2),
        nn.Conv2D(16, 32, 3),
        nn.ReLU(),
        nn.MaxPool2D(2),
        nn.Flatten(),
        nn.Linear(32 * 5 * 5, 10),
    )
    return model, paddle.optimizer.SGD(0.01, parameters=model.parameters())


def _data(steps: int) -> paddle.io.DataLoader:
    data = paddle.io.TensorDataset([paddle.randn([steps * 64, 1, 28, 28]), paddle.randint(0, 10, [steps * 64])])
    return paddle.io.DataLoader(data, batch_size=64, shuffle=True)
