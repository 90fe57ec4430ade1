"""What cannot train is refused at the start, in one sentence, with the way out."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from colabkeep.core.errors import UsageError


def over(kit: SimpleNamespace, kind: str) -> dict[str, Any]:
    """A model and an optimizer of that kind over it."""
    model = kit.nn.Linear(4, 3)
    return {"model": model, "optimizer": getattr(kit, kind)(model)}


REFUSED: dict[str, tuple[Callable[[SimpleNamespace], dict[str, Any]], str, str]] = {
    "a function as model": (
        lambda kit: {"model": len, "optimizer": over(kit, "sgd")["optimizer"]},
        "not a {MODEL}",
        "model object",
    ),
    "a class as optimizer": (lambda kit: {"optimizer": kit.Closing}, "not a {OPTIMIZER}", "AdamW"),
    "an optimizer of another model": (
        lambda kit: {"optimizer": over(kit, "sgd")["optimizer"]},
        "none of the model's parameters",
        "this model's parameters",
    ),
    "LBFGS": (lambda kit: over(kit, "lbfgs"), "by a closure", "colabkeep.Run"),
    "an own optimizer with a closure": (lambda kit: over(kit, "closing"), "by a closure", "colabkeep.Run"),
    "neither loss_fn nor step_fn": (lambda _: {"loss_fn": None}, "exactly one", "step_fn=f"),
    "both loss_fn and step_fn": (lambda _: {"step_fn": lambda m, b: m(b).sum()}, "exactly one", "step_fn=f"),
    "metrics with step_fn": (
        lambda _: {"loss_fn": None, "step_fn": len, "metrics": {"a": len}},
        "these are not known",
        "loss_fn",
    ),
    "a metric named loss": (lambda _: {"metrics": {"loss": len}}, 'named "loss"', "another name"),
    "a metric without a name": (lambda _: {"metrics": len}, "not a mapping", "Give each a name"),
    "a metric's name as metric": (lambda _: {"metrics": {"a": "accuracy"}}, "is a str", "Pass a function"),
    "a clip of zero": (lambda _: {"gradient_clip_val": 0}, "to nothing", "None"),
    "a clip that is not a number": (lambda _: {"gradient_clip_val": float("nan")}, "to nothing", "None"),
    "another trainer's precision": (lambda _: {"precision": "fp16"}, "'fp16' is not known", "16-mixed"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_meant_so_is_refused_before_the_first_batch(kit: SimpleNamespace, case: str) -> None:
    """The error says what is wrong and what to pass instead."""
    options, problem, remedy = REFUSED[case]
    with pytest.raises(UsageError) as caught:
        kit.train_with(**{"loss_fn": kit.F.cross_entropy, **options(kit)})
    assert problem.format(**vars(kit)) in caught.value.problem
    assert remedy in caught.value.remedy


def test_optimizers_that_may_do_without_a_closure_are_taken(kit: SimpleNamespace) -> None:
    """Only an optimizer that cannot step without a closure is turned away."""
    for name in kit.OPTIMIZERS:
        model = kit.nn.Linear(4, 3)
        training = kit.train_with(model=model, optimizer=kit.optimizer(name, model), loss_fn=kit.F.cross_entropy)
        before = kit.bits(model.weight)
        training.backward((kit.tensor(np.ones((2, 4), "float32")), kit.tensor([0, 1])), share=1.0)
        training.step()
        assert kit.bits(model.weight) != before, name


@pytest.mark.parametrize(
    ("batch", "problem", "remedy"),
    [
        (lambda _: {"input_ids": 1, "labels": 2}, "gives a dict", "model(**batch).loss"),
        (lambda x: x, "gives a Tensor", "step_fn"),
        (lambda x: [x], "gives a list of 1", "step_fn"),
    ],
)
def test_a_batch_that_is_no_pair_asks_for_step_fn(kit: SimpleNamespace, batch: Any, problem: str, remedy: str) -> None:
    """Batches of dictionaries or of inputs alone are named, with the function to pass."""
    with pytest.raises(UsageError) as caught:
        kit.train_with(loss_fn=kit.F.cross_entropy).backward(batch(kit.tensor(np.ones((2, 4), "float32"))), share=1.0)
    assert problem in caught.value.problem
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    ("step_fn", "problem", "remedy"),
    [
        (lambda m, b: m(b).sum().item(), "returned a float", "not loss.item()"),
        (lambda m, b: {"loss": m(b).sum()}, "returned a dict", 'out["loss"]'),
        (lambda m, b: (m(b).sum(), m(b)), "returned a tuple", "return loss"),
        (lambda m, b: None, "returned a NoneType", "return loss"),
        (lambda m, b: m(b).sum(1), "shape (2,)", ".mean()"),
        (lambda m, b: m(b).sum().reshape([1]), "shape (1,)", ".mean()"),
        (lambda m, b: m(b).sum().detach(), "no gradient", ".detach()"),
    ],
)
def test_a_loss_that_cannot_train_is_explained(kit: SimpleNamespace, step_fn: Any, problem: str, remedy: str) -> None:
    """The usual slips in a step_fn get their own sentence instead of one from autograd."""
    with pytest.raises(UsageError) as caught:
        kit.train_with(loss_fn=None, step_fn=step_fn).backward(kit.tensor(np.ones((2, 4), "float32")), share=1.0)
    assert problem in caught.value.problem
    assert remedy in caught.value.remedy
