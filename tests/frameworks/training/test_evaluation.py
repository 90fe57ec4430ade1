"""Validation measures the model and leaves no trace in it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from colabkeep.core.errors import UsageError
from colabkeep.frameworks.base import Batch


def by_hand(kit: SimpleNamespace, model: Any, data: list[Batch]) -> tuple[Any, Any]:
    """Outputs in evaluation mode, and targets, of all samples at once."""
    model.eval()
    x, y = (np.concatenate([part.numpy() for part in parts]) for parts in zip(*(b.value for b in data), strict=True))
    return model(kit.tensor(x)), kit.tensor(y)


def test_loss_and_metrics_are_those_of_all_samples_at_once(kit: SimpleNamespace) -> None:
    """A smaller last batch counts for its samples only."""
    metrics = {"right": kit.accuracy, "wrong": lambda output, target: 1.0 - kit.accuracy(output, target).item()}
    training, model = kit.make_training(metrics=metrics)
    data = kit.batches(8, 8, 3)
    found = training.evaluate(iter(data))
    output, y = by_hand(kit, model, data)
    right = kit.accuracy(output, y).item()
    wanted = {"loss": kit.F.cross_entropy(output, y).item(), "right": right, "wrong": 1 - right}
    assert found == pytest.approx(wanted, abs=1e-6)
    assert all(type(value) is float for value in found.values())


def test_step_fn_is_the_validation_loss_too(kit: SimpleNamespace) -> None:
    """With step_fn the loss of validation is what step_fn returns, in evaluation mode."""
    training, model = kit.make_training(loss_fn=None, step_fn=lambda m, b: kit.F.cross_entropy(m(b[0]), b[1]))
    data = kit.batches(8)
    found = training.evaluate(iter(data))
    assert found == {"loss": pytest.approx(kit.F.cross_entropy(*by_hand(kit, model, data)).item())}


def test_every_module_gets_the_mode_back_that_it_had(kit: SimpleNamespace) -> None:
    """A normalisation layer that the user froze by hand is still frozen after validation."""
    training, model = kit.make_training()
    model.train()
    model[1].eval()
    training.evaluate(iter(kit.batches(4)))
    assert [module.training for module in kit.modules(model)] == [True, True, False, True, True]


def test_the_modes_come_back_when_validation_fails_or_is_interrupted(kit: SimpleNamespace) -> None:
    """Ctrl-C during validation does not leave the model in evaluation mode."""

    def interrupted() -> Iterator[Batch]:
        yield from kit.batches(4)
        raise KeyboardInterrupt

    training, model = kit.make_training()
    model.train()
    with pytest.raises(KeyboardInterrupt):
        training.evaluate(interrupted())
    assert all(module.training for module in kit.modules(model))


def test_validation_changes_no_weight_no_statistic_no_gradient_and_draws_nothing(kit: SimpleNamespace) -> None:
    """Weights, running statistics, gradients and random streams are as they were before."""
    training, model = kit.make_training()
    training.train()
    training.backward(kit.batches(8)[0].value, share=1.0)

    def all_of_it() -> list[bytes]:
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        assert len(gradients) == 6
        return kit.bits(*model.state_dict().values(), *gradients)

    before, stream = all_of_it(), kit.stream()
    training.evaluate(iter(kit.batches(8, 8)))
    assert all_of_it() == before
    assert kit.stream() == stream


def test_no_graph_is_built(kit: SimpleNamespace) -> None:
    """Validation needs no memory for gradients."""
    seen = []
    training, _ = kit.make_training(metrics={"graph": lambda output, _: seen.append(kit.has_graph(output)) or 0.0})
    training.evaluate(iter(kit.batches(4)))
    assert seen == [False]


def test_no_batches_give_no_numbers(kit: SimpleNamespace) -> None:
    """An empty validation set measures nothing, so it claims nothing."""
    assert kit.make_training()[0].evaluate(iter([])) == {}


@pytest.mark.parametrize("bad", [[0.0] * 4, None, {"a": 1}], ids=["a tensor of four", "None", "a dict"])
def test_a_metric_that_is_not_one_number_is_named(kit: SimpleNamespace, bad: Any) -> None:
    """The error says which metric, what it returned and what to return."""
    value = kit.tensor(bad) if isinstance(bad, list) else bad
    training, _ = kit.make_training(metrics={"f1": lambda output, target: value})
    with pytest.raises(UsageError, match=r"'f1' is a .*, not one number") as caught:
        training.evaluate(iter(kit.batches(4)))
    assert ".mean()" in caught.value.remedy
