"""A sequence-to-sequence transformer. The shape of "The Annotated Transformer": a LambdaLR by steps from a rate of 1,
label smoothing by hand, accumulation over batches, and a small object that counts steps, samples and tokens, which
becomes attributes of `run.state`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from tests.loops.ports._parts import by_epoch, seed

RESUMES = "mid-epoch"
EPOCHS, WIDTH, TOKENS, ACCUMULATE = 4, 16, 11, 2


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.transformer = nn.Transformer(WIDTH, 2, 1, 1, 32, dropout=0.1, batch_first=True)
        self.generator = nn.Linear(WIDTH, TOKENS)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        decoded = self.transformer(self.embedding(source), self.embedding(target), tgt_mask=mask)
        return self.generator(decoded).log_softmax(-1)


def rate(step: int) -> float:
    step = max(step, 1)
    return WIDTH**-0.5 * min(step**-0.5, step * 8**-1.5)


def build() -> tuple[Any, ...]:
    seed()
    loader, model = by_epoch([torch.randint(1, TOKENS, (7,)) for _ in range(30)], 3), Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5, betas=(0.9, 0.98), eps=1e-9)
    return loader, model, optimizer, LambdaLR(optimizer, lr_lambda=rate)


def backward(model: Any, sentences: torch.Tensor) -> tuple[torch.Tensor, int]:
    predicted, wanted = model(sentences, sentences[:, :-1]), sentences[:, 1:]
    smooth = torch.full_like(predicted, 0.1 / (TOKENS - 2)).scatter(2, wanted.unsqueeze(2), 0.9)
    loss = nn.functional.kl_div(predicted, smooth, reduction="sum") / wanted.numel()
    loss.backward()
    return loss, wanted.numel()


def original() -> dict[str, Any]:
    loader, model, optimizer, scheduler = build()
    steps = samples = tokens = 0
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        model.train()
        for i, sentences in enumerate(loader):
            _, count = backward(model, sentences)
            steps, samples, tokens = steps + 1, samples + len(sentences), tokens + count
            if i % ACCUMULATE == ACCUMULATE - 1:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                scheduler.step()
    return {"model": model.state_dict(), "counts": [steps, samples, tokens]}


def train(colabkeep: Any) -> dict[str, Any]:
    loader, model, optimizer, scheduler = build()
    with colabkeep.Run("transformer", model=model, optimizer=optimizer, scheduler=scheduler) as run:
        state = run.state
        state.steps = state.samples = state.tokens = 0
        for _ in run.epochs(EPOCHS):
            model.train()
            for i, sentences in run.enumerate(loader):
                loss, count = backward(model, sentences)
                state.steps += 1
                state.samples += len(sentences)
                state.tokens += count
                if i % ACCUMULATE == ACCUMULATE - 1:
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)
                    scheduler.step()
                    run.step(loss=loss)
    return {"model": model.state_dict(), "counts": [state.steps, state.samples, state.tokens]}
