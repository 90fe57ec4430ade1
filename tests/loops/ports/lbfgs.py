"""LBFGS with a closure, in double precision. The shape of pytorch/examples, time_sequence_prediction/train.py: all data
in one batch, a count of steps, a prediction after each."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from tests.loops.ports._parts import seed

RESUMES = "step"
STEPS = 12


class Sequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm1, self.linear = nn.LSTMCell(1, 8), nn.Linear(8, 1)

    def forward(self, series: torch.Tensor, future: int = 0) -> torch.Tensor:
        outputs = []
        h, c = torch.zeros(len(series), 8, dtype=torch.double), torch.zeros(len(series), 8, dtype=torch.double)
        for piece in series.split(1, dim=1):
            h, c = self.lstm1(piece, (h, c))
            outputs.append(self.linear(h))
        for _ in range(future):
            h, c = self.lstm1(outputs[-1], (h, c))
            outputs.append(self.linear(h))
        return torch.cat(outputs, dim=1)


def build() -> tuple[Any, ...]:
    seed(0)
    waves = torch.from_numpy(np.sin(np.arange(16) / 3 + np.random.randint(-5, 5, (4, 1))))
    seq = Sequence().double()
    return waves, seq, torch.optim.LBFGS(seq.parameters(), lr=0.8, max_iter=4, history_size=5)


def update(waves: torch.Tensor, seq: nn.Module, optimizer: Any) -> tuple[torch.Tensor, float]:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(seq(waves[1:, :-1]), waves[1:, 1:])
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    with torch.no_grad():
        predicted = seq(waves[:1, :-1], future=4)
        return loss, nn.functional.mse_loss(predicted[:, :-4], waves[:1, 1:]).item()


def original() -> dict[str, Any]:
    waves, seq, optimizer = build()
    tests = [update(waves, seq, optimizer)[1] for _ in range(STEPS)]
    return {"seq": seq.state_dict(), "tests": tests}


def train(colabkeep: Any) -> dict[str, Any]:
    waves, seq, optimizer = build()
    with colabkeep.Run("sine", model=seq, optimizer=optimizer) as run:
        run.state.tests = []
        for _ in run.steps(STEPS):
            loss, test = update(waves, seq, optimizer)
            run.step(loss=loss)
            run.state.tests.append(test)
    return {"seq": seq.state_dict(), "tests": run.state.tests}
