"""A queue that is no buffer: a tensor and a Python number of the script. The shape of contrastive scripts that keep
`queue` and `ptr` beside the model; both move into `run.state`, where they are written into in place."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from tests.loops.ports._parts import by_epoch, digits, mlp, seed

RESUMES = "mid-epoch"
EPOCHS, DIM, QUEUE = 3, 8, 20


def build() -> tuple[Any, ...]:
    seed()
    encoder = mlp(64, 32, DIM)
    queue = F.normalize(torch.randn(QUEUE, DIM), dim=1)
    return by_epoch(digits()), encoder, torch.optim.Adam(encoder.parameters(), lr=1e-3), queue


def update(encoder: Any, optimizer: Any, images: torch.Tensor, queue: torch.Tensor) -> tuple[torch.Tensor, ...]:
    one, two = (F.normalize(encoder(images.flatten(1) + 0.1 * torch.randn(len(images), 64)), dim=1) for _ in range(2))
    logits = torch.cat([(one * two).sum(1, keepdim=True), one @ queue.clone().t()], dim=1) / 0.1
    loss = F.cross_entropy(logits, torch.zeros(len(one), dtype=torch.long))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss, two.detach()


def original() -> dict[str, Any]:
    loader, encoder, optimizer, queue = build()
    ptr = 0
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for images, _ in loader:
            _, keys = update(encoder, optimizer, images, queue)
            queue[ptr : ptr + len(keys)] = keys
            ptr = (ptr + len(keys)) % QUEUE
    return {"encoder": encoder.state_dict(), "queue": queue, "ptr": ptr}


def train(colabkeep: Any) -> dict[str, Any]:
    loader, encoder, optimizer, queue = build()
    with colabkeep.Run("bank", model=encoder, optimizer=optimizer) as run:
        run.state.queue, run.state.ptr = queue, 0
        for _ in run.epochs(EPOCHS):
            for images, _ in run.batches(loader):
                loss, keys = update(encoder, optimizer, images, run.state.queue)
                run.step(loss=loss)
                run.state.queue[run.state.ptr : run.state.ptr + len(keys)] = keys
                run.state.ptr = (run.state.ptr + len(keys)) % QUEUE
    return {"encoder": encoder.state_dict(), "queue": run.state.queue, "ptr": run.state.ptr}
