"""A curriculum by growing data: at the top of each epoch a new loader over more of the samples, the easy ones first, in
an order that the script draws itself from NumPy's stream. The shape of self-paced learning scripts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.data import Subset

from tests.loops.ports._parts import digits, in_order, seed, small_net

RESUMES = "mid-epoch"
EPOCHS = 4


def build() -> tuple[Any, ...]:
    seed()
    data, model = digits(32), small_net()
    return data, model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def loader_of(data: Any, model: Any, epoch: int) -> Any:
    model.eval()
    with torch.no_grad():
        hardness = F.cross_entropy(model(data.tensors[0]), data.tensors[1], reduction="none")
    model.train()
    easy = hardness.argsort()[: 14 + 6 * epoch].numpy()
    return in_order(Subset(data, np.random.permutation(easy).tolist()))


def update(model: Any, optimizer: Any, x: Any, y: Any) -> torch.Tensor:
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def original() -> dict[str, Any]:
    data, model, optimizer = build()
    for epoch in range(EPOCHS):
        for x, y in loader_of(data, model, epoch):
            update(model, optimizer, x, y)
    return {"model": model.state_dict()}


def train(colabkeep: Any) -> dict[str, Any]:
    data, model, optimizer = build()
    with colabkeep.Run("growing", model=model, optimizer=optimizer) as run:
        for epoch in run.epochs(EPOCHS):
            for x, y in run.batches(loader_of(data, model, epoch)):
                run.step(loss=update(model, optimizer, x, y))
    return {"model": model.state_dict()}
