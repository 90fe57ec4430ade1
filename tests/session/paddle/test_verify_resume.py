"""`verify_resume` proves a Paddle training exact, and finds what no checkpoint sees."""

from __future__ import annotations

from typing import Any

import paddle
import pytest
from paddle import nn

import colabkeep
from colabkeep.core.errors import UsageError
from tests.trainings.paddle import hard_training


def test_the_hard_training_is_exact() -> None:
    """Shared weights, BatchNorm, dropout, augmentation, schedule and average: every bit comes back."""

    def make() -> dict[str, Any]:
        def loss(output: Any, target: Any) -> Any:
            return nn.functional.mse_loss(output, target[0])

        return {**hard_training(epochs=2, accumulate=2), "loss_fn": loss}

    report = colabkeep.verify_resume(make, steps=4)
    assert report, str(report)
    assert "exact: 8 steps, killed after 4" in str(report)


class Forgetful(nn.Layer):
    """Counts its forwards in an attribute of a layer inside, and uses the count."""

    def __init__(self, count: Any) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.inner.seen = count

    def forward(self, features: Any) -> Any:
        if isinstance(self.inner.seen, dict):
            self.inner.seen["n"] += 1
            return self.inner(features) * (1 + 0.01 * self.inner.seen["n"])
        self.inner.seen += 1
        return self.inner(features) * (1 + 0.01 * self.inner.seen)


def counting(count: Any) -> dict[str, Any]:
    paddle.seed(1)
    model = Forgetful(count)
    return {
        "model": model,
        "train_loader": [(paddle.ones([4, 8]), paddle.zeros([4, 8]))] * 8,
        "optimizer": paddle.optimizer.SGD(0.1, parameters=model.parameters()),
        "loss_fn": nn.functional.mse_loss,
    }


def test_a_count_in_a_plain_attribute_of_a_layer_is_kept() -> None:
    """It is no buffer, and in the checkpoint all the same."""
    report = colabkeep.verify_resume(lambda: counting(0), steps=3)
    assert report, str(report)


def test_a_count_in_a_dict_is_found() -> None:
    """No checkpoint holds it: the report says where it is, and that the bits differ."""
    report = colabkeep.verify_resume(lambda: counting({"n": 0}), steps=3)
    assert not report
    assert any(line.startswith("model.inner.seen.n: 3 in the run, 0 after") for line in report.outside)
    assert report.differing
    assert report.deterministic is True


def test_a_make_that_lacks_something_is_told() -> None:
    """The error names what resumable_fit needs."""
    with pytest.raises(UsageError, match="did not return train_loader, optimizer"):
        colabkeep.verify_resume(lambda: {"model": nn.Linear(1, 1)})
