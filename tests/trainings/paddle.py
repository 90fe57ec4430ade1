"""The hard training of Paddle."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import paddle
from paddle import nn

from tests.trainings.base import BATCH, FEATURES, SAMPLES, Consumed, Witness

__all__ = ["Average", "Noisy", "Tied", "hard_training", "one_thread", "step_by_hand"]


class Noisy(paddle.io.Dataset):  # type: ignore[misc]  # Paddle is not there where types are checked
    """Pairs (features, (target, index)), augmented by Paddle, NumPy, `random` and a generator of its own."""

    def __init__(self, samples: int = SAMPLES) -> None:
        super().__init__()
        self._features = np.linspace(-1, 1, samples * FEATURES, dtype="float32").reshape(samples, FEATURES)
        self._own = np.random.default_rng()

    def __len__(self) -> int:
        return len(self._features)

    def __getitem__(self, index: int) -> tuple[Any, tuple[Any, int]]:
        noise = random.gauss(0, 0.1) + float(np.random.normal(0, 0.1)) + float(self._own.normal(0, 0.1))
        features = self._features[index] + np.float32(noise) + np.float32(0.1) * paddle.randn([FEATURES]).numpy()
        return features, (features[::-1].copy(), index)


class Tied(nn.Layer):  # type: ignore[misc]
    """Two layers that share one weight, with BatchNorm and dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, FEATURES)
        self.norm = nn.BatchNorm1D(FEATURES)
        self.drop = nn.Dropout(0.2)
        self.second = nn.Linear(FEATURES, FEATURES)
        self.second.weight = self.first.weight

    def forward(self, features: Any) -> Any:
        """Shape (n, 8) → (n, 8)."""
        return self.second(self.drop(nn.functional.relu(self.norm(self.first(features)))))


class Average(nn.Layer):  # type: ignore[misc]
    """An exponential average of a model's weights and buffers, as a user would write it: Paddle has none of its own."""

    def __init__(self, model: Tied) -> None:
        super().__init__()
        self.model = Tied()
        self.model.set_state_dict(model.state_dict())
        self.model.eval()

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def update_parameters(self, model: Tied) -> None:
        """Follow the model by a tenth of the way."""
        for average, now in zip(self._tensors(self.model), self._tensors(model), strict=True):
            average.set_value(average + 0.1 * (now - average))

    @staticmethod
    def _tensors(model: Tied) -> list[Any]:
        return [*model.parameters(), *model.buffers()]


def hard_training(
    *,
    workers: int = 0,
    accumulate: int = 1,
    epochs: int = 6,
    heard: Consumed = lambda *_: None,
    measured: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """The arguments of `colabkeep.resumable_fit`, all objects built anew from the same seed.

    `heard` is told of each step, `measured` is called for each batch of a validation.
    """
    paddle.seed(1)
    np.random.seed(1)
    random.seed(1)
    model = Tied()
    loader = paddle.io.DataLoader(Noisy(), batch_size=BATCH, shuffle=True, num_workers=workers)
    steps = epochs * -(-len(loader) // accumulate)
    schedule = paddle.optimizer.lr.OneCycleLR(0.05, total_steps=steps)
    witness = Witness(heard, measured)

    def loss(output: Any, target: tuple[Any, Any]) -> Any:
        wanted, index = target
        if output.stop_gradient:
            witness.measured()
        else:
            witness.saw(index.tolist())
        return nn.functional.mse_loss(output, wanted)

    return {
        "model": model,
        "train_loader": loader,
        "optimizer": paddle.optimizer.AdamW(schedule, parameters=model.parameters()),
        "loss_fn": loss,
        "val_loader": paddle.io.DataLoader(Noisy(7), batch_size=BATCH),
        "scheduler": schedule,
        "scheduler_interval": "step",
        "ema": Average(model),
        "accumulate_grad_batches": accumulate,
        "gradient_clip_val": 1.0,
        "max_epochs": epochs,
        "callbacks": (witness,),
        "progress": False,
    }


def step_by_hand(words: Mapping[str, Any], features: Any, target: Any) -> Any:
    """One step of a user's own loop over the objects of `hard_training`; its loss."""
    model, optimizer = words["model"], words["optimizer"]
    loss = words["loss_fn"](model(features), target)
    loss.backward()
    optimizer.step()
    words["scheduler"].step()
    words["ema"].update_parameters(model)
    optimizer.clear_grad()
    return loss


def one_thread() -> None:
    """Compute with one thread from here on."""
    paddle.framework.core.set_num_threads(1)
