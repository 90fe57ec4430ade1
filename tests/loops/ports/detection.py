"""Detection. The shape of torchvision's references/detection: a collate function that leaves images of any size as they
are, targets as lists of dicts, several losses summed up, and in the first epoch a warm-up by iterations beside the
schedule by epochs. The warm-up is built before the loop and handed in, as what moves the learning rate must be."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LinearLR, MultiStepLR
from torch.utils.data import Dataset

from tests.loops.ports._parts import by_epoch, seed

RESUMES = "mid-epoch"
EPOCHS = 3


class Boxes(Dataset[Any]):
    def __init__(self) -> None:
        self.sizes = [(6 + i % 3, 6 + i % 4) for i in range(20)]
        self.images = [torch.rand(1, *size) for size in self.sizes]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        high, wide = self.sizes[index]
        boxes = torch.tensor([[0.0, 0.0, wide / 2, high / 2]] * (1 + index % 2))
        return self.images[index], {"boxes": boxes, "labels": torch.full((len(boxes),), index % 3)}


def collate(batch: list[Any]) -> tuple[Any, ...]:
    return tuple(zip(*batch, strict=True))


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.classes, self.boxes = nn.Conv2d(1, 8, 3), nn.Linear(8, 3), nn.Linear(8, 4)

    def forward(self, images: list[torch.Tensor], targets: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        features = torch.stack([torch.relu(self.body(image)).mean((1, 2)) for image in images])
        labels = torch.stack([target["labels"][0] for target in targets])
        boxes = torch.stack([target["boxes"].mean(0) for target in targets])
        return {
            "loss_classifier": F.cross_entropy(self.classes(features), labels),
            "loss_box_reg": F.smooth_l1_loss(self.boxes(features), boxes),
        }


def build() -> tuple[Any, ...]:
    seed()
    loader, model = by_epoch(Boxes(), 4, collate_fn=collate), Detector()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.02, momentum=0.9)
    return loader, model, optimizer, MultiStepLR(optimizer, [1, 2], gamma=0.1)


def warm_up(optimizer: Any, loader: Any) -> Any:
    return LinearLR(optimizer, start_factor=1.0 / 1000, total_iters=len(loader) - 1)


def update(model: Any, optimizer: Any, images: Any, targets: Any) -> torch.Tensor:
    losses = sum(model(list(images), [dict(target) for target in targets]).values())
    optimizer.zero_grad()
    losses.backward()
    optimizer.step()
    return losses


def original() -> dict[str, Any]:
    loader, model, optimizer, lr_scheduler = build()
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        model.train()
        warm = warm_up(optimizer, loader) if epoch == 0 else None
        for images, targets in loader:
            update(model, optimizer, images, targets)
            if warm is not None:
                warm.step()
        lr_scheduler.step()
    return {"model": model.state_dict(), "lr": optimizer.param_groups[0]["lr"]}


def train(colabkeep: Any) -> dict[str, Any]:
    loader, model, optimizer, lr_scheduler = build()
    warm = warm_up(optimizer, loader)
    parts = {"model": model, "optimizer": optimizer, "scheduler": lr_scheduler}
    with colabkeep.Run("boxes", **parts, state={"warm_up": warm}) as run:
        for epoch in run.epochs(EPOCHS):
            model.train()
            for images, targets in run.batches(loader):
                run.step(loss=update(model, optimizer, images, targets))
                if epoch == 0:
                    warm.step()
            lr_scheduler.step()
    return {"model": model.state_dict(), "lr": optimizer.param_groups[0]["lr"]}
