"""Validation measures the model and leaves no trace in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn
from paddle.metric import Accuracy, Metric, Precision

from colabkeep.core.errors import UsageError
from colabkeep.frameworks.base import Batch, TrainingOptions
from colabkeep.frameworks.paddle.training import PaddleTraining


def accuracy(output: paddle.Tensor, target: paddle.Tensor) -> paddle.Tensor:
    return (output.argmax(1) == target).astype("float32").mean()


def make_training(**options: Any) -> tuple[PaddleTraining, nn.Layer]:
    paddle.seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1D(8), nn.Dropout(0.5), nn.Linear(8, 3))
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    options = {"loss_fn": F.cross_entropy, **options}
    return PaddleTraining(TrainingOptions(model=model, optimizer=optimizer, **options)), model


def batches(*sizes: int) -> list[Batch]:
    draw = np.random.default_rng(1)
    pairs = [(draw.standard_normal((n, 6)).astype("float32"), draw.integers(0, 3, n)) for n in sizes]
    return [Batch((paddle.to_tensor(x), paddle.to_tensor(y)), len(y)) for x, y in pairs]


def by_hand(model: nn.Layer, data: list[Batch]) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Outputs in evaluation mode, and targets, of all samples at once."""
    model.eval()
    x, y = (paddle.concat(list(parts)) for parts in zip(*(batch.value for batch in data), strict=True))
    with paddle.no_grad():
        return model(x), y


def test_a_metric_object_forgets_between_validations_and_before_the_first() -> None:
    """What it counted elsewhere, or in the validation before, is in no later number; nothing is left in it."""
    metric = Accuracy()
    training, _ = make_training(metrics={"accuracy": metric})
    metric.update(np.zeros((1000, 1)))  # a thousand wrong answers, of a user's own trial
    data = batches(8, 5)
    first = training.evaluate(iter(data))
    assert training.evaluate(iter(data)) == first
    assert first["accuracy"] > 0
    assert (metric.total, metric.count) == ([0.0], [0])


def test_a_metric_object_with_several_numbers_uses_its_own_names() -> None:
    """Accuracy of the first and the first two answers: both are told, by the names that Paddle has for them."""
    training, model = make_training(metrics={"accuracy": Accuracy(topk=(1, 2))})
    data = batches(8)
    found = training.evaluate(iter(data))
    assert set(found) == {"loss", "acc_top1", "acc_top2"}
    assert found["acc_top1"] == pytest.approx(accuracy(*by_hand(model, data)).item())
    assert found["acc_top2"] > found["acc_top1"]


def test_a_metric_object_that_takes_outputs_as_they_are_gets_numpy() -> None:
    """Precision computes nothing on the device: it gets outputs and targets."""
    model = nn.Linear(6, 1)
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    options = TrainingOptions(
        model=model, optimizer=optimizer, loss_fn=lambda o, t: o.mean(), metrics={"precision": Precision()}
    )
    x, y = batches(40)[0].value
    target = (y > 0).astype("int64").reshape([40, 1])
    found = PaddleTraining(options).evaluate(iter([Batch((x, target), 40)]))
    said = np.floor(model(x).numpy() + 0.5) == 1  # as Precision rounds
    assert said.any()
    assert found["precision"] == pytest.approx((said & (target.numpy() == 1)).sum() / said.sum())


class Broken(Metric):
    """Says two names and gives one number."""

    def name(self) -> list[str]:
        return ["a", "b"]

    def reset(self) -> None:
        pass

    def update(self, *_: Any) -> None:
        pass

    def accumulate(self) -> float:
        return 1.0


def test_a_metric_object_whose_numbers_do_not_fit_its_names_is_named() -> None:
    """The error says which metric, and what to change in it."""
    training, _ = make_training(metrics={"mine": Broken()})
    with pytest.raises(UsageError, match="metric a, b gave 1 number") as caught:
        training.evaluate(iter(batches(4)))
    assert "accumulate()" in caught.value.remedy


def test_the_modes_come_back_when_validation_fails_or_is_interrupted() -> None:
    """Ctrl-C during validation does not leave the model in evaluation mode, nor a count in a metric."""

    def interrupted() -> Iterator[Batch]:
        yield from batches(4)
        raise KeyboardInterrupt

    metric = Accuracy()
    training, model = make_training(metrics={"accuracy": metric})
    model.train()
    with pytest.raises(KeyboardInterrupt):
        training.evaluate(interrupted())
    assert all(layer.training for layer in model.sublayers(include_self=True))
    assert metric.count == [0]
