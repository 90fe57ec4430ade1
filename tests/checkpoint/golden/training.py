"""The trainings whose runs lie beside this file, in the form that every version of colabkeep takes.

Run by itself (`python training.py KIND STEPS STORAGE...`, with a version of colabkeep on PYTHONPATH), it trains the run
of each storage up to so many steps, and prints the digests of the weights. Whatever it computes is exact in float64, in
any order: the bits depend on the state, the data and the random streams alone, not on processors or versions of
frameworks.
"""

from __future__ import annotations

import hashlib
import random
import sys
from contextlib import suppress
from typing import Any

import numpy as np

import colabkeep

RUN = "golden"
EPOCHS = 3
SAMPLES = 22
BATCH = 4
STEPS = EPOCHS * -(-SAMPLES // BATCH)


def noise() -> float:
    """A sixteenth or several, from two random streams."""
    return random.randrange(16) / 16 + int(np.random.randint(16)) / 16


def train_numpy(storage: str, steps: int, **words: Any) -> str:
    """A loop of one's own over an object with a state."""

    class Model:
        def __init__(self) -> None:
            self.weight = np.zeros(4)
            self.count = 0

        def state_dict(self) -> dict[str, Any]:
            return {"weight": self.weight, "count": self.count, "pair": (1, "x")}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.weight[:] = state["weight"]
            self.count = state["count"]

    random.seed(1)
    np.random.seed(2)
    model = Model()
    with (
        suppress(KeyboardInterrupt),
        colabkeep.Run(RUN, model=model, storage=storage, save_every="3 steps", progress=False, **words) as run,
    ):
        for epoch in run.epochs(EPOCHS):
            while model.count < (epoch + 1) * STEPS // EPOCHS:
                if model.count == steps:
                    raise KeyboardInterrupt  # the last step is saved on the way out
                model.weight += noise()
                model.count += 1
                run.step(loss=float(model.weight[0]))
    return hashlib.sha256(model.weight.tobytes()).hexdigest()


def train_torch(storage: str, steps: int, **words: Any) -> str:
    """A training that colabkeep runs, stopped in the middle of an epoch."""
    import torch

    class Noisy(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> Any:
            drawn = noise() + int(torch.randint(16, ())) / 16
            return torch.full((8,), index + drawn, dtype=torch.float64), torch.tensor(float(index), dtype=torch.float64)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.arange(8, dtype=torch.float64))
            self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

        def forward(self, features: Any) -> Any:
            if self.training:
                self.seen += len(features)
            return (features * self.weight).sum(1)

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=2**-6, momentum=0.5)
    colabkeep.resumable_fit(
        model,
        torch.utils.data.DataLoader(Noisy(), batch_size=BATCH, shuffle=True),
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5),
        loss_fn=_difference,
        max_epochs=EPOCHS,
        max_steps=steps,
        seed=3,
        run_name=RUN,
        storage=storage,
        save_every="3 steps",
        progress=False,
        **words,
    )
    (momentum,) = (state["momentum_buffer"] for state in optimizer.state.values())
    data = [model.weight.detach().numpy(), model.seen.numpy(), momentum.numpy()]
    return hashlib.sha256(b"".join(each.tobytes() for each in data)).hexdigest()


def train_paddle(storage: str, steps: int, **words: Any) -> str:
    """The same with Paddle."""
    import paddle

    class Noisy(paddle.io.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> Any:
            return np.full(8, index + noise()), np.float64(index)

    class Model(paddle.nn.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            begin = paddle.nn.initializer.Assign(np.arange(8, dtype="float64"))
            self.weight = self.create_parameter([8], dtype="float64", default_initializer=begin)

        def forward(self, features: Any) -> Any:
            return (features * self.weight).sum(1)

    model = Model()
    rate = paddle.optimizer.lr.StepDecay(2**-6, step_size=1, gamma=0.5)
    colabkeep.resumable_fit(
        model,
        paddle.io.DataLoader(Noisy(), batch_size=BATCH, shuffle=True),
        optimizer=paddle.optimizer.Momentum(rate, momentum=0.5, parameters=model.parameters()),
        scheduler=rate,
        loss_fn=_difference,
        max_epochs=EPOCHS,
        max_steps=steps,
        seed=3,
        run_name=RUN,
        storage=storage,
        save_every="3 steps",
        progress=False,
        **words,
    )
    return hashlib.sha256(model.weight.numpy().tobytes()).hexdigest()


def _difference(predicted: Any, target: Any) -> Any:
    return (predicted - target).sum()


TRAININGS = {"numpy": train_numpy, "torch": train_torch, "paddle": train_paddle}

if __name__ == "__main__":
    for place in sys.argv[3:]:
        sys.stdout.write(TRAININGS[sys.argv[1]](place, int(sys.argv[2])) + "\n")
