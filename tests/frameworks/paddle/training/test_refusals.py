"""What cannot train is refused at the start, in one sentence, with the way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn
from paddle.metric import Accuracy
from paddle.optimizer import SGD
from paddle.optimizer.lr import CosineAnnealingDecay, StepDecay

from colabkeep.core.errors import UsageError
from colabkeep.frameworks.base import TrainingOptions
from colabkeep.frameworks.paddle.training import PaddleTraining


def train_with(**options: Any) -> PaddleTraining:
    model = options.pop("model", None) or nn.Linear(4, 3)
    optimizer = options.pop("optimizer", None) or SGD(0.1, parameters=model.parameters())
    return PaddleTraining(TrainingOptions(model=model, optimizer=optimizer, **options))


def over(kind: Any, *words: Any, **more: Any) -> dict[str, Any]:
    """A model and an optimizer of that kind over it."""
    model = nn.Linear(4, 3)
    return {"model": model, "optimizer": kind(*words, parameters=model.parameters(), **more)}


REFUSED: dict[str, tuple[Callable[[], dict[str, Any]], str, str]] = {
    "a paddle.Model": (
        lambda: {"model": paddle.Model(nn.Linear(4, 3)), "optimizer": over(SGD)["optimizer"]},
        "not a paddle.nn.Layer",
        "model.network",
    ),
    "two clippings": (
        lambda: {**over(SGD, grad_clip=nn.ClipGradByNorm(1.0)), "gradient_clip_val": 1.0},
        "clipped twice",
        "one of the two",
    ),
    "a schedule that nobody steps": (
        lambda: over(SGD, CosineAnnealingDecay(0.1, 10)),
        "nobody would step",
        "scheduler=…",
    ),
    "a schedule of another optimizer": (
        lambda: {**over(SGD, 0.1), "scheduler": StepDecay(0.1, 1)},
        "not the learning rate of this optimizer",
        "learning_rate=scheduler",
    ),
    "a metric's class": (lambda: {"metrics": {"a": Accuracy}}, "is the class Accuracy", "paddle.metric.Accuracy()"),
    "two metrics of one name": (
        lambda: {"metrics": {"a": Accuracy(topk=(1, 2)), "b": Accuracy(topk=(1, 2))}},
        "called 'acc_top1'",
        "another name",
    ),
    "mixed precision on a CPU": (lambda: {"precision": "bf16-mixed"}, "not possible on a CPU", '"32-true"'),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_meant_so_is_refused_before_the_first_batch(case: str) -> None:
    """The error says what is wrong and what to pass instead."""
    options, problem, remedy = REFUSED[case]
    with pytest.raises(UsageError) as caught:
        train_with(**{"loss_fn": F.cross_entropy, **options()})
    assert problem in caught.value.problem
    assert remedy in caught.value.remedy


def test_the_clipping_of_the_optimizer_itself_is_respected() -> None:
    """grad_clip alone goes on working, so nobody has to change an optimizer for colabkeep."""
    made = over(SGD, 1.0, grad_clip=nn.ClipGradByGlobalNorm(0.01))
    training = train_with(**made, loss_fn=F.cross_entropy)
    before = [p.numpy() for p in made["model"].parameters()]
    training.backward((paddle.ones([2, 4]), paddle.to_tensor([0, 1])), share=1.0)
    training.step()
    moved = sum(float(((a - p.numpy()) ** 2).sum()) for a, p in zip(before, made["model"].parameters(), strict=True))
    assert moved**0.5 == pytest.approx(0.01, rel=1e-4)


def test_static_graph_mode_is_refused_before_anything_else() -> None:
    """Nothing of a model made there can be looked at: the user hears how to leave it."""
    options = over(SGD, 0.1)
    paddle.enable_static()
    try:
        with pytest.raises(UsageError, match=r"paddle\.disable_static"):
            train_with(**options, loss_fn=F.mse_loss)
    finally:
        paddle.disable_static()
