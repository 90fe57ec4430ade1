"""`resumable_fit` computes what the loop that a user would write by hand in Paddle computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

from colabkeep.frameworks.base import TrainingOptions
from colabkeep.frameworks.paddle.training import PaddleTraining, RunningMean

CPU = paddle.ones([1]).place


def make_net(**words: Any) -> tuple[nn.Layer, paddle.optimizer.Optimizer]:
    paddle.seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1D(8), nn.ReLU(), nn.Linear(8, 3))
    return model, paddle.optimizer.Momentum(0.1, parameters=model.parameters(), **words)


def make_training(**options: Any) -> tuple[PaddleTraining, nn.Layer]:
    model, optimizer = make_net()
    options = {"loss_fn": F.cross_entropy, "precision": "32-true", **options}
    training = PaddleTraining(TrainingOptions(model=model, optimizer=optimizer, **options))
    training.train()
    return training, model


def batches(n: int = 6) -> list[tuple[paddle.Tensor, paddle.Tensor]]:
    draw = np.random.default_rng(1)
    pairs = [(draw.standard_normal((5, 6)).astype("float32"), draw.integers(0, 3, 5)) for _ in range(n)]
    return [(paddle.to_tensor(x), paddle.to_tensor(y)) for x, y in pairs]


def bits(model: nn.Layer) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("clip", [None, 0.05])
def test_the_weights_are_those_of_a_hand_written_loop(window: int, clip: float | None) -> None:
    """Whatever the window and the clipping, every bit is that of the loop in Paddle's own manual."""
    model, optimizer = make_net(grad_clip=None if clip is None else nn.ClipGradByGlobalNorm(clip))
    model.train()
    for i, (x, y) in enumerate(batches()):
        loss = F.cross_entropy(model(x), y)
        (loss * (1 / window)).backward()
        if (i + 1) % window == 0:
            optimizer.step()
            optimizer.clear_grad()

    training, ours = make_training(gradient_clip_val=clip)
    for i, batch in enumerate(batches()):
        training.backward(batch, share=1 / window)
        if (i + 1) % window == 0:
            training.step()

    assert bits(model) == bits(ours)
    assert bits(model) != bits(make_net()[0])


def test_clipping_counts_the_gradients_of_all_groups_as_one_vector() -> None:
    """Two parameter groups are clipped together, as gradient_clip_val says, not each by itself."""
    training, model = make_training()
    layers = (model[0], model[3])
    groups = [{"params": layers[0].parameters()}, {"params": layers[1].parameters(), "learning_rate": 0.5}]
    optimizer = paddle.optimizer.SGD(1.0, parameters=groups)
    options = TrainingOptions(model=model, optimizer=optimizer, loss_fn=F.cross_entropy, gradient_clip_val=0.01)
    training = PaddleTraining(options)
    before = [p.numpy() for layer in layers for p in layer.parameters()]
    training.backward(batches()[0], share=1.0)
    training.step()
    moved = [a - p.numpy() for a, p in zip(before, (p for layer in layers for p in layer.parameters()), strict=True)]
    rates = [1.0, 1.0, 0.5, 0.5]
    norm = np.sqrt(sum(float(((m / rate) ** 2).sum()) for m, rate in zip(moved, rates, strict=True)))
    assert norm == pytest.approx(0.01, rel=1e-4)


def test_a_parameter_without_a_gradient_is_left_alone() -> None:
    """One that a step does not use is not moved by its momentum: after a resume it would not be either."""

    class Two(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, x: paddle.Tensor, which: str) -> paddle.Tensor:
            return getattr(self, which)(x)

    model = Two()
    optimizer = paddle.optimizer.Momentum(0.1, parameters=model.parameters())
    training = PaddleTraining(TrainingOptions(model=model, optimizer=optimizer, loss_fn=F.cross_entropy))
    training.train()
    x, y = batches()[0]
    training.backward((x, "a", y), share=1.0)
    training.step()
    still = model.a.weight.numpy()
    training.backward((x, "b", y), share=1.0)
    training.step()
    assert (model.a.weight.numpy() == still).all()


def test_the_loss_shown_is_not_scaled_by_the_window() -> None:
    """The loss handed back is the batch's own, whatever its share of an accumulation window."""
    (batch, *_) = batches()
    whole = make_training()[0].backward(batch, share=1.0)
    shared = make_training()[0].backward(batch, share=0.25)
    assert whole.item() == shared.item()
    assert shared.stop_gradient


def test_step_fn_gets_the_model_and_the_batch_as_it_is() -> None:
    """A step_fn may take any batch, dictionaries too, and gives the same weights as loss_fn."""
    plain, by_loss = make_training()
    own, by_step = make_training(loss_fn=None, step_fn=lambda m, b: F.cross_entropy(m(b["x"]), b["y"]))
    for x, y in batches():
        plain.backward((x, y), share=1.0)
        plain.step()
        own.backward({"x": x, "y": y}, share=1.0)
        own.step()
    assert bits(by_loss) == bits(by_step)


def test_a_batch_of_several_inputs_hands_all_but_the_last_to_the_model() -> None:
    """(a, b, target) trains model(a, b) against target."""

    class Sum(nn.Linear):
        def forward(self, a: paddle.Tensor, b: paddle.Tensor) -> paddle.Tensor:
            return super().forward(a + b)

    model = Sum(2, 1)
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    training = PaddleTraining(TrainingOptions(model=model, optimizer=optimizer, loss_fn=F.mse_loss))
    a, b, target = paddle.ones([4, 2]), paddle.ones([4, 2]), paddle.zeros([4, 1])
    assert training.backward([a, b, target], share=1.0).item() == F.mse_loss(model(a, b), target).item()


def test_each_epoch_starts_in_training_mode_without_old_gradients() -> None:
    """`train` does what the first line of every hand-written epoch does."""
    training, model = make_training()
    model.eval()
    training.backward(batches()[0], share=1.0)
    training.train()
    assert all(layer.training for layer in model.sublayers(include_self=True))
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("cut", [0, 1, 20, 255, 256, 257, 599, 600])
def test_a_running_mean_goes_on_with_the_same_bits(cut: int) -> None:
    """Saved in the middle, wherever that is, and loaded into a new one, the mean ends on the very same number."""
    drawn = np.random.default_rng(2).random(600, dtype="float32")
    losses = [(paddle.to_tensor(loss), float(n)) for n, loss in enumerate(drawn, 1)]
    assert losses[0][0].shape == []
    whole, first, second = RunningMean(CPU), RunningMean(CPU), RunningMean(CPU)
    for loss, weight in losses:
        whole.add(loss, weight)
    for loss, weight in losses[:cut]:
        first.add(loss, weight)
    kept = first.state_dict()
    first.add(paddle.to_tensor(1000.0), 1.0)  # a copy was kept, so this does not reach it
    second.load_state_dict(kept)
    for loss, weight in losses[cut:]:
        second.add(loss, weight)
    assert second.value() == whole.value()
    exact = sum(loss.item() * weight for loss, weight in losses) / sum(weight for _, weight in losses)
    assert whole.value() == pytest.approx(exact, rel=1e-14)


def test_numbers_and_tensors_may_stand_in_one_mean() -> None:
    """A metric that returns a plain number for one batch and a tensor for the next is averaged all the same."""
    mean = RunningMean(CPU)
    mean.add(2.0, 1)
    mean.add(paddle.to_tensor(4.0), 3)
    mean.add(paddle.to_tensor(1), 1)
    assert mean.value() == 3.0


def test_the_mean_of_nothing_is_none() -> None:
    """Before the first batch there is no loss to show."""
    assert RunningMean(CPU).value() is None


def test_a_mean_that_is_reset_knows_nothing_of_the_past() -> None:
    """Each epoch's mean is that epoch's own."""
    mean = RunningMean(CPU)
    for _ in range(300):
        mean.add(paddle.to_tensor(float("nan")), 3)
    mean.reset()
    assert mean.value() is None
    mean.add(2.0, 1)
    assert mean.value() == 2.0


def test_the_learning_rate_shown_is_the_one_in_use() -> None:
    """What the schedule has made of it, as a plain number."""
    model, _ = make_net()
    schedule = paddle.optimizer.lr.StepDecay(0.5, step_size=1, gamma=0.5)
    optimizer = paddle.optimizer.SGD(schedule, parameters=model.parameters())
    options = TrainingOptions(model=model, optimizer=optimizer, loss_fn=F.cross_entropy, scheduler=schedule)
    training = PaddleTraining(options)
    assert training.learning_rate() == 0.5
    training.backward(batches()[0], share=1.0)
    training.step()
    schedule.step()
    assert training.learning_rate() == 0.25
