"""`resumable_fit` computes what the loop that a user would write by hand computes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from colabkeep.frameworks.base import Batch


def weights(kit: SimpleNamespace, model: Any) -> list[bytes]:
    return kit.bits(*model.state_dict().values())


def value(loss: Any) -> float:
    return loss if isinstance(loss, float) else loss.item()


def test_the_loss_shown_is_not_scaled_by_the_window(kit: SimpleNamespace) -> None:
    """The loss handed back is the batch's own, whatever its share of an accumulation window, and holds no graph."""
    batch = kit.batches(5)[0].value
    whole, shared = (kit.make_training()[0].backward(batch, share=share) for share in (1.0, 0.25))
    assert value(whole) == value(shared)
    assert isinstance(shared, float) or not kit.has_graph(shared)


def test_step_fn_gets_the_model_and_the_batch_as_it_is(kit: SimpleNamespace) -> None:
    """A step_fn may take any batch, dictionaries too, and gives the same weights as loss_fn."""
    trained = []
    by_step = {"loss_fn": None, "step_fn": lambda m, b: kit.F.cross_entropy(m(b["x"]), b["y"])}
    for options, form in [({}, Batch), (by_step, lambda pair, _: Batch({"x": pair[0], "y": pair[1]}, 5))]:
        training, model = kit.make_training(**options)
        kit.seed(1)
        for batch in kit.batches(5, 5, 5):
            training.backward(form(batch.value, 5).value, share=1.0)
            training.step()
        trained.append(weights(kit, model))
    assert trained[0] == trained[1]


def test_a_batch_of_several_inputs_hands_all_but_the_last_to_the_model(kit: SimpleNamespace) -> None:
    """(a, b, target) trains model(a, b) against target."""

    class Sum(kit.nn.Linear):
        def forward(self, a: Any, b: Any) -> Any:
            return super().forward(a + b)

    model = Sum(2, 1)
    ones, target = kit.tensor(np.ones((4, 2), "float32")), kit.tensor(np.zeros((4, 1), "float32"))
    loss = kit.train_with(model=model, loss_fn=kit.F.mse_loss).backward([ones, ones, target], share=1.0)
    assert value(loss) == kit.F.mse_loss(model(ones, ones), target).item()


def test_each_epoch_starts_in_training_mode_without_old_gradients(kit: SimpleNamespace) -> None:
    """`train` does what the first line of every hand-written epoch does."""
    training, model = kit.make_training()
    model.eval()
    training.backward(kit.batches(5)[0].value, share=1.0)
    training.train()
    assert all(module.training for module in kit.modules(model))
    assert all(p.grad is None for p in model.parameters())
