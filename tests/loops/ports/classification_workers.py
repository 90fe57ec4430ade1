"""Image classification with augmentation in loader workers. The shape of PyTorch's CIFAR-10 tutorial
(cifar10_tutorial.py): shuffled, a running loss that is reported and begun anew every few batches."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from tests.loops.ports._parts import digits, seed, small_net

RESUMES = "mid-epoch"
NO_ORIGINAL = "colabkeep draws the order and the augmentation from seeds of its own, the script from the global streams"


class Augmented(Dataset[Any]):
    """Rolled, flipped and noisy, by three libraries' random numbers."""

    def __init__(self, data: Dataset[Any]) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image, label = self.data[index]
        image = image.roll(random.randrange(-1, 2), dims=2)
        if np.random.rand() < 0.5:
            image = image.flip(2)
        return image + 0.05 * torch.randn_like(image), label


def train(colabkeep: Any) -> dict[str, Any]:
    seed()
    loader = DataLoader(Augmented(digits()), batch_size=4, shuffle=True, num_workers=2)
    net = small_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    with colabkeep.Run("cifar", model=net, optimizer=optimizer) as run:
        run.state.running_loss = 0.0
        for _ in run.epochs(2):
            run.state.running_loss = 0.0
            for i, (inputs, labels) in run.enumerate(loader):
                optimizer.zero_grad()
                loss = F.cross_entropy(net(inputs), labels)
                loss.backward()
                optimizer.step()
                run.step(loss=loss)
                run.state.running_loss += loss.item()
                if i % 3 == 2:
                    run.log(loss=run.state.running_loss / 3)
                    run.state.running_loss = 0.0
    return {"net": net.state_dict()}
