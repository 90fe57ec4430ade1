"""A small GPT. The shape of karpathy/nanoGPT, train.py: no loader and no epochs, batches drawn at random positions from
the global stream and one step ahead, a learning rate by the number of the step, an estimate of the loss now and then
(which draws batches too), several micro-batches to a step, the best validation loss."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tests.loops.ports._parts import seed

RESUMES = "step"
MAX_ITERS, EVAL_INTERVAL, EVAL_ITERS, MICRO_STEPS = 19, 6, 2, 2
VOCABULARY, BLOCK, WIDTH, BATCH = 16, 8, 24, 4


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.block = nn.TransformerEncoderLayer(WIDTH, 2, 48, dropout=0.1, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(x) + self.places(torch.arange(BLOCK))
        mask = nn.Transformer.generate_square_subsequent_mask(BLOCK)
        logits = self.head(self.norm(self.block(hidden, src_mask=mask, is_causal=True)))
        return F.cross_entropy(logits.view(-1, VOCABULARY), y.view(-1))


def build() -> tuple[Any, ...]:
    seed()
    data = (np.arange(400) % 13 + np.random.randint(0, 3, 400)).astype(np.uint16)
    model = GPT()
    decay = [p for p in model.parameters() if p.dim() >= 2]
    plain = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95))
    return {"train": data[:300], "val": data[300:]}, model, optimizer, torch.amp.GradScaler("cpu", enabled=False)


def get_batch(data: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    ix = torch.randint(len(data) - BLOCK, (BATCH,))
    x = torch.stack([torch.from_numpy(data[i : i + BLOCK].astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + BLOCK].astype(np.int64)) for i in ix])
    return x, y


def get_lr(it: int) -> float:
    if it < 4:
        return 1e-2 * (it + 1) / 5
    return 1e-3 + 0.5 * (1.0 + math.cos(math.pi * (it - 4) / (MAX_ITERS - 4))) * 9e-3


@torch.no_grad()
def estimate_loss(model: Any, data: Any) -> dict[str, float]:
    model.eval()
    found = {
        split: torch.stack([model(*get_batch(data[split])) for _ in range(EVAL_ITERS)]).mean().item() for split in data
    }
    model.train()
    return found


def set_lr(optimizer: Any, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


def finish_step(model: Any, optimizer: Any, scaler: Any) -> None:
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)


def original() -> dict[str, Any]:
    data, model, optimizer, scaler = build()
    iter_num, best_val_loss, log = 0, 1e9, []
    x, y = get_batch(data["train"])
    while True:
        set_lr(optimizer, get_lr(iter_num))
        if iter_num % EVAL_INTERVAL == 0:
            losses = estimate_loss(model, data)
            log.append(losses)
            best_val_loss = min(best_val_loss, losses["val"])
        for _ in range(MICRO_STEPS):
            loss = model(x, y) / MICRO_STEPS
            x, y = get_batch(data["train"])
            scaler.scale(loss).backward()
        finish_step(model, optimizer, scaler)
        iter_num += 1
        if iter_num > MAX_ITERS:
            break
    return {"model": model.state_dict(), "log": log, "best": best_val_loss, "ahead": x}


def train(colabkeep: Any) -> dict[str, Any]:
    data, model, optimizer, scaler = build()
    with colabkeep.Run("gpt", model=model, optimizer=optimizer, scaler=scaler) as run:
        state = run.state
        state.best_val_loss, state.log = 1e9, []
        state.x, state.y = get_batch(data["train"])
        for iter_num in run.steps(MAX_ITERS + 1):
            set_lr(optimizer, get_lr(iter_num))
            if iter_num % EVAL_INTERVAL == 0:
                losses = estimate_loss(model, data)
                state.log.append(losses)
                state.best_val_loss = min(state.best_val_loss, losses["val"])
            for _ in range(MICRO_STEPS):
                loss = model(state.x, state.y) / MICRO_STEPS
                state.x, state.y = get_batch(data["train"])
                scaler.scale(loss).backward()
            finish_step(model, optimizer, scaler)
            run.step(loss=loss * MICRO_STEPS)
    return {"model": model.state_dict(), "log": state.log, "best": state.best_val_loss, "ahead": state.x}
