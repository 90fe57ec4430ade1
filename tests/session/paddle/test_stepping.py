"""A scheduler of Paddle's that counts optimizer steps is stepped once per step, one that counts epochs per epoch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from paddle.optimizer import lr

import colabkeep
from colabkeep.core.errors import UsageError
from colabkeep.core.events import Event, Noted
from tests.trainings import final_state

EPOCHS, STEPS = 3, 24  # of 8 batches each
BATCHES = [
    (paddle.to_tensor(np.full((4, 4), i, "float32")), paddle.to_tensor(np.full((4, 1), i % 2, "int64")))
    for i in range(8)
]


def cell(folder: Path, make: Callable[[], Any], **words: Any) -> tuple[Any, list[str], Any]:
    """A training of 3 epochs with 8 batches: result, what was said of the scheduler, the scheduler."""
    paddle.seed(0)
    model, scheduler = paddle.nn.Linear(4, 2), make()
    optimizer = paddle.optimizer.SGD(learning_rate=scheduler, parameters=model.parameters())
    told: list[Event] = []
    given: dict[str, Any] = {"max_epochs": EPOCHS, "run_name": "r", "storage": folder, "keep_last": None, **words}
    result = colabkeep.resumable_fit(
        model,
        BATCHES,
        optimizer=optimizer,
        scheduler=scheduler,
        loss_fn=paddle.nn.functional.cross_entropy,
        callbacks=[told.append],
        progress=False,
        **given,
    )
    return result, [e.text for e in told if isinstance(e, Noted) and type(scheduler).__name__ in e.text], scheduler


COUNTING: dict[str, Callable[[int], Any]] = {
    "OneCycleLR": lambda total: lr.OneCycleLR(0.1, total),
    "CosineAnnealingDecay": lambda total: lr.CosineAnnealingDecay(0.1, total),
    "PolynomialDecay": lambda total: lr.PolynomialDecay(0.1, total),
    "LinearWarmup": lambda total: lr.LinearWarmup(lr.CosineAnnealingDecay(0.1, total - 1), 1, 0.0, 0.1),
}


@pytest.mark.parametrize("kind", COUNTING)
@pytest.mark.parametrize(("total", "interval"), [(STEPS, "step"), (EPOCHS, "epoch")])
def test_it_is_stepped_as_it_counts(tmp_path: Path, kind: str, total: int, interval: str) -> None:
    """As scheduler_interval would say it, bit for bit; what was decided is said."""
    _, said, scheduler = cell(tmp_path / "a", lambda: COUNTING[kind](total))
    assert scheduler.last_epoch == total
    assert any(f"counts to {total}" in text for text in said), said
    cell(tmp_path / "b", lambda: COUNTING[kind](total), scheduler_interval=interval)
    assert final_state(tmp_path / "a", "r") == final_state(tmp_path / "b", "r")


def test_one_over_something_else_is_told_or_refused(tmp_path: Path) -> None:
    """A cosine goes on as before, and says so; a cycle is refused; what is made for steps is stepped so."""
    _, said, scheduler = cell(tmp_path / "a", lambda: COUNTING["CosineAnnealingDecay"](200))
    assert scheduler.last_epoch == EPOCHS
    assert "counts to 200" in said[0]
    with pytest.raises(UsageError, match="OneCycleLR counts to 200") as caught:
        cell(tmp_path / "b", lambda: COUNTING["OneCycleLR"](200))
    assert "total_steps=24" in caught.value.remedy
    assert cell(tmp_path / "c", lambda: lr.CyclicLR(0.01, 0.1, 5))[2].last_epoch == STEPS
    assert cell(tmp_path / "d", lambda: lr.StepDecay(0.1, 1))[2].last_epoch == EPOCHS


def test_slips_are_refused_as_with_any_framework(tmp_path: Path) -> None:
    """Arrays in a pair, a monitor that is never measured, a class, no batch, statistics of several processes, a head
    that was replaced."""
    x, y = BATCHES[0]
    constant: Callable[[], Any] = lambda: lr.StepDecay(0.1, 1)  # noqa: E731
    with pytest.raises(UsageError, match="never measured") as caught:
        cell(tmp_path, constant, val_loader=BATCHES, monitor="acc", metrics={"acc": paddle.metric.Accuracy()})
    assert 'monitor="val_acc"' in caught.value.remedy
    topk = {"acc": paddle.metric.Accuracy(topk=(1, 2))}
    _, _, _ = cell(tmp_path / "a", constant, val_loader=BATCHES, metrics=topk, monitor="val_acc_top2", mode="max")
    model = paddle.nn.Sequential(paddle.nn.Linear(4, 4), paddle.nn.Linear(4, 3))
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    words: dict[str, Any] = {"loss_fn": paddle.nn.functional.cross_entropy, "max_epochs": 1, "run_name": "r"}
    words |= {"optimizer": optimizer, "storage": tmp_path / "b", "progress": False}
    with pytest.raises(UsageError, match="4 samples") as caught:
        colabkeep.resumable_fit(model, (x, y), **words)
    assert "paddle.io.TensorDataset([X, Y])" in caught.value.remedy
    with pytest.raises(UsageError, match="no batch"):
        colabkeep.resumable_fit(model, [], **words)
    with pytest.raises(UsageError, match="the class SGD"):
        colabkeep.resumable_fit(model, BATCHES, **{**words, "optimizer": paddle.optimizer.SGD})
    with pytest.raises(UsageError, match="with Paddle colabkeep trains in one"):
        colabkeep.resumable_fit(model, BATCHES, **words, sync_batchnorm=True)
    model[1] = paddle.nn.Linear(4, 2)
    with pytest.raises(UsageError, match=r"1\.weight, 1\.bias"):
        colabkeep.resumable_fit(model, BATCHES, **words)
    assert not (tmp_path / "b").exists()
