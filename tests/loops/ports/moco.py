"""Contrast with a momentum encoder and a queue. The shape of facebookresearch/moco, moco/builder.py and main_moco.py:
the queue and its pointer are buffers, the key encoder follows through `.data` and gets new memory each time, batches
are shuffled with the global stream, the learning rate follows the number of the epoch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.loops.ports._parts import by_epoch, digits, mlp, seed

RESUMES = "mid-epoch"
EPOCHS, DIM, QUEUE = 3, 8, 16


class MoCo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder_q, self.encoder_k = mlp(64, 32, DIM), mlp(64, 32, DIM)
        for query, key in zip(self.encoder_q.parameters(), self.encoder_k.parameters(), strict=True):
            key.data.copy_(query.data)
            key.requires_grad = False
        self.register_buffer("queue", F.normalize(torch.randn(DIM, QUEUE), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def _momentum_update_key_encoder(self) -> None:
        for query, key in zip(self.encoder_q.parameters(), self.encoder_k.parameters(), strict=True):
            key.data = key.data * 0.9 + query.data * 0.1

    @torch.no_grad()
    def _dequeue_and_enqueue(self, keys: torch.Tensor) -> None:
        ptr = int(self.queue_ptr)
        self.queue[:, ptr : ptr + len(keys)] = keys.T
        self.queue_ptr[0] = (ptr + len(keys)) % QUEUE

    def forward(self, im_q: torch.Tensor, im_k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q = F.normalize(self.encoder_q(im_q), dim=1)
        with torch.no_grad():
            self._momentum_update_key_encoder()
            shuffled = torch.randperm(len(im_k))
            k = F.normalize(self.encoder_k(im_k[shuffled]), dim=1)[torch.argsort(shuffled)]
        positive = (q * k).sum(1, keepdim=True)
        logits = torch.cat([positive, q @ self.queue.clone().detach()], dim=1) / 0.07
        self._dequeue_and_enqueue(k)
        return logits, torch.zeros(len(q), dtype=torch.long)


def build() -> tuple[Any, ...]:
    seed()
    model = MoCo()
    optimizer = torch.optim.SGD(model.parameters(), 0.03, momentum=0.9, weight_decay=1e-4)
    return by_epoch(digits(), drop_last=True), model, optimizer


def adjust_learning_rate(optimizer: Any, epoch: int) -> None:
    for group in optimizer.param_groups:
        group["lr"] = 0.03 * 0.5 * (1.0 + math.cos(math.pi * epoch / EPOCHS))


def update(model: Any, optimizer: Any, images: torch.Tensor) -> torch.Tensor:
    views = [images.flatten(1) + 0.1 * torch.randn(len(images), 64) for _ in range(2)]
    output, target = model(*views)
    loss = F.cross_entropy(output, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def original() -> dict[str, Any]:
    loader, model, optimizer = build()
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        adjust_learning_rate(optimizer, epoch)
        model.train()
        for images, _ in loader:
            update(model, optimizer, images)
    return {"model": model.state_dict()}


def train(colabkeep: Any) -> dict[str, Any]:
    loader, model, optimizer = build()
    with colabkeep.Run("moco", model=model, optimizer=optimizer) as run:
        for epoch in run.epochs(EPOCHS):
            adjust_learning_rate(optimizer, epoch)
            model.train()
            for _, (images, _) in run.enumerate(loader):
                run.step(loss=update(model, optimizer, images))
    return {"model": model.state_dict()}
