"""A curriculum by growing data: in each epoch a new loader over more of the samples, those first that the model finds
easy, in an order that the script draws itself from NumPy's stream. The shape of self-paced learning scripts.

They choose at the top of an epoch, from the weights there. In an epoch that is resumed in its middle the weights are
later ones, so the choice is made where the epoch before ends, and kept in `run.state`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.data import Subset

from tests.loops.ports._parts import digits, in_order, seed, small_net

RESUMES = "mid-epoch"
TOLD = ("That was between two epochs of this session",)
EPOCHS = 4


def build() -> tuple[Any, ...]:
    seed()
    data, model = digits(32), small_net()
    return data, model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def easiest(data: Any, model: Any, epoch: int) -> list[int]:
    model.eval()
    with torch.no_grad():
        hardness = F.cross_entropy(model(data.tensors[0]), data.tensors[1], reduction="none")
    model.train()
    return np.random.permutation(hardness.argsort()[: 14 + 6 * epoch].numpy()).tolist()


def update(model: Any, optimizer: Any, x: Any, y: Any) -> torch.Tensor:
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def original() -> dict[str, Any]:
    data, model, optimizer = build()
    for epoch in range(EPOCHS):
        for x, y in in_order(Subset(data, easiest(data, model, epoch))):
            update(model, optimizer, x, y)
    return {"model": model.state_dict()}


def train(colabkeep: Any) -> dict[str, Any]:
    data, model, optimizer = build()
    chosen = easiest(data, model, 0)
    with colabkeep.Run("growing", model=model, optimizer=optimizer) as run:
        run.state.chosen = chosen
        for epoch in run.epochs(EPOCHS):
            for x, y in run.batches(in_order(Subset(data, run.state.chosen))):
                run.step(loss=update(model, optimizer, x, y))
            if epoch + 1 < EPOCHS:
                run.state.chosen = easiest(data, model, epoch + 1)
    return {"model": model.state_dict()}
