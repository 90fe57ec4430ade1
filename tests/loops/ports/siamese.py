"""A siamese net. The shape of pytorch/examples, siamese_network/main.py: a data set that draws the partner of each
image at random when it is asked for it, Adadelta, a schedule by epochs."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset

from tests.loops.ports._parts import digits, mlp, seed

RESUMES = "mid-epoch"
NO_ORIGINAL = "colabkeep draws the order and the pairs from seeds of its own, the script from the global streams"


class Matcher(Dataset[Any]):
    def __init__(self, data: Any) -> None:
        self.images, self.labels = data.tensors
        self.grouped = {label: np.where(self.labels.numpy() == label)[0] for label in range(4)}

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        label = int(self.labels[index])
        same = random.random() < 0.5
        other = label if same else random.choice([each for each in range(4) if each != label])
        partner = int(np.random.choice(self.grouped[other]))
        return self.images[index], self.images[partner], torch.tensor(float(same))


class SiameseNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branch, self.fc = mlp(64, 16, 8), nn.Linear(16, 1)

    def forward(self, one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
        both = [self.branch(each.flatten(1)) for each in (one, two)]
        return torch.sigmoid(self.fc(torch.cat(both, 1))).squeeze(1)


def train(colabkeep: Any) -> dict[str, Any]:
    seed()
    train_loader = DataLoader(Matcher(digits()), batch_size=4, shuffle=True)
    model, criterion = SiameseNetwork(), nn.BCELoss()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    with colabkeep.Run("siamese", model=model, optimizer=optimizer, scheduler=scheduler) as run:
        for _ in run.epochs(3):
            model.train()
            for batch_idx, (images_1, images_2, targets) in run.enumerate(train_loader):
                optimizer.zero_grad()
                loss = criterion(model(images_1, images_2), targets)
                loss.backward()
                optimizer.step()
                run.step(loss=loss)
                if batch_idx % 2 == 0:
                    run.log(loss=loss)
            scheduler.step()
    return {"model": model.state_dict()}
