"""Validation measures the model and leaves no trace in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from colabkeep.core.errors import UsageError
from colabkeep.frameworks.base import Batch, TrainingOptions
from colabkeep.frameworks.torch.training import TorchTraining


def accuracy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output.argmax(1) == target).float().mean()


def make_training(**options: Any) -> tuple[TorchTraining, nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"loss_fn": F.cross_entropy, **options}
    return TorchTraining(TrainingOptions(model=model, optimizer=optimizer, **options)), model


def batches(*sizes: int) -> list[Batch]:
    torch.manual_seed(1)
    return [Batch((torch.randn(n, 6), torch.randint(3, (n,))), n) for n in sizes]


def test_loss_and_metrics_are_those_of_all_samples_at_once() -> None:
    """A smaller last batch counts for its samples only."""
    metrics = {"accuracy": accuracy, "wrong": lambda output, target: 1.0 - accuracy(output, target).item()}
    training, model = make_training(metrics=metrics)
    data = batches(8, 8, 3)
    found = training.evaluate(iter(data))
    model.eval()
    with torch.no_grad():
        x, y = (torch.cat(parts) for parts in zip(*(batch.value for batch in data), strict=True))
        output = model(x)
    assert found == pytest.approx(
        {
            "loss": F.cross_entropy(output, y).item(),
            "accuracy": accuracy(output, y).item(),
            "wrong": 1 - accuracy(output, y).item(),
        },
        abs=1e-6,
    )
    assert all(type(value) is float for value in found.values())


def test_step_fn_is_the_validation_loss_too() -> None:
    """With step_fn the loss of validation is what step_fn returns, in evaluation mode."""
    training, model = make_training(loss_fn=None, step_fn=lambda m, b: F.cross_entropy(m(b[0]), b[1]))
    data = batches(8)
    found = training.evaluate(iter(data))
    model.eval()
    assert found == {"loss": pytest.approx(F.cross_entropy(model(data[0].value[0]), data[0].value[1]).item())}


def test_every_module_gets_the_mode_back_that_it_had() -> None:
    """A normalisation layer that the user froze by hand is still frozen after validation."""
    training, model = make_training()
    model.train()
    model[1].eval()
    training.evaluate(iter(batches(4)))
    assert [module.training for module in model.modules()] == [True, True, False, True, True]


def test_the_modes_come_back_when_validation_fails_or_is_interrupted() -> None:
    """Ctrl-C during validation does not leave the model in evaluation mode."""

    def interrupted() -> Iterator[Batch]:
        yield from batches(4)
        raise KeyboardInterrupt

    training, model = make_training()
    model.train()
    with pytest.raises(KeyboardInterrupt):
        training.evaluate(interrupted())
    assert all(module.training for module in model.modules())


def test_validation_changes_no_weight_no_statistic_no_gradient_and_draws_nothing() -> None:
    """Weights, running statistics, gradients and random streams are as they were before."""
    training, model = make_training()
    training.train()
    training.backward(batches(8)[0].value, share=1.0)
    data = batches(8, 8)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    stream = torch.get_rng_state()
    training.evaluate(iter(data))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert gradients
    assert all(
        torch.equal(kept, p.grad) for kept, p in zip(gradients, model.parameters(), strict=True) if p.grad is not None
    )
    assert torch.equal(stream, torch.get_rng_state())


def test_no_graph_is_built() -> None:
    """Validation needs no memory for gradients."""
    seen = []
    training, _ = make_training(metrics={"graph": lambda output, target: seen.append(output.requires_grad) or 0.0})
    training.evaluate(iter(batches(4)))
    assert seen == [False]


def test_validation_uses_the_precision_of_training() -> None:
    """The numbers of validation come from the model as it is trained."""
    seen = []
    metrics = {"m": lambda output, target: seen.append(output.dtype) or 0.0}
    training, _ = make_training(metrics=metrics, precision="bf16-mixed")
    training.evaluate(iter(batches(4)))
    assert seen == [torch.bfloat16]


def test_no_batches_give_no_numbers() -> None:
    """An empty validation set measures nothing, so it claims nothing."""
    assert make_training()[0].evaluate(iter([])) == {}


@pytest.mark.parametrize("bad", [torch.zeros(4), None, {"a": 1}], ids=["a tensor of four", "None", "a dict"])
def test_a_metric_that_is_not_one_number_is_named(bad: Any) -> None:
    """The error says which metric, what it returned and what to return."""
    training, _ = make_training(metrics={"f1": lambda output, target: bad})
    with pytest.raises(UsageError, match=r"'f1' is a .*, not one number") as caught:
        training.evaluate(iter(batches(4)))
    assert ".mean()" in caught.value.remedy
