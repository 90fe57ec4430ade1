"""Stochastic weight averaging. The shape of the recipe in torch.optim.swa_utils: a cosine schedule, and from an epoch
on an average of the weights with a schedule of its own; at the end BatchNorm's statistics for the average."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn

from tests.loops.ports._parts import by_epoch, digits, in_order, seed, small_net

RESUMES = "mid-epoch"
EPOCHS, SWA_START = 4, 2


def build() -> tuple[Any, ...]:
    seed()
    data, model = digits(), small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    swa_scheduler = SWALR(optimizer, anneal_strategy="linear", anneal_epochs=2, swa_lr=0.05)
    return by_epoch(data), in_order(data), model, optimizer, AveragedModel(model), scheduler, swa_scheduler


def update(model: Any, optimizer: Any, x: Any, y: Any) -> torch.Tensor:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


def original() -> dict[str, Any]:
    loader, statistics, model, optimizer, swa_model, scheduler, swa_scheduler = build()
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            update(model, optimizer, x, y)
        if epoch >= SWA_START:
            swa_model.update_parameters(model)
            swa_scheduler.step()
        else:
            scheduler.step()
    update_bn(statistics, swa_model)
    return {"model": model.state_dict(), "swa": swa_model.state_dict()}


def train(colabkeep: Any) -> dict[str, Any]:
    loader, statistics, model, optimizer, swa_model, scheduler, swa_scheduler = build()
    with colabkeep.Run(
        "swa", model=model, optimizer=optimizer, scheduler=scheduler, ema=swa_model, state={"swa": swa_scheduler}
    ) as run:
        for epoch in run.epochs(EPOCHS):
            for x, y in run.batches(loader):
                run.step(loss=update(model, optimizer, x, y))
            if epoch >= SWA_START:
                swa_model.update_parameters(model)
                swa_scheduler.step()
            else:
                scheduler.step()
    update_bn(statistics, swa_model)
    return {"model": model.state_dict(), "swa": swa_model.state_dict()}
