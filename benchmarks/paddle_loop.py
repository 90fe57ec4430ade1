"""What `resumable_fit` adds to an epoch of a small CNN in Paddle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paddle
from epochs import Span, compared, marking, now, spans, terminal
from measuring import Figure, Setting
from paddle import nn
from paddle.nn.functional import cross_entropy

import colabkeep


def small_cnn(setting: Setting) -> list[Figure]:
    """Epochs by hand and epochs of ours in turn, without saves and with them."""
    data = _data(3 if setting.quick else 40)
    found: list[Figure] = []
    for name, save_every in (("small CNN", None), ("small CNN, saved every epoch", "auto")):
        rounds = range(setting.rounds(8))
        found += compared(name, [pair for _ in rounds for pair in _pairs(data, 2, save_every, setting.folder)])
    return found


def _pairs(data: Any, epochs: int, save_every: str | None, folder: Path) -> Iterator[tuple[Span, Span]]:
    """An epoch by hand and one of ours. The first of each warms up."""
    by_hand = _by_hand(data, epochs + 1)
    ours = _ours(data, epochs + 1, save_every, folder)
    yield from zip(by_hand[1:], ours[1:], strict=True)


def _by_hand(data: Any, epochs: int) -> list[Span]:
    model, optimizer = _built()
    model.train()
    marks = [now()]
    for _ in range(epochs):
        for x, y in data:
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.clear_grad(set_to_zero=False)
        marks.append(now())
    return spans(marks)


def _ours(data: Any, epochs: int, save_every: str | None, folder: Path) -> list[Span]:
    model, optimizer = _built()
    marks: list[Span] = []
    with terminal():
        colabkeep.resumable_fit(
            model,
            data,
            optimizer=optimizer,
            loss_fn=cross_entropy,
            max_epochs=epochs,
            storage=folder,
            resume="never",
            save_every=save_every,
            keep_last=1,
            callbacks=[marking(marks)],
        )
    return spans(marks)


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
