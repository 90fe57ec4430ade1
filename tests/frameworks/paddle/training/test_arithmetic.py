"""`resumable_fit` computes what the loop that a user would write by hand in Paddle computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

from colabkeep.frameworks.base import TrainingOptions
from colabkeep.frameworks.paddle.training import DeviceMean, PaddleTraining, mean_on

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


@pytest.mark.parametrize("mean", [mean_on, DeviceMean])
@pytest.mark.parametrize("cut", [0, 1, 20, 40])
def test_a_running_mean_goes_on_with_the_same_bits(mean: Any, cut: int) -> None:
    """Saved in the middle, wherever that is, and loaded into a new one, the mean ends on the very same number."""
    drawn = np.random.default_rng(2).integers(1, 9, 40).astype("float32")
    losses = [(paddle.to_tensor(loss), float(n)) for n, loss in enumerate(drawn, 1)]
    whole, first, second = mean(CPU), mean(CPU), mean(CPU)
    for loss, weight in losses:
        whole.add(loss, weight)
    for loss, weight in losses[:cut]:
        first.add(loss, weight)
    kept = first.state_dict()
    first.add(paddle.to_tensor(1000.0), 1.0)  # does not reach what was kept
    second.load_state_dict(kept)
    for loss, weight in losses[cut:]:
        second.add(loss, weight)
    exact = sum(loss.item() * weight for loss, weight in losses) / sum(weight for _, weight in losses)
    assert second.value() == whole.value() == exact


@pytest.mark.parametrize("mean", [mean_on, DeviceMean])
def test_numbers_and_tensors_may_stand_in_one_mean(mean: Any) -> None:
    """A metric that returns a plain number for one batch and a tensor for the next is averaged all the same."""
    mixed = mean(CPU)
    mixed.add(paddle.to_tensor(float("nan")), 3)
    mixed.reset()
    assert mixed.value() is None
    mixed.add(2.0, 1)
    mixed.add(paddle.to_tensor(4.0), 3)
    mixed.add(paddle.to_tensor(1), 1)
    assert mixed.value() == 3.0


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
