"""Segmentation. The shape of milesial/Pytorch-UNet, train.py: batches are dicts, a progress bar is kept by hand, and in
the middle of an epoch a validation moves a plateau schedule, behind the step."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, random_split
from tqdm import tqdm

from tests.loops.ports._parts import by_epoch, in_order, seed

RESUMES = "mid-epoch"
EPOCHS = 3


class Masked(Dataset[Any]):
    def __init__(self) -> None:
        self.images = torch.randn(24, 1, 8, 8)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        image = self.images[index]
        return {"image": image, "mask": (image > 0.5).float()}


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up, self.out = nn.Conv2d(1, 4, 3, 2, 1), nn.ConvTranspose2d(4, 4, 2, 2), nn.Conv2d(5, 1, 1)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.cat([x, self.up(torch.relu(self.norm(self.down(x))))], 1))


def build() -> tuple[Any, ...]:
    seed()
    train_set, val_set = random_split(Masked(), [18, 6], generator=torch.Generator().manual_seed(0))
    model = UNet()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, weight_decay=1e-8, momentum=0.9, foreach=True)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", patience=1)
    loaders = by_epoch(train_set, 3), in_order(val_set, 3, drop_last=True)
    return *loaders, model, optimizer, scheduler, torch.amp.GradScaler("cpu", enabled=False)


def dice(predicted: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (2 * (predicted * mask).sum() + 1e-6) / (predicted.sum() + mask.sum() + 1e-6)


def update(model: Any, optimizer: Any, scaler: Any, batch: Any) -> torch.Tensor:
    masks_pred = model(batch["image"])
    loss = nn.functional.binary_cross_entropy_with_logits(masks_pred, batch["mask"])
    loss = loss + 1 - dice(masks_pred.sigmoid(), batch["mask"])
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    return loss


@torch.inference_mode()
def evaluate(model: Any, loader: Any) -> float:
    model.eval()
    score = sum(dice((model(batch["image"]).sigmoid() > 0.5).float(), batch["mask"]).item() for batch in loader)
    model.train()
    return score / len(loader)


def original() -> dict[str, Any]:
    loader, val_loader, model, optimizer, scheduler, scaler = build()
    global_step, rates = 0, []
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        model.train()
        with tqdm(total=18, file=io.StringIO()) as pbar:
            for batch in loader:
                loss = update(model, optimizer, scaler, batch)
                pbar.update(3)
                global_step += 1
                pbar.set_postfix(loss=loss.item())
                if global_step % 2 == 0:
                    scheduler.step(evaluate(model, val_loader))
                    rates.append(optimizer.param_groups[0]["lr"])
    return {"model": model.state_dict(), "rates": rates}


def train(colabkeep: Any) -> dict[str, Any]:
    loader, val_loader, model, optimizer, scheduler, scaler = build()
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    with colabkeep.Run("unet", **parts) as run:
        run.state.rates = []
        for _ in run.epochs(EPOCHS):
            model.train()
            with tqdm(total=18, file=io.StringIO()) as pbar:
                for batch in run.batches(loader):
                    loss = update(model, optimizer, scaler, batch)
                    run.step(loss=loss)
                    pbar.update(3)
                    pbar.set_postfix(loss=loss.item())
                    if run.progress.step % 2 == 0:
                        scheduler.step(evaluate(model, val_loader))
                        run.state.rates.append(optimizer.param_groups[0]["lr"])
    return {"model": model.state_dict(), "rates": run.state.rates}
