"""Cross-validation. The shape of the usual k-fold script around scikit-learn's KFold: for each fold a new model, its
own loaders, its own score; the random streams go on from fold to fold. Each fold is a run of its own, and one that is
complete is passed through in a moment."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.data import Subset

from tests.loops.ports._parts import digits, in_order, seed, small_net

RESUMES = "mid-epoch"
FOLDS, EPOCHS = 3, 2


def folds(count: int) -> list[tuple[list[int], list[int]]]:
    size = count // FOLDS
    held = [list(range(i * size, (i + 1) * size)) for i in range(FOLDS)]
    return [([i for i in range(count) if i not in test], test) for test in held]


def build(data: Any, train_ids: list[int], test_ids: list[int]) -> tuple[Any, ...]:
    network = small_net()
    loaders = in_order(Subset(data, train_ids)), in_order(Subset(data, test_ids))
    return *loaders, network, torch.optim.Adam(network.parameters(), lr=1e-3)


def update(network: Any, optimizer: Any, inputs: Any, targets: Any) -> torch.Tensor:
    optimizer.zero_grad()
    loss = F.cross_entropy(network(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss


def test(network: Any, loader: Any) -> float:
    network.eval()
    with torch.no_grad():
        return sum(F.cross_entropy(network(inputs), targets).item() for inputs, targets in loader)


def original() -> dict[str, Any]:
    seed(42)
    data, results, networks = digits(24), {}, {}
    for fold, (train_ids, test_ids) in enumerate(folds(len(data))):
        trainloader, testloader, network, optimizer = build(data, train_ids, test_ids)
        for _ in range(EPOCHS):
            network.train()
            for inputs, targets in trainloader:
                update(network, optimizer, inputs, targets)
        results[fold], networks[fold] = test(network, testloader), network.state_dict()
    return {"results": results, "networks": networks}


def train(colabkeep: Any) -> dict[str, Any]:
    seed(42)
    data, results, networks = digits(24), {}, {}
    for fold, (train_ids, test_ids) in enumerate(folds(len(data))):
        trainloader, testloader, network, optimizer = build(data, train_ids, test_ids)
        with colabkeep.Run(f"fold-{fold}", model=network, optimizer=optimizer, save_every="2 steps") as run:
            for _ in run.epochs(EPOCHS):
                network.train()
                for inputs, targets in run.batches(trainloader):
                    run.step(loss=update(network, optimizer, inputs, targets))
        results[fold], networks[fold] = test(network, testloader), network.state_dict()
    return {"results": results, "networks": networks}
