"""Sentences of different lengths, in buckets. The shape of torchtext-like and speech scripts: a batch sampler that
sorts by length and shuffles the batches with Python's stream, and a collate function that pads."""

from __future__ import annotations

import math
import random
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader, Sampler

from tests.loops.ports._parts import seed

RESUMES = "mid-epoch"
NO_ORIGINAL = "colabkeep draws the order from a seed of its own, the sampler from Python's stream"


class BucketSampler(Sampler[list[int]]):
    def __init__(self, lengths: list[int], size: int) -> None:
        self.lengths, self.size = lengths, size

    def __len__(self) -> int:
        return math.ceil(len(self.lengths) / self.size)

    def __iter__(self) -> Any:
        noisy = [(length + random.random(), i) for i, length in enumerate(self.lengths)]
        ordered = [i for _, i in sorted(noisy)]
        batches = [ordered[at : at + self.size] for at in range(0, len(ordered), self.size)]
        random.shuffle(batches)
        return iter(batches)


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.gru, self.out = nn.Embedding(20, 8), nn.GRU(8, 8), nn.Linear(8, 2)

    def forward(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(self.embedding(tokens), lengths, enforce_sorted=False)
        return self.out(self.gru(packed)[1][0])


def collate(batch: list[Any]) -> tuple[torch.Tensor, ...]:
    sentences, labels = zip(*batch, strict=True)
    return pad_sequence(sentences), torch.tensor([len(each) for each in sentences]), torch.tensor(labels)


def train(colabkeep: Any) -> dict[str, Any]:
    seed()
    data = [(torch.randint(0, 20, (random.randint(2, 9),)), i % 2) for i in range(26)]
    sampler = BucketSampler([len(sentence) for sentence, _ in data], 4)
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=collate)
    model = Tagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with colabkeep.Run("buckets", model=model, optimizer=optimizer) as run:
        run.state.lengths = []
        for _ in run.epochs(3):
            for tokens, lengths, labels in run.batches(loader):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(tokens, lengths), labels)
                loss.backward()
                optimizer.step()
                run.step(loss=loss)
                run.state.lengths.append(lengths.tolist())
    return {"model": model.state_dict(), "lengths": run.state.lengths}
