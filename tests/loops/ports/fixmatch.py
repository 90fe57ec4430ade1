"""Half supervised, with two loaders. The shape of kekmodel/FixMatch-pytorch, train.py: two iterators kept by hand, of
which the shorter begins anew under a new epoch number; a cosine schedule by steps, an average model that is a copy,
meters.

The labelled loader, made as long as an epoch as that script does, is read by `run.batches`; the other by `run.next`."""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any

import torch
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from tests.loops.ports._parts import by_epoch, digits, in_order, seed, small_net

RESUMES = "mid-epoch"
EPOCHS, EVAL_STEP = 3, 6


class ModelEMA:
    """An average of a model: an object of the script's own, with a model inside."""

    def __init__(self, model: Any) -> None:
        self.ema = deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model: Any) -> None:
        now, own = model.state_dict(), self.ema.state_dict()
        for key, value in own.items():
            value.copy_(now[key] if not value.is_floating_point() else value * 0.9 + 0.1 * now[key])


def build() -> tuple[Any, ...]:
    seed()
    labeled, unlabeled = by_epoch(digits(24), 4), by_epoch(digits(40), 8)
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, nesterov=True)
    scheduler = LambdaLR(optimizer, lambda step: max(0.0, math.cos(math.pi * 7 / 16 * step / (EPOCHS * EVAL_STEP))))
    return labeled, unlabeled, in_order(digits(8)), model, optimizer, scheduler, ModelEMA(model)


def update(model: Any, optimizer: Any, scheduler: Any, ema_model: Any, labeled: Any, unlabeled: Any) -> torch.Tensor:
    (inputs_x, targets_x), (inputs_u, _) = labeled, unlabeled
    strong = inputs_u + 0.3 * torch.randn_like(inputs_u)
    logits = model(torch.cat((inputs_x, inputs_u, strong)))
    logits_u_w, logits_u_s = logits[len(inputs_x) :].chunk(2)
    loss_x = F.cross_entropy(logits[: len(inputs_x)], targets_x)
    max_probs, targets_u = torch.softmax(logits_u_w.detach(), dim=-1).max(dim=-1)
    loss_u = (F.cross_entropy(logits_u_s, targets_u, reduction="none") * max_probs.ge(0.4).float()).mean()
    loss = loss_x + loss_u
    loss.backward()
    optimizer.step()
    scheduler.step()
    ema_model.update(model)
    model.zero_grad()
    return loss


def test(model: Any, loader: Any) -> float:
    model.eval()
    with torch.no_grad():
        return sum(F.cross_entropy(model(x), y).item() for x, y in loader)


def original() -> dict[str, Any]:
    labeled, unlabeled, test_loader, model, optimizer, scheduler, ema_model = build()
    passes, log = 0, []
    unlabeled.sampler.set_epoch(passes)
    unlabeled_iter = iter(unlabeled)
    for epoch in range(EPOCHS):
        model.train()
        labeled.sampler.set_epoch(epoch)
        labeled_iter = iter(labeled)
        for _ in range(EVAL_STEP):
            batch_x = next(labeled_iter)
            try:
                batch_u = next(unlabeled_iter)
            except StopIteration:
                passes += 1
                unlabeled.sampler.set_epoch(passes)
                unlabeled_iter = iter(unlabeled)
                batch_u = next(unlabeled_iter)
            update(model, optimizer, scheduler, ema_model, batch_x, batch_u)
        log.append(test(ema_model.ema, test_loader))
    return {"model": model.state_dict(), "ema": ema_model.ema.state_dict(), "log": log}


def train(colabkeep: Any) -> dict[str, Any]:
    labeled, unlabeled, test_loader, model, optimizer, scheduler, ema_model = build()
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "ema": ema_model.ema}
    with colabkeep.Run("fixmatch", **parts) as run:
        run.state.log = []
        for _ in run.epochs(EPOCHS):
            model.train()
            for batch_x in run.batches(labeled):
                batch_u = run.next(unlabeled)
                loss = update(model, optimizer, scheduler, ema_model, batch_x, batch_u)
                run.average(loss=loss)
                run.step(loss=loss)
            run.state.log.append(test(ema_model.ema, test_loader))
            run.log(**run.average)
    return {"model": model.state_dict(), "ema": ema_model.ema.state_dict(), "log": run.state.log}
