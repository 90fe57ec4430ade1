"""What cannot train is refused at the start, in one sentence, with the way out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from colabkeep.core.errors import UsageError
from colabkeep.frameworks.base import TrainingOptions
from colabkeep.frameworks.torch.training import TorchTraining, autocast


def train_with(**options: Any) -> TorchTraining:
    model = options.pop("model", nn.Linear(4, 3))
    optimizer = options.pop("optimizer", None) or torch.optim.SGD(model.parameters(), lr=0.1)
    return TorchTraining(TrainingOptions(model=model, optimizer=optimizer, **options))


class Closing(torch.optim.SGD):
    """An optimizer of the user's own that must have its closure."""

    def step(self, closure: Any) -> Any:
        return closure()


REFUSED = {
    "a function as model": (
        {"model": len, "optimizer": torch.optim.SGD(nn.Linear(1, 1).parameters())},
        "not a torch.nn.Module",
        "model object",
    ),
    "a class as optimizer": ({"optimizer": torch.optim.SGD}, "not a torch.optim.Optimizer", "AdamW"),
    "an optimizer of another model": (
        {"optimizer": torch.optim.SGD(nn.Linear(4, 3).parameters())},
        "none of the model's parameters",
        "this model's parameters",
    ),
    "LBFGS": (
        {"model": (net := nn.Linear(4, 3)), "optimizer": torch.optim.LBFGS(net.parameters())},
        "by a closure",
        "colabkeep.Run",
    ),
    "an own optimizer with a closure": (
        {"model": (net := nn.Linear(4, 3)), "optimizer": Closing(net.parameters())},
        "by a closure",
        "colabkeep.Run",
    ),
    "neither loss_fn nor step_fn": ({"loss_fn": None}, "exactly one", "step_fn=f"),
    "both loss_fn and step_fn": ({"step_fn": lambda m, b: m(b).sum()}, "exactly one", "step_fn=f"),
    "metrics with step_fn": ({"loss_fn": None, "step_fn": len, "metrics": {"a": len}}, "nobody knows", "loss_fn"),
    "a metric named loss": ({"metrics": {"loss": len}}, 'named "loss"', "another name"),
    "a clip of zero": ({"gradient_clip_val": 0}, "to nothing", "None"),
    "a clip that is not a number": ({"gradient_clip_val": float("nan")}, "to nothing", "None"),
    "another trainer's precision": ({"precision": "fp16"}, "'fp16' is not known", "16-mixed"),
    "float16 weights in mixed precision": (
        {"model": nn.Linear(4, 3).half(), "precision": "16-mixed"},
        "weights are float16",
        "model.float()",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_meant_so_is_refused_before_the_first_batch(case: str) -> None:
    """The error says what is wrong and what to pass instead."""
    options, problem, remedy = REFUSED[case]
    with pytest.raises(UsageError) as caught:
        train_with(**{"loss_fn": F.cross_entropy, **options})
    assert problem in caught.value.problem
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "NAdam", "Rprop", "ASGD"])
def test_optimizers_that_may_do_without_a_closure_are_taken(name: str) -> None:
    """Only an optimizer that cannot step without a closure is turned away."""
    model = nn.Linear(4, 3)
    optimizer = getattr(torch.optim, name)(model.parameters())
    torch.optim.lr_scheduler.StepLR(optimizer, 1)  # wraps optimizer.step
    training = train_with(model=model, optimizer=optimizer, loss_fn=F.cross_entropy)
    before = model.weight.detach().clone()
    training.backward((torch.randn(2, 4), torch.tensor([0, 1])), share=1.0)
    training.step()
    assert not torch.equal(before, model.weight)


@pytest.mark.parametrize(
    ("batch", "problem", "remedy"),
    [
        ({"input_ids": 1, "labels": 2}, "gives a dict", "model(**batch).loss"),
        (torch.zeros(2, 4), "gives a Tensor", "step_fn"),
        ([torch.zeros(2, 4)], "gives a list of 1", "step_fn"),
    ],
)
def test_a_batch_that_is_no_pair_asks_for_step_fn(batch: Any, problem: str, remedy: str) -> None:
    """Batches of dictionaries or of inputs alone are named, with the function to pass."""
    with pytest.raises(UsageError) as caught:
        train_with(loss_fn=F.cross_entropy).backward(batch, share=1.0)
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
        (lambda m, b: m(b).sum().reshape(1), "shape (1,)", ".mean()"),
        (lambda m, b: m(b).sum().detach(), "no gradient", ".detach()"),
    ],
)
def test_a_loss_that_cannot_train_is_explained(step_fn: Any, problem: str, remedy: str) -> None:
    """The usual slips in a step_fn get their own sentence instead of one from autograd."""
    with pytest.raises(UsageError) as caught:
        train_with(loss_fn=None, step_fn=step_fn).backward(torch.ones(2, 4), share=1.0)
    assert problem in caught.value.problem
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("device", ["meta", *([] if torch.cuda.is_available() else ["cuda"])])
def test_a_precision_the_device_lacks_is_refused_instead_of_ignored(device: str) -> None:
    """Where torch would only warn and compute in float32, training does not start."""
    with pytest.raises(UsageError, match=f"not possible on {device}"):
        autocast("16-mixed", torch.device(device))
