"""What cannot train is refused at the start, in one sentence, with the way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn
from paddle.metric import Accuracy
from paddle.optimizer import LBFGS, SGD
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


class Closing(SGD):
    """An optimizer of the user's own that must have its closure."""

    def step(self, closure: Any) -> Any:
        return closure()


REFUSED: dict[str, tuple[Callable[[], dict[str, Any]], str, str]] = {
    "a function as model": (
        lambda: {"model": len, "optimizer": over(SGD)["optimizer"]},
        "not a paddle.nn.Layer",
        "model object",
    ),
    "a paddle.Model": (
        lambda: {"model": paddle.Model(nn.Linear(4, 3)), "optimizer": over(SGD)["optimizer"]},
        "not a paddle.nn.Layer",
        "model.network",
    ),
    "a class as optimizer": (lambda: {"optimizer": SGD}, "not a paddle.optimizer.Optimizer", "AdamW"),
    "an optimizer of another model": (
        lambda: {"optimizer": over(SGD)["optimizer"]},
        "none of the model's parameters",
        "this model's parameters",
    ),
    "LBFGS": (lambda: over(LBFGS), "by a closure", "colabkeep.Run"),
    "an own optimizer with a closure": (lambda: over(Closing), "by a closure", "colabkeep.Run"),
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
    "neither loss_fn nor step_fn": (lambda: {"loss_fn": None}, "exactly one", "step_fn=f"),
    "both loss_fn and step_fn": (lambda: {"step_fn": lambda m, b: m(b).sum()}, "exactly one", "step_fn=f"),
    "metrics with step_fn": (
        lambda: {"loss_fn": None, "step_fn": len, "metrics": {"a": len}},
        "nobody knows",
        "loss_fn",
    ),
    "a metric named loss": (lambda: {"metrics": {"loss": Accuracy()}}, 'named "loss"', "another name"),
    "a metric without a name": (lambda: {"metrics": Accuracy()}, "not a mapping", "Give each a name"),
    "a metric's class": (lambda: {"metrics": {"a": Accuracy}}, "is the class Accuracy", "paddle.metric.Accuracy()"),
    "a metric's name as metric": (lambda: {"metrics": {"a": "accuracy"}}, "is a str", "object of paddle.metric"),
    "two metrics of one name": (
        lambda: {"metrics": {"a": Accuracy(topk=(1, 2)), "b": Accuracy(topk=(1, 2))}},
        "called 'acc_top1'",
        "another name",
    ),
    "a clip of zero": (lambda: {"gradient_clip_val": 0}, "to nothing", "None"),
    "another trainer's precision": (lambda: {"precision": "fp16"}, "'fp16' is not known", "16-mixed"),
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


@pytest.mark.parametrize(
    "name", ["SGD", "Momentum", "Adam", "AdamW", "RMSProp", "Adagrad", "Adadelta", "Lamb", "Adamax"]
)
def test_optimizers_that_do_without_a_closure_are_taken(name: str) -> None:
    """Only an optimizer that cannot step without a closure is turned away."""
    made = over(getattr(paddle.optimizer, name), learning_rate=0.1)
    training = train_with(**made, loss_fn=F.cross_entropy)
    before = made["model"].weight.numpy()
    training.backward((paddle.randn([2, 4]), paddle.to_tensor([0, 1])), share=1.0)
    training.step()
    assert (made["model"].weight.numpy() != before).any()


def test_the_clipping_of_the_optimizer_itself_is_respected() -> None:
    """grad_clip alone goes on working, so nobody has to change an optimizer for colabkeep."""
    made = over(SGD, 1.0, grad_clip=nn.ClipGradByGlobalNorm(0.01))
    training = train_with(**made, loss_fn=F.cross_entropy)
    before = [p.numpy() for p in made["model"].parameters()]
    training.backward((paddle.ones([2, 4]), paddle.to_tensor([0, 1])), share=1.0)
    training.step()
    moved = sum(float(((a - p.numpy()) ** 2).sum()) for a, p in zip(before, made["model"].parameters(), strict=True))
    assert moved**0.5 == pytest.approx(0.01, rel=1e-4)


@pytest.mark.parametrize(
    ("batch", "problem", "remedy"),
    [
        ({"input_ids": 1, "labels": 2}, "gives a dict", "model(**batch).loss"),
        (lambda: paddle.zeros([2, 4]), "gives a Tensor", "step_fn"),
        (lambda: [paddle.zeros([2, 4])], "gives a list of 1", "step_fn"),
    ],
)
def test_a_batch_that_is_no_pair_asks_for_step_fn(batch: Any, problem: str, remedy: str) -> None:
    """Batches of dictionaries or of inputs alone are named, with the function to pass."""
    with pytest.raises(UsageError) as caught:
        train_with(loss_fn=F.cross_entropy).backward(batch() if callable(batch) else batch, share=1.0)
    assert problem in caught.value.problem
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    ("step_fn", "problem", "remedy"),
    [
        (lambda m, b: m(b).sum().item(), "returned a float", "not loss.item()"),
        (lambda m, b: {"loss": m(b).sum()}, "returned a dict", 'out["loss"]'),
        (lambda m, b: None, "returned a NoneType", "return loss"),
        (lambda m, b: m(b).sum(1), "shape (2,)", ".mean()"),
        (lambda m, b: m(b).sum().reshape([1]), "shape (1,)", ".mean()"),
        (lambda m, b: m(b).sum().detach(), "no gradient", ".detach()"),
    ],
)
def test_a_loss_that_cannot_train_is_explained(step_fn: Any, problem: str, remedy: str) -> None:
    """The usual slips in a step_fn get their own sentence instead of one from autograd."""
    with pytest.raises(UsageError) as caught:
        train_with(loss_fn=None, step_fn=step_fn).backward(paddle.ones([2, 4]), share=1.0)
    assert problem in caught.value.problem
    assert remedy in caught.value.remedy


def test_static_graph_mode_is_refused_before_anything_else() -> None:
    """Nothing of a model made there can be looked at: the user hears how to leave it."""
    options = over(SGD, 0.1)
    paddle.enable_static()
    try:
        with pytest.raises(UsageError, match=r"paddle\.disable_static"):
            train_with(**options, loss_fn=F.mse_loss)
    finally:
        paddle.disable_static()
