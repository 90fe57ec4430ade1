"""Rare classes drawn more often. The shape of imbalanced-data scripts with torch's WeightedRandomSampler, and a loss
with weights; the draws, with replacement, come from a generator of the script's own."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, WeightedRandomSampler

from tests.loops.ports._parts import digits, seed, small_net

RESUMES = "mid-epoch"
NO_ORIGINAL = "colabkeep draws the order from a seed of its own, the sampler from the script's generator"


def train(colabkeep: Any) -> dict[str, Any]:
    seed()
    data = digits(26)
    counts = torch.bincount(data.tensors[1], minlength=4).float()
    weights = (1.0 / counts)[data.tensors[1]]
    generator = torch.Generator().manual_seed(11)
    sampler = WeightedRandomSampler(weights, num_samples=22, replacement=True, generator=generator)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with colabkeep.Run("rare", model=model, optimizer=optimizer) as run:
        run.state.seen = []
        for _ in run.epochs(3):
            for x, y in run.batches(loader):
                loss = F.cross_entropy(model(x), y, weight=1.0 / counts)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.step(loss=loss)
                run.state.seen.append(y)
    return {"model": model.state_dict(), "seen": run.state.seen}
