"""Sparse gradients. The shape of skip-gram scripts: embeddings with `sparse=True`, torch's SparseAdam, negative samples
drawn from a table with NumPy, pairs made by a generator function over the text."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tests.loops.ports._parts import seed

RESUMES = "mid-epoch"
TOLD_AFTER = ("This loader can only be read from its beginning", "batches again in")
EPOCHS, WORDS, NEGATIVE = 3, 30, 3


class SkipGram(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside, self.outside = nn.Embedding(WORDS, 8, sparse=True), nn.Embedding(WORDS, 8, sparse=True)
        nn.init.zeros_(self.outside.weight)

    def forward(self, word: torch.Tensor, near: torch.Tensor, far: torch.Tensor) -> torch.Tensor:
        hidden = self.inside(word)
        positive = F.logsigmoid((hidden * self.outside(near)).sum(1))
        negative = F.logsigmoid(-(self.outside(far) @ hidden.unsqueeze(2)).squeeze(2)).sum(1)
        return -(positive + negative).mean()


class Pairs:
    """Batches of (word, neighbour), made anew in each epoch."""

    def __init__(self, text: np.ndarray) -> None:
        self.text = text

    def __iter__(self) -> Any:
        for at in range(1, len(self.text) - 8, 8):
            yield torch.from_numpy(self.text[at : at + 8]), torch.from_numpy(self.text[at - 1 : at + 7])


def build() -> tuple[Any, ...]:
    seed()
    model = SkipGram()
    optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=1e-2)
    return Pairs(np.random.zipf(1.5, 66) % WORDS), model, optimizer


def update(model: Any, optimizer: Any, word: Any, near: Any) -> torch.Tensor:
    far = torch.from_numpy(np.random.randint(0, WORDS, (len(word), NEGATIVE)))
    optimizer.zero_grad()
    loss = model(word, near, far)
    loss.backward()
    optimizer.step()
    return loss


def original() -> dict[str, Any]:
    pairs, model, optimizer = build()
    for _ in range(EPOCHS):
        for word, near in pairs:
            update(model, optimizer, word, near)
    return {"model": model.state_dict()}


def train(colabkeep: Any) -> dict[str, Any]:
    pairs, model, optimizer = build()
    with colabkeep.Run("word2vec", model=model, optimizer=optimizer) as run:
        for _ in run.epochs(EPOCHS):
            for word, near in run.batches(pairs):
                run.step(loss=update(model, optimizer, word, near))
    return {"model": model.state_dict()}
